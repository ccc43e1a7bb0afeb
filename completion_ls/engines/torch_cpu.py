"""The engine that needs no card: a float32 forward on the CPU, one sequence per pass."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from tokenizers import Tokenizer

from completion_ls.config.settings import EngineSettings
from completion_ls.decode.covering import Floats, choose_covering
from completion_ls.decode.sampling import choose
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import (
    EngineStats,
    Event,
    Finish,
    Job,
    JobFailed,
    Lane,
    Unfinished,
)
from completion_ls.engines.kv import KvCache, KvSequence, common_prefix
from completion_ls.engines.llama import Llama


@dataclass(slots=True, eq=False)
class _Running:
    """A job and how far it is."""

    job: Job
    lane: Lane
    kv: KvSequence | None = None
    reused: int = 0
    computed: int = 0
    output: list[int] = field(default_factory=list)
    first_tokens: int = 1
    """How many tokens of the output came with the prefill."""

    @property
    def prefilled(self) -> bool:
        return self.reused + self.computed == len(self.job.prompt)

    @property
    def looked_at(self) -> range:
        """Indices of prompt tokens whose logits give the first tokens of the output."""
        return range(len(self.job.prompt) - self.word_tokens - 1, len(self.job.prompt))

    @property
    def word_tokens(self) -> int:
        """Tokens at the prompt's end that the output takes the place of."""
        return self.job.unfinished.tokens if self.job.unfinished else 0


class TorchCpuEngine:
    """`contract.Engine` on the CPU.

    In the lowest lane that has jobs, the newest job that is not prefilled goes first, one chunk of
    `prefill_chunk` tokens per step, so that a fresh keystroke never waits for an older one's
    decode; then the jobs decode in turn, one token of one job per step. The step that ends a
    prefill also gives the first token.
    """

    def __init__(
        self,
        model: Llama,
        settings: EngineSettings,
        max_context: int,
        vocabulary: Vocabulary | None,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._chunk = settings.prefill_chunk
        self._max_context = max_context
        self._cache = KvCache(model.shape, settings.kv_memory_mb * 2**20)
        # In the order of arrival; a job that decoded moves to the end.
        self._jobs: dict[int, _Running] = {}
        self._passes = self._reused = self._computed = self._generated = 0

    @classmethod
    def load(
        cls, folder: Path, settings: EngineSettings, max_context: int | None = None
    ) -> TorchCpuEngine:
        """Read a Hugging Face folder (config.json and safetensors) into memory as float32.

        `max_context` lowers the model's own limit of tokens per job. A tokenizer.json is needed only
        for jobs with an unfinished word. Sets torch's thread count for
        the whole process. Raises ValueError (a sentence) when the folder cannot be served.
        """
        torch.set_num_threads(settings.threads or _physical_cores())
        model = Llama.read(folder)
        limit = model.shape.context
        tokenizer = folder / "tokenizer.json"
        return cls(
            model,
            settings,
            limit if max_context is None else min(limit, max_context),
            Vocabulary(Tokenizer.from_file(str(tokenizer))) if tokenizer.exists() else None,
        )

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, that one job may have."""
        return self._max_context

    def add(self, job: Job) -> None:
        """Accept a job; nothing is computed yet. Raises ValueError (a sentence) when it is empty,
        does not fit, names tokens that the model does not have, or its id is in use."""
        total = len(job.prompt) + job.max_new_tokens
        if job.id in self._jobs:
            raise ValueError(f"A job with the id {job.id} is still running; give each its own id.")
        if not job.prompt or job.max_new_tokens < 1:
            raise ValueError("A job needs at least one prompt token and one token to produce.")
        if total > self._max_context:
            raise ValueError(
                f"The job has {len(job.prompt)} prompt tokens and asks for {job.max_new_tokens} "
                f"more, but the context holds {self._max_context}. Shorten one of them."
            )
        if not 0 <= min(job.prompt) <= max(job.prompt) < self._model.shape.vocabulary:
            raise ValueError(
                f"The prompt has token ids outside 0 to {self._model.shape.vocabulary - 1}; it was "
                "made with another model's tokenizer."
            )
        if job.unfinished and (not self._vocabulary or len(job.prompt) <= job.unfinished.tokens):
            raise ValueError(
                "An unfinished word needs a token before it, and a model with a tokenizer.json."
            )
        self._jobs[job.id] = _Running(job, job.lane)

    def cancel(self, job_id: int) -> None:
        """Drop a job: no event of it follows. Its KV stays for reuse. Unknown ids are ignored."""
        running = self._jobs.pop(job_id, None)
        if running is not None and running.kv is not None:
            self._cache.release(running.kv)

    def promote(self, job_id: int, lane: Lane) -> None:
        """Move a job to another lane. Unknown ids are ignored."""
        if running := self._jobs.get(job_id):
            running.lane = lane

    def step(self) -> list[Event]:
        """One prefill chunk or one decode pass of one job; no events when there is nothing to do.

        A job whose pass fails is dropped together with its KV and `JobFailed` is raised; the other
        jobs are as they were, so the caller reports this one and goes on stepping.
        """
        if not self._jobs:
            return []
        running = self._next()
        try:
            event = self._decode(running) if running.prefilled else self._prefill(running)
        except Exception as error:
            del self._jobs[running.job.id]
            if running.kv is not None:
                self._cache.discard(running.kv)
            raise JobFailed(running.job.id, error) from error
        if event.finish is not None:
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
            kv_bytes=self._cache.nbytes,
            kv_bytes_limit=self._cache.limit_bytes,
            weight_bytes=self._model.weights.nbytes,
        )

    def close(self) -> None:
        """Drop all jobs and KV. The weights go with the engine itself."""
        self._jobs.clear()
        self._cache.clear()

    def _next(self) -> _Running:
        lane = min(running.lane for running in self._jobs.values())
        inside = [running for running in self._jobs.values() if running.lane == lane]
        waiting = [running for running in inside if not running.prefilled]
        if waiting:
            return waiting[-1]
        first = inside[0]
        self._jobs[first.job.id] = self._jobs.pop(first.job.id)
        return first

    def _prefill(self, running: _Running) -> Event:
        prompt = running.job.prompt
        if running.kv is None:
            # Only now, not in `add`: by now an older job may have computed what this one needs.
            # The last token produced is never put through the model, so it needs no room.
            room = len(prompt) + running.job.max_new_tokens - 1
            if running.job.unfinished:
                room += len(running.job.unfinished.text)
            running.kv = self._cache.acquire(prompt, room)
            # The logits of these positions are needed: where they are not kept, the tokens before
            # them are computed again.
            missing = (n for n in running.looked_at if n not in running.kv.logits)
            running.kv.cut(next(missing, len(prompt)))
            running.reused = running.kv.length
            self._reused += running.reused
        kv, looked_at = running.kv, running.looked_at
        tokens = prompt[kv.length : kv.length + self._chunk]
        if tokens:
            end = kv.length + len(tokens)
            rows = self._pass(kv, tokens, sum(n < end for n in looked_at if n >= kv.length))
            # Cloned: a view would keep the rows of the whole pass.
            kept = (row.clone() for row in rows)
            kv.logits.update(zip(range(end - len(rows), end), kept, strict=True))
            running.computed += len(tokens)
            self._computed += len(tokens)
        if kv.length < len(prompt):
            return _event(running)
        kv.logits = {n: kv.logits[n] for n in looked_at}  # only those: a row is large
        logits = torch.stack([kv.logits[n] for n in looked_at])
        if running.job.unfinished:
            return self._cover(running, running.job.unfinished, logits)
        return self._produce(running, logits)

    def _cover(self, running: _Running, word: Unfinished, logits: torch.Tensor) -> Event:
        """The first tokens where the prompt ends in an unfinished word."""
        job, kv = running.job, running.kv
        assert kv is not None
        assert self._vocabulary is not None
        base = len(job.prompt) - word.tokens

        def go_to(branch: tuple[int, ...], logits_of: int) -> torch.Tensor | None:
            """Make the KV that of the prompt before the word and these tokens."""
            tail = kv.tokens[base:]
            same = common_prefix(tail, list(branch))
            if logits_of:  # the last one is computed again where it is there already
                same = min(same, len(branch) - 1)
            kv.cut(base + same)
            return self._pass(kv, branch[same:], logits_of) if branch[same:] else None

        def look_into(branch: tuple[int, ...]) -> Floats:
            found = go_to(branch, 1)
            assert found is not None
            return found[-1].numpy()

        covered = choose_covering(
            word.text,
            job.prompt[base:],
            logits.numpy(),
            look_into=look_into,
            allowed=self._vocabulary.is_canonical,
            vocabulary=self._vocabulary,
            sampling=job.sampling,
            position=base,
        )
        go_to(covered.tokens[:-1], 0)
        stopped = covered.tokens[-1] in job.stop_token_ids
        kept = len(covered.tokens) - stopped
        running.output += covered.tokens[:kept]
        running.first_tokens = len(covered.tokens)
        self._generated += kept
        finish = Finish.STOP if stopped else self._full(running)
        return _event(running, covered.tokens[:kept], covered.logprobs[:kept], finish)

    def _full(self, running: _Running) -> Finish | None:
        """LENGTH when the job has what it asked for; an unfinished word counts as one token."""
        produced = len(running.output) - running.first_tokens + 1
        return Finish.LENGTH if produced >= running.job.max_new_tokens else None

    def _decode(self, running: _Running) -> Event:
        assert running.kv is not None
        return self._produce(running, self._pass(running.kv, running.output[-1:], 1))

    def _pass(
        self, kv: KvSequence, tokens: list[int] | tuple[int, ...], logits_of: int
    ) -> torch.Tensor:
        logits = self._model.forward(tokens, kv, logits_of)
        kv.tokens.extend(tokens)
        self._passes += 1
        return logits

    def _produce(self, running: _Running, logits: torch.Tensor) -> Event:
        job = running.job
        position = len(job.prompt) - running.word_tokens + len(running.output)
        token, logprob = choose(logits[-1].numpy(), job.sampling, position)
        if token in job.stop_token_ids:
            return _event(running, finish=Finish.STOP)
        running.output.append(token)
        self._generated += 1
        return _event(running, (token,), (logprob,), self._full(running))


def _event(
    running: _Running,
    tokens: tuple[int, ...] = (),
    logprobs: tuple[float, ...] = (),
    finish: Finish | None = None,
) -> Event:
    return Event(running.job.id, tokens, logprobs, running.reused, running.computed, finish)


def _physical_cores() -> int:
    """Physical cores, or fewer where this process may not run on all of them."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return min(cores, len(os.sched_getaffinity(0)))
    return cores
