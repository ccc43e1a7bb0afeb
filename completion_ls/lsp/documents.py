"""Open documents as lists of lines: cheap edits, cheap windows, positions in the client's units.

LSP knows three line ends: LF, CRLF and CR. The form feeds and Unicode separators at which
`str.splitlines` splits as well are ordinary characters here.
"""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lsprotocol import types
from pygls.workspace import TextDocument, Workspace

from completion_ls.decode.tokens import common_prefix

logger = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, order=True)
class Place:
    """Where something is in a document: line number and column in code points, both from 0."""

    line: int
    column: int

    def behind(self, text: str) -> Place:
        """Where a text with LF line ends stops that begins here."""
        lines = text.count("\n")
        last = len(text) - (text.rfind("\n") + 1)
        return Place(self.line + lines, last if lines else self.column + last)


@dataclass(slots=True, eq=False)
class Stretch:
    """A range of a document that stays with its text while that is edited (`Document.follow`).

    What is inserted at its edges is outside of it. Where all of it is replaced, or it has become
    empty and something is inserted there, that is inside: it may be the same text again.
    """

    start: Place
    end: Place

    def replaced(self, start: Place, end: Place, stop: Place) -> None:
        """The text from `start` to `end` gave way to one that ends at `stop`."""
        is_empty = self.start == self.end
        if end <= self.start and not (is_empty and start == self.start):
            self.start = _moved(self.start, end, stop)
            self.end = _moved(self.end, end, stop)
        elif start <= self.start and end >= self.end:
            self.start, self.end = start, stop
        elif start <= self.start:
            self.start, self.end = stop, _moved(self.end, end, stop)
        elif end < self.end:
            self.end = _moved(self.end, end, stop)
        elif start < self.end:
            self.end = start


def clean(text: str) -> str:
    """The text as a model gets it: LF line ends, U+FFFD for each half of a surrogate pair.

    Two halves that met through separate edits are the one character they encode.
    """
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def key_of(uri: str) -> str:
    """What a document goes by, however its URI is written."""
    return clean(unquote(uri))


def split_lines(text: str) -> list[str]:
    """The lines of a text with their line ends. The last one has none and may be empty."""
    if "\n" not in text and "\r" not in text:
        return [text]
    lines = io.StringIO(text, newline="").readlines()
    if lines[-1].endswith(("\n", "\r")):
        lines.append("")
    return lines


class Document(TextDocument):
    """A text document that is held as lines.

    An edit costs the lines it touches and one list splice; a window costs its own length.
    Positions go through `locate` and `position`; a Place that no longer exists is clamped.
    """

    edits = 0
    """How many changes there have been. (Versions are the client's, and need not change.)"""

    cursor: Place | None = None
    """Where the last change or request was; it may have been cut off since."""

    _held: list[str] | None = None
    _followed: list[Stretch] | None = None

    @property
    def _lines(self) -> list[str]:
        if self._held is None:
            text = self._source
            self._held = split_lines(self._text_on_disk() if text is None else text)
            self._source = None  # the lines are the text from now on
        return self._held

    def _text_on_disk(self) -> str:
        """What a document that no client opened holds: its file, or nothing when there is none."""
        try:
            return Path(self.path).read_bytes().decode("utf-8", "replace")
        except (OSError, ValueError):
            logger.debug("a document is neither open nor a readable file; it counts as empty")
            return ""

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines with their line ends; the last one has none and may be empty. O(lines)."""
        return tuple(self._lines)

    @property
    def source(self) -> str:
        """The whole text. O(document)."""
        return "".join(self._lines)

    @property
    def end(self) -> Place:
        """The place behind the last character."""
        return Place(len(self._lines) - 1, len(self._lines[-1]))

    @property
    def eol(self) -> str:
        """The line end of the first line that has one, else LF."""
        first = self._lines[0]
        return first[_width(first) :] or "\n"

    def line(self, number: int) -> str:
        """A line without its line end; empty beyond the text."""
        if not 0 <= number < len(self._lines):
            return ""
        line = self._lines[number]
        return line[: _width(line)]

    def locate(self, position: types.Position) -> Place:
        """The place of a client's position, clamped to the text.

        A position inside a character (between the halves of a surrogate pair, or amid the bytes
        of a UTF-8 sequence) is the start of that character.
        """
        lines = self._lines
        if position.line >= len(lines):
            return Place(len(lines) - 1, len(lines[-1]))
        line = lines[position.line]
        column = _column(line, position.character, self._encoding)
        return Place(position.line, min(column, _width(line)))

    def position(self, place: Place) -> types.Position:
        """The place in the client's units."""
        place = self._clamped(place)
        head = self._lines[place.line][: place.column]
        return types.Position(place.line, _units(head, self._encoding))

    def before(self, place: Place, limit: int) -> str:
        """At most the last `limit` characters before the place, line ends as in the document.

        A CRLF counts as one character and is not split, so that the same text with other line ends
        gives the same window. O(limit).
        """
        place = self._clamped(place)
        part = self._lines[place.line][max(0, place.column - limit) : place.column]
        parts, left, number = [part], limit - len(part), place.line
        while left > 0 and number > 0:
            number -= 1
            line = self._lines[number]
            pair = line.endswith("\r\n")
            part = line[-left - pair :]
            parts.append(part)
            left -= len(part) - pair
        return "".join(reversed(parts))

    def after(self, place: Place, limit: int) -> str:
        """At most the first `limit` characters after the place, counted as by `before`. O(limit)"""
        place = self._clamped(place)
        parts: list[str] = []
        left, number, column = limit, place.line, place.column
        while left > 0 and number < len(self._lines):
            line = self._lines[number]
            end = column + left
            pair = line.endswith("\r\n") and end >= len(line) - 1
            part = line[column : end + pair]
            parts.append(part)
            left -= len(part) - pair
            number, column = number + 1, 0
        return "".join(parts)

    def between(self, start: Place, end: Place) -> str:
        """The text from one place to another; empty where that stands before."""
        start, end = self._clamped(start), self._clamped(end)
        if start.line == end.line:
            return self._lines[start.line][start.column : end.column]
        inner = self._lines[start.line : end.line]
        if not inner:
            return ""
        inner[0] = inner[0][start.column :]
        return "".join([*inner, self._lines[end.line][: end.column]])

    def follow(self, stretch: Stretch) -> None:
        """Have a stretch stay with its text from now on."""
        self._followed = [*(self._followed or []), stretch]

    def unfollow(self, stretch: Stretch) -> None:
        """No longer; harmless where it was not followed."""
        self._followed = [one for one in self._followed or [] if one is not stretch]

    def apply_change(self, change: types.TextDocumentContentChangeEvent) -> None:
        """Apply one incremental or full change. A range beyond the text is clamped, one that is the
        wrong way round is turned."""
        self.edits += 1
        if isinstance(change, types.TextDocumentContentChangePartial):
            start = end = self.locate(change.range.start)
            if change.range.end != change.range.start:
                end = self.locate(change.range.end)
            self._replace(min(start, end), max(start, end), change.text)
        elif self._followed:
            self._replace(Place(0, 0), self.end, change.text)
        else:
            self._held = split_lines(change.text)

    def _replace(self, start: Place, end: Place, text: str) -> None:
        lines = self._lines
        moved = self._difference(start, end, text) if self._followed else None
        first, last = start.line, end.line
        offset = start.column + len(text)
        new = lines[first][: start.column] + text + lines[last][end.column :]
        if new.startswith("\n") and first > 0 and lines[first - 1].endswith("\r"):
            first -= 1  # the CR above and this LF are one line end from now on
            offset += len(lines[first])
            new = lines[first] + new
        pieces = split_lines(new)
        if last < len(lines) - 1:
            pieces.pop()  # the line end of `last` is the end of the last piece
        lines[first : last + 1] = pieces
        if moved:
            begin, finish, same = moved
            stop = _place_at(pieces, first, offset - same)
            for stretch in self._followed or []:
                stretch.replaced(begin, finish, stop)

    def _difference(self, start: Place, end: Place, text: str) -> tuple[Place, Place, int]:
        """What of a range its replacement changes, and how many characters at the replacement's end
        are as before: where a whole file comes anew, only what differs is to move anything."""
        old = self.between(start, end)
        head = common_prefix(old, text)
        if old[head - 1 : head] == "\r" and "\n" in (old[head : head + 1], text[head : head + 1]):
            head -= 1  # between the two there is no place
        tail = common_prefix(old[head:][::-1], text[head:][::-1])
        if tail and old[len(old) - tail] == "\n":
            in_front = old[: len(old) - tail][-1:], text[: len(text) - tail][-1:]
            tail -= "\r" in in_front
        return _behind(start, old[:head]), _behind(start, old[: len(old) - tail]), tail

    def _clamped(self, place: Place) -> Place:
        line = min(max(place.line, 0), len(self._lines) - 1)
        if line < place.line:
            return Place(line, len(self._lines[line]))
        return Place(line, min(max(place.column, 0), _width(self._lines[line])))

    @property
    def _encoding(self) -> str:
        return self.position_codec.encoding or "utf-16"


class DocumentWorkspace(Workspace):
    """A pygls workspace whose documents are `Document`s, and which outlives confused clients."""

    def _create_text_document(
        self,
        doc_uri: str,
        source: str | None = None,
        version: int | None = None,
        language_id: str | None = None,
    ) -> Document:
        return Document(
            doc_uri,
            source=source,
            version=version,
            language_id=language_id,
            sync_kind=self._sync_kind,
            position_codec=self._position_codec,
        )

    def update_text_document(
        self,
        text_doc: types.VersionedTextDocumentIdentifier,
        change: types.TextDocumentContentChangeEvent,
    ) -> None:
        """Apply a change; that of a document which is not open is ignored."""
        if unquote(text_doc.uri) not in self.text_documents:
            logger.warning("ignored a change of a document that the client never opened")
            return
        super().update_text_document(text_doc, change)

    def update_notebook_document(self, params: types.DidChangeNotebookDocumentParams) -> None:
        """Apply a change; that of a notebook which is not open is ignored."""
        uri = params.notebook_document.uri
        if unquote(uri) not in self.notebook_documents:
            logger.warning("ignored a change of a notebook that the client never opened")
            return
        super().update_notebook_document(params)


def _moved(place: Place, end: Place, stop: Place) -> Place:
    """Where a place at or behind `end` is when the text up to there ends at `stop` instead."""
    if place.line > end.line:
        return Place(place.line + stop.line - end.line, place.column)
    return Place(stop.line, stop.column + place.column - end.column)


def _behind(start: Place, text: str) -> Place:
    """Where a text of a document stops that begins here."""
    pieces = split_lines(text)
    last = len(pieces[-1])
    return Place(start.line + len(pieces) - 1, last if len(pieces) > 1 else start.column + last)


def _place_at(lines: list[str], first: int, offset: int) -> Place:
    """The place of a character in lines of which the first has the number `first`."""
    number = 0
    while number < len(lines) - 1 and offset >= len(lines[number]):
        offset -= len(lines[number])
        number += 1
    if offset >= len(lines[number]) and lines[number].endswith(("\n", "\r")):
        return Place(first + number + 1, 0)
    return Place(first + number, min(offset, _width(lines[number])))


def _width(line: str) -> int:
    """Code points of a line without its line end."""
    if line.endswith("\r\n"):
        return len(line) - 2
    return len(line) - line.endswith(("\n", "\r"))


def _units(text: str, encoding: str) -> int:
    """Length of a text in code units of the encoding."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _column(line: str, character: int, encoding: str) -> int:
    """Most code points of `line` that fit into `character` code units of the encoding."""
    column = min(max(character, 0), len(line))
    if encoding == "utf-32" or line.isascii():
        return column
    widest = 4 if encoding == "utf-8" else 2
    excess = _units(line[:column], encoding) - character
    while excess > 0:
        # The fewest characters that can make up the excess: never too many, so this ends exactly.
        fewer = column - -(-excess // widest)
        excess -= _units(line[fewer:column], encoding)
        column = fewer
    return column
