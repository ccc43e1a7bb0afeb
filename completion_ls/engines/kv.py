"""KV caches kept between jobs, reused by longest common token prefix, within a memory cap."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from completion_ls.engines.shape import LlamaShape

_log = logging.getLogger(__name__)

BLOCK = 128
"""Sequences grow by multiples of so many tokens."""
EXPENDABLE = 64
"""A new job may drop so many prompt tokens of an idle sequence that it takes over; if it would drop
more, it copies what is common. Computing this many again costs about what the copy costs."""


@dataclass(slots=True, eq=False)
class KvSequence:
    """Keys and values of one token sequence (a `llama.KvStore`)."""

    layers: list[Tensor]
    """Per layer [2, kv_heads, capacity, head_dim]."""
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are there."""
    logits: dict[int, Tensor] = field(default_factory=dict)
    """Logits [vocabulary] behind some tokens, by index: those at the end of the last prompt, where
    the next keystroke looks again."""
    prompt_length: int = 0
    """How many of them, from the start, were the last job's prompt; what that job generated behind
    it is cheap to lose."""
    in_use: bool = False
    last_used: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> None:
        """Forget what is behind the first `length` tokens."""
        del self.tokens[length:]
        self.logits = {index: row for index, row in self.logits.items() if index < length}

    @property
    def capacity(self) -> int:
        return self.layers[-1].shape[2]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self.layers, *self.logits.values()))


class KvCache:
    """All sequences of one engine. A sequence in use may be copied from, never written or dropped.

    The cap counts whole allocations, used or not. Sequences in use alone may exceed it: a running
    job is not broken for it. Idle ones never do.
    """

    def __init__(self, shape: LlamaShape, limit_bytes: int) -> None:
        self._shape = shape
        self._limit = limit_bytes
        self._sequences: list[KvSequence] = []
        self._clock = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all sequences."""
        return sum(sequence.nbytes for sequence in self._sequences)

    @property
    def limit_bytes(self) -> int:
        """The cap."""
        return self._limit

    @property
    def count(self) -> int:
        """How many sequences there are, in use or idle."""
        return len(self._sequences)

    def acquire(self, prompt: Sequence[int], room: int) -> KvSequence:
        """A sequence for a job, marked in use: its tokens are a prefix of `prompt`, perhaps all of
        it, and it holds `room` tokens without growing. An idle sequence is taken over where that
        loses little of it, otherwise the common prefix is copied.
        """
        wanted = list(prompt)
        capacity = -(-room // BLOCK) * BLOCK
        source, common = self._best(wanted)
        if source is not None and not source.in_use:
            kept = min(source.prompt_length, source.length)
            if kept - common <= EXPENDABLE or not self._fits(source, capacity):
                return self._take_over(source, common, wanted, capacity)
        sequence = KvSequence([])
        self._make_room(self._bytes_of(capacity), source)
        sequence.layers = [self._empty(capacity) for _ in range(self._shape.layers)]
        if source is not None:
            for new, old in zip(sequence.layers, source.layers, strict=True):
                new[:, :, :common] = old[:, :, :common]
        sequence.tokens = wanted[:common]
        if source is not None:
            sequence.logits = {n: row for n, row in source.logits.items() if n < common}
        self._sequences.append(sequence)
        return self._mark(sequence, wanted)

    def release(self, sequence: KvSequence) -> None:
        """The job is done or dropped; its sequence stays for reuse as far as the cap allows."""
        sequence.in_use = False
        self._touch(sequence)
        if sequence.nbytes > self._limit:
            _log.warning(
                "One job needs %d MiB of KV, more than engine.kv_memory_mb allows, so nothing of "
                "it is kept and every completion computes its whole prompt. Raise "
                "engine.kv_memory_mb or lower prompt.max_tokens.",
                -(-sequence.nbytes // 2**20),
            )
        self._make_room(0)

    def discard(self, sequence: KvSequence) -> None:
        """Forget a sequence whose job failed."""
        self._sequences.remove(sequence)

    def clear(self) -> None:
        """Forget everything."""
        self._sequences.clear()

    def _best(self, wanted: list[int]) -> tuple[KvSequence | None, int]:
        """The sequence with the longest prefix in common and that prefix's length; of equals an
        idle one, then the one that loses least."""
        best: tuple[int, bool, int, int] = (0, False, 0, 0)
        found = None
        for sequence in self._sequences:
            common = common_prefix(sequence.tokens, wanted)
            rank = (common, not sequence.in_use, -sequence.length, sequence.last_used)
            if common > 0 and (found is None or rank > best):
                best, found = rank, sequence
        return found, best[0]

    def _fits(self, source: KvSequence, capacity: int) -> bool:
        """Whether a new sequence has room beside `source` when all other idle ones go."""
        fixed = sum(s.nbytes for s in self._sequences if s.in_use or s is source)
        return fixed + self._bytes_of(capacity) <= self._limit

    def _take_over(
        self, sequence: KvSequence, common: int, wanted: list[int], capacity: int
    ) -> KvSequence:
        sequence.cut(common)
        if sequence.capacity < capacity:
            self._make_room(self._bytes_of(capacity) - sequence.nbytes, sequence)
            try:
                # Layer by layer, so that only one layer is there twice.
                for index, old in enumerate(sequence.layers):
                    new = self._empty(capacity)
                    new[:, :, :common] = old[:, :, :common]
                    sequence.layers[index] = new
            except BaseException:
                self.discard(sequence)
                raise
        return self._mark(sequence, wanted)

    def _mark(self, sequence: KvSequence, wanted: list[int]) -> KvSequence:
        sequence.prompt_length = len(wanted)
        sequence.in_use = True
        self._touch(sequence)
        return sequence

    def _touch(self, sequence: KvSequence) -> None:
        self._clock += 1
        sequence.last_used = self._clock

    def _make_room(self, extra: int, keep: KvSequence | None = None) -> None:
        """Drop idle sequences, longest unused first, until `extra` bytes fit under the cap."""
        idle = [s for s in self._sequences if not s.in_use and s is not keep]
        idle.sort(key=lambda sequence: sequence.last_used)
        excess = self.nbytes + extra - self._limit
        for sequence in idle:
            if excess <= 0:
                return
            excess -= sequence.nbytes
            self._sequences.remove(sequence)

    def _empty(self, capacity: int) -> Tensor:
        return torch.empty(2, self._shape.kv_heads, capacity, self._shape.head_dim)

    def _bytes_of(self, capacity: int) -> int:
        shape = self._shape
        return shape.layers * 2 * shape.kv_heads * capacity * shape.head_dim * 4


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many tokens `a` and `b` have in common at the start.

    Halves the unknown part with slice comparisons, which run in C: a loop over 2,000 tokens and
    some sequences would cost a visible part of a one-token pass.
    """
    known, end = 0, min(len(a), len(b))
    while known < end:
        middle = (known + end + 1) // 2
        if a[known:middle] == b[known:middle]:
            known = middle
        else:
            end = middle - 1
    return known
