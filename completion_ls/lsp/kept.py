"""How much of an accepted text stands there a while later.

Its place is followed through later edits. The text itself is held in memory until the last look.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from urllib.parse import unquote

from completion_ls.decode.tokens import common_prefix
from completion_ls.lsp.documents import Document, Place, Stretch, clean

AFTER_S = (30.0, 300.0)
PIECES = re.compile(r"\w+|\s+|.")
ROOM = 1000
"""What stands at the place now is looked at for four times the text's length and so many characters:
where a whole file was replaced, its place is all of that."""


@dataclass(slots=True, eq=False)
class _Accepted:
    document: Document
    stretch: Stretch
    text: str
    model: str
    looks: dict[int, asyncio.TimerHandle] = field(default_factory=dict)


class Kept:
    """Looks at accepted texts after some times.

    Each look is told to `judged`: the model, which look it is, the characters that were accepted, and
    how many of them there are. Where a document is closed, or the window, it is looked at then, and
    that counts for all looks that are left.
    """

    def __init__(
        self,
        judged: Callable[[str, int, int, int], None],
        after_s: Sequence[float] = AFTER_S,
    ) -> None:
        self._judged = judged
        self._after_s = after_s
        self._accepted: list[_Accepted] = []

    def watch(self, document: Document, start: Place, end: Place, model: str) -> None:
        """The text between two places was accepted just now."""
        one = _Accepted(document, Stretch(start, end), clean(document.between(start, end)), model)
        document.follow(one.stretch)
        self._accepted.append(one)
        loop = asyncio.get_running_loop()
        for number, after_s in enumerate(self._after_s):
            one.looks[number] = loop.call_later(after_s, self._look, one, number)

    def close(self, uri: str | None = None) -> None:
        """A document was closed; without one, all were."""
        for one in list(self._accepted):
            if uri is None or unquote(one.document.uri) == unquote(uri):
                for number in list(one.looks):
                    self._look(one, number)

    def _look(self, one: _Accepted, number: int) -> None:
        one.looks.pop(number).cancel()
        now = clean(one.document.between(one.stretch.start, one.stretch.end))
        self._judged(one.model, number, len(one.text), kept_characters(one.text, now))
        if not one.looks:
            one.document.unfollow(one.stretch)
            self._accepted.remove(one)


def kept_characters(accepted: str, now: str) -> int:
    """How many characters of a text there are in what stands in its place, in their order: those of
    its beginning and end, and between them whole words and marks."""
    if accepted in now:
        return len(accepted)
    now = now[: 4 * len(accepted) + ROOM]
    head = common_prefix(accepted, now)
    tail = common_prefix(accepted[head:][::-1], now[head:][::-1])
    before = PIECES.findall(accepted[head : len(accepted) - tail])
    after = PIECES.findall(now[head : len(now) - tail])
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    there = sum(len(piece) for at, _, size in blocks for piece in before[at : at + size])
    return head + there + tail
