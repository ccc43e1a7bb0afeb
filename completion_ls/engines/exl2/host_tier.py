"""Keys and values in host memory: pages that the card has no place for, until their text comes back.

All pages that one text had when it was last used are of one visit, and go together; a page that a
later text has, too, is of that visit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_log = logging.getLogger(__name__)

HOST_BYTES = 2 * 2**30
"""Room, unless somebody says otherwise."""
EXPENDABLE = 64
"""A last, partial page is not worth its place when a later one has all of it but so many tokens:
computing them takes one pass, which is about what the copy takes."""
TOKEN = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class PageText:
    """What a page is of, and found by: one with other text before it has other keys and values."""

    before: bytes | None
    """The chained hash of all pages before it; None for a text's first."""
    tokens: bytes
    """Their ids, int64, one behind the other."""

    def __len__(self) -> int:
        return len(self.tokens) // TOKEN.itemsize

    @property
    def ids(self) -> Tensor:
        """Their ids, int64 [tokens]."""
        return torch.frombuffer(bytearray(self.tokens), dtype=torch.int64)

    def common(self, other: PageText) -> int:
        """How many tokens of both agree, from the start."""
        if self.before != other.before:
            return 0
        most = min(len(self), len(other))
        one, two = (np.frombuffer(page.tokens, TOKEN, most) for page in (self, other))
        differ = np.flatnonzero(one != two)
        return int(differ[0]) if len(differ) else most

    def outdates(self, other: PageText) -> bool:
        """Whether `other`, an earlier and partial page, is not worth its place beside this one."""
        return self.common(other) >= len(other) - EXPENDABLE


@dataclass(slots=True, eq=False)
class _Kept:
    tensors: list[Tensor]
    nbytes: int
    partial: bool
    visit: int
    """When its text was last used."""


class HostTier:
    """Copies of pages, never more than `limit_bytes` of them; the visit that is longest ago is dropped
    first. Tensors of a page are given in one order always."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        """Bytes of all copies, as they are allocated."""
        self.saved = 0
        """Pages that were copied from the card, ..."""
        self.restored = 0
        """... and back, since this was made."""
        self._kept: dict[PageText, _Kept] = {}

    @property
    def pages(self) -> int:
        """How many there are."""
        return len(self._kept)

    def __contains__(self, text: PageText) -> bool:
        return text in self._kept

    def touch(self, text: PageText, visit: int) -> None:
        """Note that a page's text was used, if the page is here."""
        if kept := self._kept.get(text):
            kept.visit = max(kept.visit, visit)

    def best(self, text: PageText) -> tuple[PageText | None, int]:
        """The page that begins as `text` does for longest, and how many tokens that is."""
        found, most = None, 0
        for other in self._kept:
            if (common := text.common(other)) > most:
                found, most = other, common
        return found, most

    @torch.inference_mode()
    def save(self, text: PageText, page: Sequence[Tensor], visit: int, *, partial: bool) -> None:
        """Copy a page that was last used at `visit`, if it is worth a place and there is one: later
        visits keep theirs, and so do earlier pages of the same."""
        if text in self._kept:
            self.touch(text, visit)
            return
        others = [other for other in self._kept if other.before == text.before]
        if partial and any(
            other.outdates(text) for other in others if self._kept[other].visit >= visit
        ):
            return
        for other in others:
            kept = self._kept[other]
            if kept.partial and kept.visit < visit and text.outdates(other):
                self._drop(other)
        size = sum(map(_allocated, page))
        if not self._make_room(size, visit):
            return
        try:
            copies = [
                torch.empty(one.shape, dtype=one.dtype, pin_memory=one.is_cuda) for one in page
            ]
        except RuntimeError as error:
            self._shrink_to(self.nbytes // 2)
            _log.warning("no host memory for the KV cache: %s", type(error).__name__)
            return
        _copy(page, copies)
        self._kept[text] = _Kept(copies, size, partial, visit)
        self.nbytes += size
        self.saved += 1

    @torch.inference_mode()
    def restore(self, text: PageText, page: Sequence[Tensor]) -> bool:
        """Copy a page back. It stays here, too: to lose it again then costs nothing. False where it
        is not here."""
        kept = self._kept.get(text)
        if kept is None:
            return False
        _copy(kept.tensors, page)
        self.restored += 1
        return True

    def shrink(self) -> None:
        """Have half the room from now on: memory is short."""
        self._shrink_to(self.limit_bytes // 2)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.nbytes = 0

    def _make_room(self, size: int, visit: int) -> bool:
        """Drop earlier visits until there is room for `size` bytes more; none where that is not
        enough."""
        fixed = sum(kept.nbytes for kept in self._kept.values() if kept.visit >= visit)
        if fixed + size > self.limit_bytes:
            return False
        self._drop_to(self.limit_bytes - size)
        return True

    def _shrink_to(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._drop_to(limit_bytes)

    def _drop_to(self, nbytes: int) -> None:
        while self.nbytes > nbytes:
            oldest = min(kept.visit for kept in self._kept.values())
            for text in [text for text, kept in self._kept.items() if kept.visit == oldest]:
                self._drop(text)

    def _drop(self, text: PageText) -> None:
        self.nbytes -= self._kept.pop(text).nbytes


def _allocated(tensor: Tensor) -> int:
    """Bytes that a copy of it takes: those of pinned memory are rounded up to a power of two."""
    return 1 << (tensor.nbytes - 1).bit_length() if tensor.is_cuda else tensor.nbytes


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """All at once, between passes: the models run on streams of their own, and are waited for."""
    cards = {one.device for one in (*sources, *targets) if one.is_cuda}
    for card in cards:
        torch.cuda.synchronize(card)
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)
    for card in cards:
        torch.cuda.synchronize(card)
