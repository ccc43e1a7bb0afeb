"""Documents as an editor has them: a text, a cursor, and what there is to undo."""

from __future__ import annotations

from dataclasses import dataclass, field

from lsprotocol import types

from support.in_process import Front, Ghost, Request


@dataclass(frozen=True)
class State:
    """A text with a cursor in it, with LF line ends."""

    uri: str
    before: str
    after: str

    @property
    def column(self) -> int:
        """The cursor's, in characters."""
        return len(self.before) - (self.before.rfind("\n") + 1)


def points(text: str, units: int) -> int:
    """How many characters of a text have so many UTF-16 code units."""
    return len(text.encode("utf-16-le")[: 2 * units].decode("utf-16-le"))


def units(text: str) -> int:
    """UTF-16 code units of a text."""
    return len(text.encode("utf-16-le")) // 2


@dataclass
class Page:
    """One open document. Every edit goes to the server as one change."""

    front: Front
    uri: str
    language: str
    eol: str
    text: str
    cursor: int = 0
    history: list[State] = field(default_factory=list)
    """All that it has been since it was opened, also while only passing by."""
    given: dict[tuple[State, Ghost], None] = field(default_factory=dict)
    """All ghost text that the server gave since then, and for which state, in that order."""
    requests: list[tuple[State, int, bool, Request]] = field(default_factory=list)
    """Those that are not judged yet: what the document was, how long the history, by hand or not."""
    _undo: list[tuple[str, int]] = field(default_factory=list)

    def open(self) -> None:
        """Open it; nothing that was before counts."""
        self.history.clear()
        self.given.clear()
        self._undo.clear()
        self.front.open(self.uri, self.language, self.text.replace("\n", self.eol))

    @property
    def state(self) -> State:
        """What it is now."""
        return State(self.uri, self.text[: self.cursor], self.text[self.cursor :])

    @property
    def ghost(self) -> Ghost | None:
        """What is on the screen at the cursor."""
        found = (ghost for state, ghost in reversed(self.given) if state == self.state)
        return next(found, None)

    def position(self, offset: int) -> types.Position:
        """An offset as the protocol has it."""
        line = self.text.count("\n", 0, offset)
        return types.Position(line, units(self.text[self.text.rfind("\n", 0, offset) + 1 : offset]))

    def edit(self, start: int, end: int, text: str, cursor: int | None = None) -> None:
        """Replace a stretch. The cursor is behind it then, or where it is said."""
        self._undo.append((self.text, self.cursor))
        self._replace(start, end, text, start + len(text) if cursor is None else cursor)

    def type(self, text: str) -> None:
        """Put in a text at the cursor at once."""
        self.edit(self.cursor, self.cursor, text)

    def undo(self) -> None:
        """Take the last edit back."""
        if not self._undo:
            return
        text, cursor = self._undo.pop()
        start = _common(self.text, text)
        most = min(len(self.text), len(text)) - start
        end = min(most, _common(self.text[::-1], text[::-1]))
        self._replace(start, len(self.text) - end, text[start : len(text) - end], cursor)

    def move(self, offset: int) -> None:
        """Put the cursor elsewhere. (The server does not hear of that.)"""
        self.cursor = max(0, min(offset, len(self.text)))

    def line(self, number: int) -> tuple[int, int]:
        """Start and end of a line; numbers beyond the text begin again."""
        number %= self.text.count("\n") + 1
        start = 0
        for _ in range(number):
            start = self.text.index("\n", start) + 1
        end = self.text.find("\n", start)
        return start, len(self.text) if end < 0 else end

    @property
    def line_number(self) -> int:
        """That of the cursor."""
        return self.text.count("\n", 0, self.cursor)

    def ask(self, *, manual: bool = False) -> Request:
        """Ask for ghost text at the cursor."""
        self.history.append(self.state)
        request = Request(self.front, self.uri, self.position(self.cursor), manual)
        self.requests.append((self.state, len(self.history), manual, request))
        self.front.settle()
        return request

    def _replace(self, start: int, end: int, text: str, cursor: int) -> None:
        places = self.position(start), self.position(end)
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = cursor
        self.history.append(self.state)
        self.front.change(self.uri, *places, text.replace("\n", self.eol))


def _common(a: str, b: str) -> int:
    size = 0
    for one, two in zip(a, b, strict=False):
        if one != two:
            break
        size += 1
    return size
