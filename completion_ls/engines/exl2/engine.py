"""`contract.Engine` on exllamav2: an EXL2 target, perhaps with a draft model, on one card."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from completion_ls.decode.covering import Branch, Covering, Floats
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import (
    EngineStats,
    Event,
    Finish,
    Job,
    JobFailed,
    Lane,
    Other,
    Unfinished,
)
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.exl2.choice import Choices
from completion_ls.engines.exl2.generator import PagedDraft, PagedGenerator, PagedJob
from completion_ls.engines.exl2.widths import OFFERED
from completion_ls.engines.jobs import RunningJob, check_job, count_by_lane
from completion_ls.engines.turns import Turns

_log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WORD = 64
"""Bytes of an unfinished word at most; its tokens may be as many."""
PAGE = 256
"""Tokens of a page of the cache; chunks are multiples of it."""


@dataclass(slots=True, eq=False)
class _Running(RunningJob):
    work: PagedJob | None = None
    retried: bool = False

    @property
    def text(self) -> tuple[int, ...]:
        """What was decided so far: the prompt without its unfinished word, and the output."""
        return (*self.job.prompt[: self.base], *self.output)


class Exl2Engine:
    """One prefill chunk or one pass of the target per step, for one job, in the order of
    `turns.Turns`. The pass behind the prefill gives the first token, and nothing is guessed
    before it."""

    def __init__(
        self,
        generator: PagedGenerator,
        max_context: int,
        chunk: int,
        vocabulary: Vocabulary | None,
        drafts: Drafts | None = None,
        guesser: PagedDraft | None = None,
    ) -> None:
        """`chunk` is the most prompt tokens of a step, a multiple of `PAGE`; `guesser` is the draft
        model of `drafts`, on the pages of `generator`."""
        self._generator = generator
        self._guesser = guesser
        self._vocabulary = vocabulary
        self.drafts = drafts
        """May be exchanged while there are no jobs."""
        self._chunk = chunk
        self._max_context: int = min(max_context, generator.max_total_tokens - OFFERED - MOST_WORD)
        self._jobs: dict[int, _Running] = {}
        self._turns = Turns()
        self._unsaid: list[Event] = []
        self._passes = self._reused = self._computed = self._generated = 0

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, that one job may have."""
        return self._max_context

    @property
    def passes(self) -> int:
        """Forward passes of the target so far."""
        return self._passes

    def add(self, job: Job) -> None:
        """Accept a job; nothing is computed yet. Raises ValueError (a sentence) when it is empty,
        does not fit, names tokens that the model does not have, or its id is in use."""
        if job.id in self._jobs:
            raise ValueError(f"A job with the id {job.id} is still running; give each its own id.")
        has_tokenizer = self._vocabulary is not None
        check_job(job, self._max_context, self._generator.vocabulary, has_tokenizer=has_tokenizer)
        self._jobs[job.id] = _Running(job, job.lane)

    def cancel(self, job_id: int) -> None:
        """Drop a job: no event of it follows. Its KV stays for reuse. Unknown ids are ignored."""
        self._unsaid[:] = [event for event in self._unsaid if event.job_id != job_id]
        running = self._jobs.pop(job_id, None)
        if running is None:
            return
        if running.drafts:
            running.drafts.end()
        if running.work is not None:
            self._generator.end(running.work)

    def promote(self, job_id: int, lane: Lane) -> None:
        """Move a job to another lane. Unknown ids are ignored."""
        if running := self._jobs.get(job_id):
            running.lane = lane

    def favour(self, front: Hashable) -> None:
        """The user is at this front now: its jobs go first. Its pages are those used last anyway."""
        self._turns.favour(front)

    def step(self) -> list[Event]:
        """One prefill chunk or one pass of one job; no events when there is nothing to do.

        A job whose pass fails is dropped and `JobFailed` is raised; the other jobs are as they were.
        The first time that it is for want of memory, the job is begun again.
        """
        if self._unsaid or not self._jobs:
            if not self._jobs:
                self._generator.save_ahead()
            return self._say()
        running = self._turns.next(self._jobs)
        if running.work is None:
            self._attempt(running, lambda: self._begin(running))
            if running.work is None:  # somebody else has the pages and is not less urgent
                others = [one for one in self._jobs.values() if one.work]
                if running.lane is Lane.BACKGROUND or not others:
                    return self._say(self._end(running, Finish.NO_ROOM))
                running = others[0]
        began = time.perf_counter()
        try:
            event = self._attempt(running, lambda: self._advance(running))
        finally:
            self._turns.took(running, time.perf_counter() - began, self._jobs)
        if event.finish is not None:
            if running.drafts:
                running.drafts.end(event.finish)
            self.cancel(running.job.id)
            if not self._jobs:
                self._generator.save_ahead()
        return self._say(event)

    def surprise(self, prompt: Sequence[int], tokens: Sequence[int]) -> float:
        """Minus the natural logarithm of the probability of `tokens`, at most `OFFERED`, behind
        `prompt`. For trials before there are jobs: it is one piece of work, and leaves no KV. Raises
        ValueError (a sentence) where the model does not have these tokens."""
        check_job(
            Job(0, (*prompt, *tokens), 1),
            self._max_context,
            self._generator.vocabulary,
            has_tokenizer=False,
        )
        work = self._generator.begin(prompt, len(tokens), fresh=True)
        assert work is not None  # nobody else has a page yet
        try:
            while work.position < len(prompt) - 1:
                self._generator.read(work, self._chunk)
            rows = self._generator.look(work, tokens[:-1]).log_softmax(-1).cpu()
        finally:
            self._generator.end(work)
        return -float(rows[range(len(tokens)), list(tokens)].sum())

    def stats(self) -> EngineStats:
        """Totals so far."""
        generator = self._generator
        page_bytes = generator.kv_bytes // generator.max_pages
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (None, None)
        return EngineStats(
            passes=self._passes,
            prompt_tokens_reused=self._reused,
            prompt_tokens_computed=self._computed,
            tokens_generated=self._generated,
            jobs_active=len(self._jobs),
            sequences_cached=generator.pages_used,
            sequences_in_use=generator.pages_in_use,
            kv_bytes=page_bytes * generator.pages_used,
            kv_bytes_limit=generator.kv_bytes,
            weight_bytes=generator.weight_bytes,
            drafting=self.drafts.figures if self.drafts else (),
            lanes=count_by_lane((one.lane, one.work is not None) for one in self._jobs.values()),
            kv_by_document={
                document: page_bytes * pages
                for document, pages in generator.pages_by_document().items()
            },
            card_bytes=None if total is None or free is None else total - free,
            card_bytes_limit=total,
        )

    def close(self) -> None:
        """Drop all jobs and KV. The weights go with the engine itself."""
        for job_id in list(self._jobs):
            self.cancel(job_id)
        self._generator.reset_page_table()

    def _attempt(self, running: _Running, act: Callable[[], T]) -> T:
        """Do something for a job, and once more where that wants memory the first time. What fails ends
        the job."""
        try:
            try:
                return act()
            except torch.cuda.OutOfMemoryError:
                if running.retried:
                    raise
                self._begin_again(running)
                return act()
        except Exception as error:
            self.cancel(running.job.id)
            raise JobFailed(running.job.id, error) from error

    def _say(self, *events: Event) -> list[Event]:
        """These, and what could not be said when it happened."""
        before, self._unsaid = self._unsaid, []
        return [*before, *events]

    def _begin(self, running: _Running) -> None:
        """Give a job its pages. Where there are too few, less urgent work gives way; it may not be
        enough."""
        while True:
            running.work = self._take_pages(running)
            if running.work:
                return
            begun = [one for one in self._jobs.values() if one.work and one.lane > running.lane]
            if not begun:
                return
            self._unsaid.append(self._end(max(begun, key=lambda one: one.lane), Finish.NO_ROOM))

    def _take_pages(self, running: _Running) -> PagedJob | None:
        job = running.job
        room = job.max_new_tokens + (len(job.unfinished.text) if job.unfinished else 0)
        left = max(0, room - len(running.output))
        work = self._generator.begin(running.text, left, fresh=job.fresh, document=job.document)
        if work:
            self._count(running, reused=work.reused)
        return work

    def _begin_again(self, running: _Running) -> None:
        """Have a job that ran out of memory start anew, behind what came out of it."""
        running.retried = True
        _log.warning("out of memory: the KV cache in host memory is halved, the job begins again")
        if running.work:
            self._generator.end(running.work)
            running.work = None
        self._generator.tier.shrink()
        torch.cuda.empty_cache()
        if not running.prefilled:
            running.reused = running.computed = 0
            if running.drafts:
                running.drafts.end()
                running.drafts = None

    def _end(self, running: _Running, finish: Finish) -> Event:
        event = running.event(finish=finish)
        self.cancel(running.job.id)
        return event

    def _advance(self, running: _Running) -> Event:
        if running.work is None:
            running.work = self._take_pages(running)
            assert running.work is not None, "its pages were free a moment ago"
        event = self._pass(running, running.work)
        running.work.rewind()
        return event

    def _pass(self, running: _Running, work: PagedJob) -> Event:
        job, base = running.job, running.base
        last = base + len(running.output) - 1
        if work.position < last:
            # A key that comes in between waits for the step only.
            gives_way = running.lane is Lane.BACKGROUND or not self._turns.goes_first(running)
            chunk = PAGE if gives_way else self._chunk
            before = work.reused
            computed = self._generator.read(work, chunk)
            self._count(running, computed, reused=work.reused - before)
            if work.position < last:
                return running.event()
        if running.prefilled:
            return self._decode(running, work)
        if self.drafts and job.max_new_tokens > max(1, len(job.given)):
            running.drafts = self.drafts.of(job, job.prompt[:base])
        if job.unfinished:
            return self._cover(running, work, job.unfinished)
        self._count(running, 1)
        return self._choose(running, work, ())

    def _cover(self, running: _Running, work: PagedJob, word: Unfinished) -> Event:
        """The first tokens where the prompt ends in an unfinished word. What was typed of it is
        offered like a draft: as a rule one pass is all."""
        job, base = running.job, running.base
        assert self._vocabulary is not None
        typed = job.prompt[base:]
        rows: dict[Branch, Floats] = {}
        looked: Branch = ()

        def look(branch: Branch) -> None:
            nonlocal looked
            self._count(running, len(branch) + (not rows))
            for length, row in enumerate(self._look(work, branch)):
                rows[branch[:length]] = row.cpu().numpy()
            looked = branch

        def look_into(branches: Sequence[Branch]) -> list[Floats]:
            for branch in sorted(branches, key=len, reverse=True):
                if branch not in rows:
                    look(branch)
            return [rows[branch] for branch in branches]

        look(typed)
        covered = Covering(
            text=word.text,
            known=rows.get,
            look_into=look_into,
            vocabulary=self._vocabulary,
            sampling=job.sampling,
            position=base,
            banned=running.banned,
            others=job.others,
        ).choose()
        tokens = covered.tokens
        before = tokens[:-1]
        if looked[: len(before)] != before:
            look(before)
        kept = running.kept(covered)
        self._note(running, work, kept)
        return running.covered(covered, kept)

    def _decode(self, running: _Running, work: PagedJob) -> Event:
        left, began = running.job.max_new_tokens - running.produced, time.perf_counter()
        if self._guesser:
            self._guesser.work = work
        if given := running.still_given:
            return self._choose(running, work, given[:OFFERED])
        draft = running.drafts.propose(left - 1) if running.drafts else ()
        event = self._choose(running, work, draft)
        if running.drafts:
            running.drafts.spent(time.perf_counter() - began)
        return event

    def _choose(self, running: _Running, work: PagedJob, draft: Sequence[int]) -> Event:
        """One pass with a draft behind it: as many tokens as were guessed right, and one more."""
        job = running.job
        tokens: list[int] = []
        logprobs: list[float] = []
        others: list[Other] = []
        choices = Choices(self._look(work, draft), job.sampling)
        for row, guess in enumerate([*draft, None]):
            place = len(running.output)
            if given := running.still_given:
                token, logprob = given[0], choices.logprob_of(row, given[0])
            else:
                token, logprob = choices.at(row, running.base + place, running.banned)
                found = choices.others(row, job.others, token, running.banned)
                others += [Other(place, (other,), (chance,)) for other, chance in found]
            if token in job.stop_token_ids and not given:
                stop = Finish.STOP, logprob, None, tuple(others)
                return running.event(tuple(tokens), tuple(logprobs), *stop)
            self._note(running, work, (token,))
            tokens.append(token)
            logprobs.append(logprob)
            if token != guess or running.full:
                break
        return running.event(tuple(tokens), tuple(logprobs), running.full, others=tuple(others))

    def _look(self, work: PagedJob, offered: Sequence[int]) -> torch.Tensor:
        self._passes += 1
        return self._generator.look(work, offered)

    def _note(self, running: _Running, work: PagedJob, tokens: Sequence[int]) -> None:
        running.output += tokens
        self._generated += len(tokens)
        for token in tokens:
            work.accept(token)
        if running.drafts:
            running.drafts.produced(tokens)

    def _count(self, running: _Running, computed: int = 0, *, reused: int = 0) -> None:
        """Note prompt tokens. Those that are read again behind an output were counted before it."""
        if not running.prefilled:
            running.computed += computed
            running.reused += reused
            self._computed += computed
            self._reused += reused
