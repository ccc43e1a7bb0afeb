"""KV caches kept between jobs, reused by longest common token prefix, within a memory cap."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence

import torch

from completion_ls.engines.model import KvShape
from completion_ls.engines.tree import KvSequence, TreePath

_log = logging.getLogger(__name__)

BLOCK = 128
"""Sequences grow by multiples of so many tokens."""
EXPENDABLE = 64
"""A new job may drop so many prompt tokens of an idle sequence that it takes over; if it would drop
more, it copies what is common. Computing this many again costs about what the copy costs."""


class KvCache:
    """All sequences of one engine. A sequence in use may be copied from, never written or dropped.

    The cap counts whole allocations, used or not. Sequences in use alone may exceed it: a running
    job is not broken for it. Idle ones never do, once that job has ended (the logits that it keeps
    are counted then).
    """

    def __init__(self, shape: KvShape, limit_bytes: int) -> None:
        self._shape = shape
        self._limit = limit_bytes
        self._sequences: list[KvSequence] = []
        self._clock = 0
        self.favoured: Hashable = None
        """The sequences of this front are dropped last, the last used ones of them, as far as they have no
        more than half of the memory."""

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

    @property
    def in_use(self) -> int:
        """How many of them belong to a job."""
        return sum(sequence.in_use for sequence in self._sequences)

    def bytes_by_document(self) -> dict[str, int]:
        """Bytes of the sequences by the document that they were used for last."""
        found = Counter[str]()
        for sequence in self._sequences:
            found[sequence.document] += sequence.nbytes
        return dict(found)

    def acquire(
        self, prompt: Sequence[int], room: int, *, fresh: bool = False, spare: bool = False
    ) -> KvSequence | None:
        """A sequence for a job, marked in use: its line is a beginning of `prompt`, perhaps all of
        it, and it holds `room` tokens without growing. An idle sequence is taken over, with its
        branches, where that loses little of it or there is no room for two; otherwise the common
        beginning is copied. A `fresh` one is empty. To `spare` is to give way (None) where there is
        no room beside the sequence that was used last.
        """
        wanted = list(prompt)
        capacity = -(-room // BLOCK) * BLOCK
        source, path = (None, TreePath(0, ())) if fresh else self._best(wanted)
        if source is not None and not source.in_use:
            kept = min(source.prompt_length, source.line)
            takes_little = kept - path.common <= EXPENDABLE
            if takes_little or not (spare or self._fits(capacity, source)):
                source.straighten(path)
                self._mark(source, wanted)
                self.grow(source, capacity)
                return source
        newest = max(self._sequences, key=lambda one: one.last_used, default=None)
        if spare and not self._fits(capacity, source, newest):
            return None
        sequence = KvSequence([])
        self._make_room(capacity * self._shape.nbytes, source)
        sequence.layers = [self._shape.empty(capacity) for _ in range(self._shape.layers)]
        if source is not None:
            slots = torch.tensor([*range(path.common), *path.slots])
            for new, old in zip(sequence.layers, source.layers, strict=True):
                new[:, :, : len(slots)] = old[:, :, slots]
            sequence.extend(wanted[: len(slots)])
            if (row := source.rows.get(path.end)) is not None:
                sequence.keep_row(len(slots) - 1, row)
        self._sequences.append(sequence)
        self._mark(sequence, wanted)
        return sequence

    def grow(self, sequence: KvSequence, slots: int) -> None:
        """Make room for so many slots in a sequence that is in use."""
        if slots <= sequence.capacity:
            return
        capacity = -(-slots // BLOCK) * BLOCK
        self._make_room((capacity - sequence.capacity) * self._shape.nbytes, sequence)
        try:
            # Layer by layer, so that only one layer is there twice.
            for index, old in enumerate(sequence.layers):
                new = self._shape.empty(capacity)
                new[:, :, : sequence.length] = old[:, :, : sequence.length]
                sequence.layers[index] = new
        except BaseException:
            self.discard(sequence)
            raise

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
        if sequence in self._sequences:
            self._sequences.remove(sequence)

    def clear(self) -> None:
        """Forget everything."""
        self._sequences.clear()

    def _best(self, wanted: list[int]) -> tuple[KvSequence | None, TreePath]:
        """The sequence with the longest beginning of a text, and where it is there; of equals an
        idle one, then the one that loses least."""
        best: tuple[int, bool, int, int] = (0, False, 0, 0)
        found, where = None, TreePath(0, ())
        for sequence in self._sequences:
            path = sequence.find(wanted)
            rank = (len(path), not sequence.in_use, -sequence.length, sequence.last_used)
            if path and (found is None or rank > best):
                best, found, where = rank, sequence, path
        return found, where

    def _fits(self, capacity: int, *kept: KvSequence | None) -> bool:
        """Whether a new sequence has room when all idle ones go but those that are `kept`."""
        fixed = sum(one.nbytes for one in self._sequences if one.in_use or one in kept)
        return fixed + capacity * self._shape.nbytes <= self._limit

    def _mark(self, sequence: KvSequence, wanted: list[int]) -> None:
        sequence.prompt_length = len(wanted)
        sequence.in_use = True
        self._touch(sequence)

    def _touch(self, sequence: KvSequence) -> None:
        self._clock += 1
        sequence.last_used = self._clock

    def _spared(self) -> list[KvSequence]:
        """Those of the favoured front that are dropped last."""
        found: list[KvSequence] = []
        left = self._limit // 2
        for sequence in sorted(self._sequences, key=lambda sequence: -sequence.last_used):
            if sequence.front == self.favoured and sequence.nbytes <= left:
                left -= sequence.nbytes
                found.append(sequence)
        return found

    def _make_room(self, extra: int, keep: KvSequence | None = None) -> None:
        """Drop idle sequences, longest unused first, until `extra` bytes fit under the cap."""
        idle = [s for s in self._sequences if not s.in_use and s is not keep]
        spared = self._spared()
        idle.sort(key=lambda sequence: (sequence in spared, sequence.last_used))
        excess = self.nbytes + extra - self._limit
        for sequence in idle:
            if excess <= 0:
                return
            excess -= sequence.nbytes
            self._sequences.remove(sequence)
