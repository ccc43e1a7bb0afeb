"""What was offered to the editor, and what became of it: shown, accepted, rejected, kept.

What is shown stays one offer while the user types along it, however often it is asked for. A client
that has the capability says what the user does with it (`completionLs/didUseSuggestion`). One that
runs the command of an item says that all of it was accepted; and where a change puts in at once all
that was shown, it was accepted, too. An offer that is followed by another one, or by other text,
without any of that, was rejected, unless the user typed it out.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from lsprotocol import types

from completion_ls.lsp import count_file, messages
from completion_ls.lsp.counts import Counts
from completion_ls.lsp.documents import Document, Place, Stretch, clean
from completion_ls.lsp.kept import Kept

MOST = 64
"""So many offers can be accepted: the newest."""
MOST_LINES = 200
"""No text is longer, so what stands farther below its beginning is none of it."""
MENU = 9
"""The number of the completion menu's item; inline completion's own count from 0."""
LEAST_AT_ONCE = 4
"""Fewer characters that come at once may have been typed: an editor closes pairs, and some tell in one
change what was typed fast."""


@dataclass(slots=True, eq=False)
class _Offer:
    id: str
    document: Document
    model: str
    place: Stretch
    """It begins where the texts begin, and follows the edits."""
    source: object = None
    """The suggestion it comes from. Only where the text has come to its end that makes a difference."""
    texts: dict[int, str] = field(default_factory=dict)
    """The whole texts by the number of the item, as far as the editor has them."""
    own: int = 0
    """So many characters of them were not ours: typed, or of an item of the completion menu."""
    typed: int = 0
    """So many characters of one of the texts stand in the document ..."""
    number: int = 0
    """... and which one that is."""
    step: int = 0
    """So many of them came with the last change of that number."""
    is_used: bool = False
    is_accepted: bool = False
    is_rejected: bool = False

    @property
    def start(self) -> Place:
        return self.place.start

    @property
    def text(self) -> str:
        """The one that is being typed."""
        return self.texts.get(self.number, "")

    @property
    def is_typed_out(self) -> bool:
        return self.typed >= len(self.text)

    def before(self, place: Place) -> str | None:
        """What stands between its beginning and a place; None where that is elsewhere."""
        if not self.start <= place or place.line - self.start.line > MOST_LINES:
            return None
        return clean(self.document.between(self.start, place))

    def find(self, typed: str) -> tuple[int, int] | None:
        """How much of a text was typed, and of which; None where it is another text."""
        found = [
            (min(len(typed), len(text)), number)
            for number, text in self.texts.items()
            if text.startswith(typed) or typed.startswith(text)
        ]
        return max(found, key=lambda one: (one[0], -one[1]), default=None)


def is_alternative(number: int) -> bool:
    """Whether this item stands beside the first one, with another text."""
    return 0 < number < MENU


class Offers:
    """The offers of one editor window."""

    def __init__(self, counts: Counts, kept: Kept | None = None) -> None:
        self.is_told = False
        """The client says what the user does, so that nothing need be guessed."""
        self._counts = counts
        self._kept = kept or Kept(self._judged)
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._all: OrderedDict[str, _Offer] = OrderedDict()
        self._live: dict[Document, _Offer] = {}

    def offer(
        self,
        document: Document,
        start: Place,
        text: str,
        *,
        model: str,
        source: object = None,
        own: int = 0,
        number: int = 0,
    ) -> types.Command:
        """A text, with LF line ends, goes to the editor as the item of this number; it is to begin at
        `start`, and the first `own` characters of it are not the model's. Returns the item's command."""
        one = self._live.get(document)
        before = self._before(one, start, text, source, number) if one else None
        if one is None or before is None:
            if one:
                self._end(one)
            one, before = self._begin(document, start, model), ""
        if not is_alternative(number):
            one.texts = {n: other for n, other in one.texts.items() if other.startswith(before)}
        one.texts[number] = before + text
        one.source = source
        one.own = len(before) + own
        return types.Command("", messages.ACCEPTED, arguments=[f"{one.id}.{number}"])

    def changed(
        self, document: Document, begin: Place, cursors: Sequence[Place], inserted: int
    ) -> None:
        """A document changed by an insertion of so many characters at `begin`, and the cursor is probably
        at one of these places."""
        one = self._live.get(document)
        if one is None:
            return
        for cursor in cursors:
            typed = one.before(cursor)
            found = None if typed is None else one.find(typed)
            if found:
                break
        else:
            one.step = 0
            point = one.start.behind(one.text[: one.typed])
            if one.start.line <= begin.line <= point.line:
                self._end(one)  # elsewhere it may have been another cursor
            return
        if found[0] != one.typed:
            one.step = max(0, found[0] - one.typed)
        one.typed, one.number = found
        at_once = min(one.step, inserted)
        if not self.is_told and one.is_typed_out and at_once >= LEAST_AT_ONCE:
            self._accept(one, "accept", self._new(one))

    def used(self, suggestion: object, action: messages.Action, characters: int | None) -> None:
        """The user did something with an item, after its text went into the document. Junk, and what was
        offered long ago, is ignored; what was counted already is counted no more."""
        id, _, number = suggestion.partition(".") if isinstance(suggestion, str) else ("", "", "")
        one = self._all.get(id)
        if one is None or number not in map(str, one.texts):
            return
        if action == "reject":
            self._end(one)
        elif not one.is_accepted:
            new = self._new(one) if characters is None else min(max(characters, 0), one.typed)
            self._accept(one, action, new)

    def forget(self, uri: str) -> None:
        """A document was closed."""
        for one in list(self._all.values()):
            if unquote(one.document.uri) == unquote(uri):
                self._leave(one)
                del self._all[one.id]
        self._kept.close(uri)

    def close(self) -> None:
        """The window closes."""
        self._kept.close()

    def _begin(self, document: Document, start: Place, model: str) -> _Offer:
        self._count += 1
        one = _Offer(f"{self._prefix}-{self._count}", document, model, Stretch(start, start))
        document.follow(one.place)
        self._all[one.id] = self._live[document] = one
        if len(self._all) > MOST:
            _, old = self._all.popitem(last=False)
            old.document.unfollow(old.place)
            self._leave(old)
        self._counts.add(model, **{count_file.SHOWN: 1})
        return one

    def _before(
        self, one: _Offer, start: Place, text: str, source: object, number: int
    ) -> str | None:
        """What of an offer was typed, where this text is the rest of it; None where it is another."""
        before = one.before(start)
        if before is None:
            return None
        typed = one.find(before)
        if typed and typed[0] == len(one.texts[typed[1]]) and source is not one.source:
            return None  # the next one, after this one was typed out
        if is_alternative(number):
            agrees = any(other.startswith(before) for other in one.texts.values())
        else:
            agrees = one.find(before + text) is not None
        return before if agrees else None

    def _new(self, one: _Offer) -> int:
        """How many characters of the model's came with the last change."""
        return max(0, min(one.step, one.typed - one.own))

    def _accept(self, one: _Offer, action: messages.Action, characters: int) -> None:
        numbers = {_NAME[action]: 1}
        if one.is_rejected:
            numbers[count_file.REJECTED] = -1  # what went in looked like another text
            one.is_rejected = False
        begin, end = (
            one.start.behind(one.text[:size]) for size in (one.typed - characters, one.typed)
        )
        there = clean(one.document.between(begin, end))
        if there and there == one.text[one.typed - characters : one.typed]:
            numbers[count_file.CHARACTERS] = characters
            self._kept.watch(one.document, begin, end, one.model)
        self._counts.add(one.model, **numbers)
        one.is_used = True
        if action == "accept":
            one.is_accepted = True
            self._leave(one)

    def _end(self, one: _Offer) -> None:
        """Nothing more of it is shown."""
        self._leave(one)
        if not (one.is_used or one.is_typed_out or one.is_rejected):
            one.is_rejected = True
            self._counts.add(one.model, **{count_file.REJECTED: 1})

    def _leave(self, one: _Offer) -> None:
        one.source = None  # it holds much text
        if self._live.get(one.document) is one:
            del self._live[one.document]

    def _judged(self, model: str, look: int, characters: int, kept: int) -> None:
        numbers = {count_file.JUDGED[look]: characters, count_file.KEPT[look]: kept}
        self._counts.add(model, **numbers)


_NAME: dict[messages.Action, str] = {
    "accept": count_file.ACCEPTED,
    "acceptWord": count_file.WORDS,
    "acceptLine": count_file.LINES,
}
