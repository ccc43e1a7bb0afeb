"""Which of a server's slots a prompt goes into.

A slot holds the KV of one prompt. A document keeps its slot, so that the next key finds what it needs
there; work ahead of the user goes elsewhere, or waits until it is wanted, since it would overwrite that.
Others may use the server, too: a slot in which less was left than we had put there was taken by somebody,
and we move on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from completion_ls.decode.tokens import common_prefix

Held = tuple[int, ...]
"""A prompt: its tokens, or the code points of its text."""


@dataclass(slots=True)
class _Slot:
    held: Held = ()
    """A prompt and its answer, ..."""
    typed: int = 0
    """... of which so much is the prompt."""
    document: str = ""
    used: int = 0
    """By count, not time."""


class Slots:
    """What each slot holds, as far as we know."""

    def __init__(self, number: int) -> None:
        self._slots = [_Slot() for _ in range(number)]
        self._clock = 0
        self._in_use = [0] * number
        """Requests of ours that are being answered."""

    @contextmanager
    def using(self, number: int) -> Iterator[None]:
        """A request is being answered in this slot."""
        self._in_use[number] += 1
        try:
            yield
        finally:
            self._in_use[number] -= 1

    def of(self, document: str, prompt: Held) -> int | None:
        """The slot that has most of this prompt: that of the document, or one that nobody types in and that
        has half of it, since it was read ahead. None where there is none."""
        found = []
        for number, slot in enumerate(self._slots):
            common = common_prefix(slot.held, prompt)
            read_ahead = not slot.document and 2 * common >= len(prompt)
            if slot.used and (slot.document == document or read_ahead):
                found.append((common, slot.used, number))
        return max(found)[2] if found else None

    def expected(self, number: int, prompt: Held) -> int:
        """How many tokens (or characters) of a prompt are in a slot, unless somebody else has used it."""
        return common_prefix(self._slots[number].held, prompt)

    def another(self, idle: Sequence[int]) -> int:
        """A slot for a document that has none: one where we are not being answered and, at best, the server
        does nothing, that we have not used for longest."""
        numbers = list(range(len(self._slots)))
        random.shuffle(numbers)  # two windows of one team begin at different ends

        def order(number: int) -> tuple[int, bool, int]:
            return self._in_use[number], number not in idle, self._slots[number].used

        return min(numbers, key=order)

    def ahead(self, prompt: Held) -> int | None:
        """A slot for work ahead of the user: where the prompt goes on from one that is held, or where nothing
        is that a document of ours was typed in; None where that would cost what is being typed."""
        for number, slot in enumerate(self._slots):
            if slot.used and common_prefix(slot.held, prompt) >= slot.typed:
                return number
        spare = [number for number, slot in enumerate(self._slots) if not slot.document]
        return min(spare, key=lambda number: self._slots[number].used) if spare else None

    def put(self, number: int, document: str, prompt: Held, answer: Held = ()) -> None:
        """A prompt goes into a slot, and what has come of its answer; `document` is empty for work ahead. A
        document has one slot: in the one that it leaves others may be read ahead."""
        self._clock += 1
        slot = self._slots[number]
        if document:
            for other in self._slots:
                if other.document == document:
                    other.document = ""
        elif common_prefix(slot.held, prompt) >= slot.typed:
            document = slot.document  # it goes on from there, and so will the document
        self._slots[number] = _Slot((*prompt, *answer), len(prompt), document, self._clock)

    def was_taken(self, number: int) -> None:
        """Somebody else uses it: nobody of ours has it any more."""
        self._slots[number] = _Slot(used=self._clock)
