"""Finished suggestions, to answer again without the engine wherever their text still fits.

A place is answered when a suggestion began there, or earlier on the way there, and all that was
typed since agrees with it, while everything around is as it was: backspace, undo, and coming back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, islice
from operator import attrgetter
from typing import Literal

from completion_ls.lsp import rules
from completion_ls.lsp.situation import CLOSER_OF, Situation, possible_closers, typed_since
from completion_ls.lsp.suggestion import Suggestion

MOST = 500
"""So many are kept, of all documents together: about 2 kB each."""
STRETCH = 256
"""What begins in the same so many columns of a line stands in one trie."""
MOST_TYPED = 1024
"""In a document longer than the window, a suggestion is not found farther from its start."""
CLOSERS = "".join(CLOSER_OF.values())


@dataclass(frozen=True, slots=True)
class _State:
    """A suggestion's start and what stands around it. The texts are digests: the windows
    themselves may have 400,000 characters each."""

    uri: str
    line: int
    column: int
    language: str
    context: bytes
    before: bytes
    after: bytes


@dataclass(slots=True, eq=False)
class _Entry:
    """A finished suggestion. The far ends of a long document's windows are kept as they are, since
    the cursor's moves carry parts of them out of sight; `state` has digests of the rest."""

    state: _State
    far_before: str
    far_after: str
    after_length: int
    after_is_cut: bool
    short: int
    offer: rules.Offer | None
    unasked: rules.Offer | None
    """What is offered of it to who did not ask by hand: a beginning of the offer, or nothing."""
    stopped: bool
    """The offer is not all that the model has to say: none for who asks by hand."""
    lead: str
    """The text of the start's line from the trie's column on."""
    path: str
    """The way through the trie: `lead` and the suggestion's text."""
    used: int

    @property
    def column(self) -> int:
        """That of the trie."""
        return self.state.column - len(self.lead)


_Trie = list[_Entry]
"""Sorted by path, and so a trie laid flat: what begins with the same text stands together."""
_path = attrgetter("path")


class Known:
    """The finished suggestions of all documents of one window; the least recently used fall out."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._clock = count()
        self._entries: dict[_State, _Entry] = {}  # the least recently used first
        self._tries: dict[tuple[str, int], dict[int, _Trie]] = {}  # of a line, by column
        self._most_lines = 0  # line ends of the text that has the most

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        start: Situation,
        offer: rules.Offer | None,
        *,
        unasked: rules.Offer | Literal["all"] | None = "all",
        stopped: bool = False,
    ) -> None:
        """Keep a finished suggestion: its offer, and what of it is offered unasked. `stopped`: by
        hand there would be more. One that had the same text around it gives way."""
        around = _Around(start)
        column = start.column - start.column % STRETCH
        lead = start.before[len(start.before) - (start.column - column) :]
        text = offer.text if offer else ""
        entry = _Entry(
            state=around.state(start.line, start.column, 0, 0),
            far_before=around.before(0)[0],
            far_after=around.after(0)[1],
            after_length=len(start.after),
            after_is_cut=start.after_is_cut,
            short=start.short,
            offer=offer,
            unasked=offer if unasked == "all" else unasked,
            stopped=stopped,
            lead=lead,
            path=lead + text,
            used=next(self._clock),
        )
        self._remove(entry.state)
        self._entries[entry.state] = entry
        insort(self._tries.setdefault(_line(entry), {}).setdefault(column, []), entry, key=_path)
        self._most_lines = max(self._most_lines, text.count("\n"))
        if len(self._entries) > self._most:
            self._remove(next(iter(self._entries)))

    def find(self, now: Situation) -> Suggestion | None:
        """The most recently used suggestion that has an answer at a place."""
        around = _Around(now)
        for entry, typed in sorted(self._fitting(now), key=lambda found: -found[0].used):
            offer = entry.offer if now.manual else entry.unasked
            if (now.manual and entry.stopped) or not _goes_on(offer, entry, typed):
                continue
            start = _start(entry, around, typed)
            if start is not None:
                entry.used = next(self._clock)
                self._entries[entry.state] = self._entries.pop(entry.state)
                return Suggestion.recalled(
                    start, offer, stopped=entry.stopped or offer != entry.offer
                )
        return None

    def drop(self, uri: str) -> None:
        """Forget a document."""
        for state in [state for state in self._entries if state.uri == uri]:
            self._remove(state)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._tries.clear()
        self._most_lines = 0

    def _fitting(self, now: Situation) -> Iterator[tuple[_Entry, int]]:
        """Suggestions that agree with the text left of the cursor, with the number of characters
        typed since their start. What is around them is still to be compared."""
        line_start = len(now.before) - now.column
        for line in range(now.line, now.line - self._most_lines - 1, -1):
            for column, trie in self._tries.get((now.uri, line), {}).items():
                begin = line_start + column
                if 0 <= begin <= len(now.before):
                    yield from _beginning_with(trie, now.before[begin:])
            above = now.before.rfind("\n", 0, max(0, line_start - 1))
            if line_start <= 0 or (above < 0 and now.before_is_cut):
                return  # the window has no more whole lines
            line_start = above + 1

    def _remove(self, state: _State) -> None:
        entry = self._entries.pop(state, None)
        if entry is None:
            return
        tries = self._tries[_line(entry)]
        trie = tries[entry.column]
        # Equal paths stand together, too.
        trie.pop(trie.index(entry, bisect_left(trie, entry.path, key=_path)))
        if not trie:
            del tries[entry.column]
        if not tries:
            del self._tries[_line(entry)]


class _Around:
    """The text around a place, as it was seen from earlier places. Each digest is made once."""

    def __init__(self, now: Situation) -> None:
        self.now = now
        self._near = now.limit - min(now.limit // 4, MOST_TYPED)
        self._context = _digest(now.context)
        self._digests: dict[tuple[str, int], bytes] = {}

    def before(self, typed: int) -> tuple[str, str]:
        """The text left of what was typed since: the far end, and what is near."""
        text = self.now.before[: len(self.now.before) - typed]
        border = max(0, len(text) - self._near)
        return text[:border], text[border:]

    def after(self, closers: int) -> tuple[str, str]:
        """The text right of closers that were added: what is near, and the far end."""
        border = closers + self._near
        return self.now.after[closers:border], self.now.after[border:]

    def fits_after(self, state: _State, closers: int) -> bool:
        """Whether the text right of the cursor, and the context, are those of a state."""
        return state.context == self._context and state.after == self._digest_after(closers)

    def _digest_after(self, closers: int) -> bytes:
        if ("after", closers) not in self._digests:
            self._digests["after", closers] = _digest(self.after(closers)[0])
        return self._digests["after", closers]

    def state(self, line: int, column: int, typed: int, closers: int) -> _State:
        """What the state was before so much was typed from that place."""
        now = self.now
        if ("before", typed) not in self._digests:
            self._digests["before", typed] = _digest(self.before(typed)[1])
        before, after = self._digests["before", typed], self._digest_after(closers)
        return _State(now.uri, line, column, now.language, self._context, before, after)


def _start(entry: _Entry, around: _Around, typed: int) -> Situation | None:
    """The situation in which a suggestion began; None where it is not on the way to this one."""
    line, column, now = entry.state.line, entry.state.column, around.now
    for closers in possible_closers(entry.after_length, entry.after_is_cut, now):
        if now.after[:closers].strip(CLOSERS):
            return None
        if not around.fits_after(entry.state, closers):
            continue  # before the other digest, which is another one for each candidate
        if around.state(line, column, typed, closers) != entry.state:
            continue
        start = replace(
            now,
            line=line,
            column=column,
            before=entry.far_before + around.before(typed)[1],
            after=around.after(closers)[0] + entry.far_after,
            short=entry.short,
        )
        # It compares the far ends, and what has been added right of the cursor.
        if typed_since(start, now) is not None:
            return start
    return None


def _beginning_with(trie: _Trie, text: str) -> Iterator[tuple[_Entry, int]]:
    for entry in islice(trie, bisect_left(trie, text, key=_path), None):
        if not entry.path.startswith(text):
            return
        typed = len(text) - len(entry.lead)
        if typed == 0 or 0 < typed < len(entry.path) - len(entry.lead):
            yield entry, typed


def _goes_on(offer: rules.Offer | None, entry: _Entry, typed: int) -> bool:
    """Whether there is more of an offer than what was typed, which the entry begins with."""
    begin = entry.path[len(entry.lead) :][:typed]
    return not typed or (offer is not None and offer.text != begin and offer.text.startswith(begin))


def _line(entry: _Entry) -> tuple[str, int]:
    return entry.state.uri, entry.state.line


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
