"""The engine that needs no card: a forward on the CPU, one sequence per pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.decode.covering import Branch, Covering, Floats
from completion_ls.decode.sampling import choose, logprob_of, others
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
from completion_ls.engines.draft_model import DraftModel
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.jobs import RunningJob, check_job, count_by_lane
from completion_ls.engines.kv import KvCache
from completion_ls.engines.llama import Llama
from completion_ls.engines.model import Model
from completion_ls.engines.native import Native, load_native
from completion_ls.engines.same_vocabulary import check_vocabulary
from completion_ls.engines.shape import UnknownModel
from completion_ls.engines.speed import speed_of
from completion_ls.engines.tree import KvSequence, Node, TreePath, View, chain
from completion_ls.engines.turns import Turns

_log = logging.getLogger(__name__)

SPARE_SLOTS = 192
"""Room in a sequence for branches; it grows where that is not enough."""
SMALL_CHUNK = 4
"""Where a keystroke may come in between, a chunk is so many times smaller, ..."""
MIN_CHUNK = 16
"""... but not below this; so small where the user types in another window."""
SHORT = 16
"""So many tokens go through the model beside the branches, which a longer chunk would clear away."""
KEPT_ROWS = 24
"""Of so many tokens of the output the logits are kept: a user who types along may leave it there."""
GIVEN = 48
"""Most given tokens in one pass: all of their logits are kept until they are read."""
NO_DRAFTS = DraftSettings(lookup=False, max_tokens=0)


@dataclass(slots=True, eq=False)
class _Running(RunningJob):
    kv: KvSequence | None = None
    tip: int = -1
    """The slot that the last token of the output follows."""
    guesses: list[int] = field(default_factory=list)
    """The slots of what is left of the present draft, ..."""
    first_guess: int = 0
    """... and from where on there are only slots of drafts."""


class TorchCpuEngine:
    """`contract.Engine` on the CPU.

    Jobs go on in the order of `turns.Turns`, by a chunk of `prefill_chunk` prompt tokens or one
    token of output per step. The step that ends a prefill also gives the first token.
    """

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        max_context: int,
        vocabulary: Vocabulary | None,
        drafts: Drafts | None = None,
    ) -> None:
        self.model = model
        self.drafts = drafts
        """May be exchanged while there are no jobs."""
        self._vocabulary = vocabulary
        self._chunk = settings.prefill_chunk
        self._max_context = max_context
        self._cache = KvCache(model.kv, settings.kv_memory_mb * 2**20)
        self._jobs: dict[int, _Running] = {}
        self._turns = Turns()
        self._passes = self._reused = self._computed = self._generated = 0

    @classmethod
    def load(
        cls,
        folder: Path,
        settings: EngineSettings,
        max_context: int | None = None,
        *,
        draft: DraftSettings = NO_DRAFTS,
        draft_folder: Path | None = None,
    ) -> TorchCpuEngine:
        """Read a Hugging Face folder (config.json and safetensors) as `settings.weights` says.

        `max_context` lowers the model's own limit of tokens per job. Without a tokenizer.json there
        are no jobs with an unfinished word. The draft model is in `draft_folder`. Sets torch's
        thread count for the whole process. Raises ValueError (a sentence) when a folder cannot be
        served.
        """
        native = load_native()
        model = _read(folder, settings, native)
        guesses = draft.max_tokens > 0 and (draft.lookup or draft_folder is not None)
        drafts = None
        if guesses or not settings.threads:
            speed = speed_of(model, folder, settings.threads)
        else:
            model.use_threads(settings.threads)
        if guesses:
            guessing = None
            if draft_folder:
                check_vocabulary(folder, draft_folder)
                small = _read(draft_folder, settings, native)
                own = speed_of(small, draft_folder, speed.threads)
                guessing = DraftModel(
                    small,
                    own.seconds[0][1] / speed.seconds[0][1],
                    model.shape.vocabulary,
                    settings.kv_memory_mb * 2**20 // 2,
                )
            drafts = Drafts(speed.cost, lookup=draft.lookup, model=guessing, most=draft.max_tokens)
        limit = model.shape.context
        tokenizer = folder / "tokenizer.json"
        return cls(
            model,
            settings,
            limit if max_context is None else min(limit, max_context),
            Vocabulary(Tokenizer.from_file(str(tokenizer))) if tokenizer.exists() else None,
            drafts,
        )

    @property
    def is_compiled(self) -> bool:
        """Whether passes run on compiled code, as fast as they can."""
        return self.model.is_compiled

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, that one job may have."""
        return self._max_context

    @property
    def passes(self) -> int:
        """Forward passes of the model so far."""
        return self._passes

    def add(self, job: Job) -> None:
        """Accept a job; nothing is computed yet. Raises ValueError (a sentence) when it is empty,
        does not fit, names tokens that the model does not have, or its id is in use."""
        if job.id in self._jobs:
            raise ValueError(f"A job with the id {job.id} is still running; give each its own id.")
        has_tokenizer = self._vocabulary is not None
        check_job(job, self._max_context, self.model.shape.vocabulary, has_tokenizer=has_tokenizer)
        self._jobs[job.id] = _Running(job, job.lane)

    def cancel(self, job_id: int) -> None:
        """Drop a job: no event of it follows. Its KV stays for reuse. Unknown ids are ignored."""
        running = self._jobs.pop(job_id, None)
        if running is not None and running.drafts:
            running.drafts.end()
        if running is not None and running.kv is not None:
            self._drop_guesses(running, running.kv)
            if running.job.fresh:  # nobody types there
                self._cache.discard(running.kv)
            else:
                self._cache.release(running.kv)

    def promote(self, job_id: int, lane: Lane) -> None:
        """Move a job to another lane. Unknown ids are ignored."""
        if running := self._jobs.get(job_id):
            running.lane = lane

    def favour(self, front: Hashable) -> None:
        """See `Engine`."""
        self._turns.favour(front)
        self._cache.favoured = front

    def step(self) -> list[Event]:
        """One prefill chunk or one decode pass of one job; no events when there is nothing to do.

        A job whose pass fails is dropped together with its KV and `JobFailed` is raised; the other
        jobs are as they were, so the caller reports this one and goes on stepping.
        """
        if not self._jobs:
            return []
        running, began = self._turns.next(self._jobs), time.perf_counter()
        try:
            event = self._decode(running) if running.prefilled else self._prefill(running)
        except Exception as error:
            self._turns.took(running, time.perf_counter() - began, self._jobs)
            del self._jobs[running.job.id]
            if running.kv is not None:
                self._cache.discard(running.kv)
            raise JobFailed(running.job.id, error) from error
        self._turns.took(running, time.perf_counter() - began, self._jobs)
        if event.finish is not None:
            if running.drafts:
                running.drafts.end(event.finish)
            self.cancel(running.job.id)
        return [event]

    def stats(self) -> EngineStats:
        """Totals so far."""
        return EngineStats(
            passes=self._passes,
            prompt_tokens_reused=self._reused,
            prompt_tokens_computed=self._computed,
            tokens_generated=self._generated,
            jobs_active=len(self._jobs),
            sequences_cached=self._cache.count,
            sequences_in_use=self._cache.in_use,
            kv_bytes=self._cache.nbytes,
            kv_bytes_limit=self._cache.limit_bytes,
            weight_bytes=self.model.nbytes,
            drafting=self.drafts.figures if self.drafts else (),
            lanes=count_by_lane((one.lane, one.kv is not None) for one in self._jobs.values()),
            kv_by_document=self._cache.bytes_by_document(),
        )

    def close(self) -> None:
        """Drop all jobs and KV. The weights go with the engine itself."""
        self._jobs.clear()
        self._cache.clear()

    def _prefill(self, running: _Running) -> Event:
        prompt, base = running.job.prompt, running.base
        if running.kv is None:
            # Only now, not in `add`: by now an older job may have computed what this one needs.
            word = len(running.job.unfinished.text) if running.job.unfinished else 0
            room = len(prompt) + running.job.max_new_tokens + word + SPARE_SLOTS
            kv = self._cache.acquire(
                prompt[:base],
                room,
                fresh=running.job.fresh,
                spare=running.lane is Lane.BACKGROUND,
            )
            if kv is None:
                return running.event(finish=Finish.NO_ROOM)
            running.kv = kv
            kv.document, kv.front = running.job.document, running.job.front
            if kv.line == base and base - 1 not in kv.rows:
                # Its logits are needed and were not kept: once more.
                kv.straighten(TreePath(base - 1, ()))
            running.reused = kv.line
            if kv.line == base:
                running.reused += len(kv.follow(base - 1, prompt[base:]))
            self._reused += running.reused
        kv = running.kv
        if kv.line < base:
            self._advance(running, kv)
        if kv.line < base:
            return running.event()
        running.tip = base - 1
        if self.drafts and running.job.max_new_tokens > max(1, len(running.job.given)):
            running.drafts = self.drafts.of(running.job, prompt[:base])
        if running.job.unfinished:
            return self._cover(running, kv, running.job.unfinished)
        return self._produce(running, kv.rows[base - 1])

    def _chunk_of(self, running: _Running) -> int:
        """Most prompt tokens of a step. A keystroke that goes before this job waits for the step."""
        small = max(MIN_CHUNK, self._chunk // SMALL_CHUNK)
        if self._turns.goes_first(running):
            return small if running.lane is Lane.BACKGROUND else self._chunk
        return MIN_CHUNK if self._turns.user_is_active else small

    def _advance(self, running: _Running, kv: KvSequence) -> None:
        """Put the next chunk of the prompt through the model, its unfinished word included."""
        prompt, base = running.job.prompt, running.base
        start = kv.line
        if kv.length > start and len(prompt) - start <= SHORT:
            count = self._grow(kv, [(start - 1, prompt[start:])])
            kv.straighten(kv.find(list(prompt[:base])))
        else:
            kv.cut(start)
            tokens = prompt[start : start + self._chunk_of(running)]
            count, end = len(tokens), start + len(tokens)
            rows = self._forward(tokens, kv, max(0, end - max(start, base - 1)))
            kv.extend(tokens)
            for slot, row in zip(range(end - len(rows), end), rows, strict=True):
                kv.keep_row(slot, row)
        self._count(running, count)

    def _cover(self, running: _Running, kv: KvSequence, word: Unfinished) -> Event:
        """The first tokens where the prompt ends in an unfinished word."""
        job, base = running.job, running.base
        assert self._vocabulary is not None

        def known(branch: Branch) -> Floats | None:
            slots = kv.follow(base - 1, branch)
            row = kv.rows.get(slots[-1] if slots else base - 1)
            return row.numpy() if row is not None and len(slots) == len(branch) else None

        def look_into(branches: Sequence[Branch]) -> list[Floats]:
            self._count(running, self._grow(kv, [(base - 1, branch) for branch in branches]))
            found = [known(branch) for branch in branches]
            return [row for row in found if row is not None]

        covered = Covering(
            text=word.text,
            known=known,
            look_into=look_into,
            vocabulary=self._vocabulary,
            sampling=job.sampling,
            position=base,
            banned=running.banned,
            others=job.others,
        ).choose()
        tokens = covered.tokens
        self._count(running, self._grow(kv, [(base - 1, tokens[:-1])]))  # as a rule it is there
        running.tip = ([base - 1, *kv.follow(base - 1, tokens[:-1])])[-1]
        kept = running.kept(covered)
        self._note(running, kept)
        return running.covered(covered, kept)

    def _note(self, running: _Running, tokens: Sequence[int]) -> None:
        running.output += tokens
        self._generated += len(tokens)
        if running.drafts:
            running.drafts.produced(tokens)

    def _decode(self, running: _Running) -> Event:
        kv, began = running.kv, time.perf_counter()
        assert kv is not None
        if running.still_given:
            return self._read_given(running, kv)
        last = running.output[-1]
        slot = kv.after(running.tip, last)
        if running.guesses and slot == running.guesses[0]:
            del running.guesses[0]
        else:
            self._drop_guesses(running, kv)
        if slot is None or slot not in kv.rows:
            self._guess(running, kv, last)
            slot = kv.after(running.tip, last)
            assert slot is not None
        running.tip = slot
        row = kv.rows[slot] if len(running.output) < KEPT_ROWS else kv.rows.pop(slot)
        event = self._produce(running, row)
        if running.drafts:
            running.drafts.spent(time.perf_counter() - began)
        return event

    def _read_given(self, running: _Running, kv: KvSequence) -> Event:
        """Put tokens of the output that need not be chosen through the model, several at once."""
        tokens = running.still_given[:GIVEN]
        before = (running.output[-1], *tokens[:-1])
        tip, rows = running.tip, list[torch.Tensor]()
        for token in before:  # what is there already
            slot = kv.after(tip, token)
            if slot is None or slot not in kv.rows:
                break
            tip = slot
            rows.append(kv.rows[slot])
        if missing := before[len(rows) :]:
            nodes = chain(tip, missing, kv.length)
            self._cache.grow(kv, kv.length + len(nodes))
            new = self._forward(missing, kv, len(nodes), kv.view(nodes))
            rows += new
            # What was only to be read is not kept: nobody types there.
            if running.produced + len(tokens) < running.job.max_new_tokens:
                for tip, row in zip(kv.branch(nodes), new, strict=True):
                    kv.keep_row(tip, row)
        running.tip = tip
        logprobs = [logprob_of(row.numpy(), token) for row, token in zip(rows, tokens, strict=True)]
        self._note(running, tokens)
        return running.event(tokens, tuple(logprobs), running.full)

    def _guess(self, running: _Running, kv: KvSequence, last: int) -> None:
        """Put the last token through the model, with a draft of what follows it and, where somebody
        types, the word as it was typed: the next keystroke, if it is not the one that is foreseen
        here, most likely goes on from there."""
        prompt, base = running.job.prompt, running.base
        is_typed = running.lane is not Lane.BACKGROUND and len(prompt) - base <= SHORT
        ahead = [(base - 1, prompt[base:])] if is_typed else []
        left = running.job.max_new_tokens - running.produced
        draft = running.drafts.propose(left - 1) if running.drafts else ()
        start = kv.length
        branches = [(running.tip, (last,)), *ahead, (running.tip, (last, *draft))]
        grown = self._grow(kv, branches)
        running.guesses = kv.follow(running.tip, (last, *draft))[1:]
        guessed = sum(slot >= start for slot in running.guesses)
        running.first_guess = kv.length - guessed
        self._count(running, grown - guessed - 1)

    def _drop_guesses(self, running: _Running, kv: KvSequence) -> None:
        """Forget what is left of a draft, but for the token that was chosen last."""
        guesses, running.guesses = running.guesses, []
        if guesses and kv.after(running.tip, running.output[-1]) == guesses[0]:
            del guesses[0]
        if guesses:
            kv.drop(max(guesses[0], running.first_guess))

    def _count(self, running: _Running, prompt_tokens: int) -> None:
        running.computed += prompt_tokens
        self._computed += prompt_tokens

    def _grow(self, kv: KvSequence, branches: Sequence[tuple[int, Branch]]) -> int:
        """Compute what is missing of branches (the slot that each follows, and its tokens) in one
        pass, and keep their logits; returns how many tokens that were."""
        nodes: list[Node] = []
        new: dict[Node, int] = {}
        for slot, branch in branches:
            for token in branch:
                found = new.get((slot, token), kv.after(slot, token))
                if found is None or (found < kv.length and found not in kv.rows):
                    found = new[slot, token] = kv.length + len(nodes)
                    nodes.append((slot, token))
                slot = found
        if nodes:
            self._cache.grow(kv, kv.length + len(nodes))
            tokens = [token for _, token in nodes]
            rows = self._forward(tokens, kv, len(nodes), kv.view(nodes))
            for slot, row in zip(kv.branch(nodes), rows, strict=True):
                kv.keep_row(slot, row)
        return len(nodes)

    def _forward(
        self,
        tokens: Sequence[int],
        kv: KvSequence,
        logits_of: int,
        view: View | None = None,
    ) -> torch.Tensor:
        self._passes += 1
        return self.model.forward(tokens, kv, logits_of, view)

    def _produce(self, running: _Running, logits: torch.Tensor) -> Event:
        job = running.job
        position = running.base + len(running.output)
        banned = running.banned
        place, row = len(running.output), logits.numpy()
        if given := running.still_given:
            self._note(running, given[:1])
            return running.event(given[:1], (logprob_of(row, given[0]),), running.full)
        token, logprob = choose(row, job.sampling, position, banned)
        found = others(row, job.others, token, banned) if job.others else ()
        beside = tuple(Other(place, (other,), (chance,)) for other, chance in found)
        if token in job.stop_token_ids:
            return running.event(finish=Finish.STOP, stop_logprob=logprob, others=beside)
        self._note(running, (token,))
        return running.event((token,), (logprob,), running.full, others=beside)


def _read(folder: Path, settings: EngineSettings, native: Native | None) -> Model:
    try:
        return Llama.read(folder, settings.weights, native)
    except UnknownModel as error:
        _log.warning(
            "%s It is left to transformers, in float32, whatever engine.weights says.", error
        )
    from completion_ls.engines.transformers_model import TransformersModel

    return TransformersModel.read(folder)
