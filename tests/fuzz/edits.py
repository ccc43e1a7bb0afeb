"""Edits of documents in every position encoding, against a model that is one string, and in which a
position is found by walking over its characters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import PositionCodec

from completion_ls.lsp.documents import Document, DocumentWorkspace, clean
from fuzz.mixed import mixed
from fuzz.property import Property

URI = "file:///a%20b.py"
PIECES = [
    *("a", " ", "\t", "é", "e\u0301", "漢", "🥸", "👩‍👧", "\U0010ffff", "\ufeff", "\x00"),
    *("\ud83d", "\udd78", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85", "def f():"),
    *("\n", "\r", "\r\n", "\n\r", "\n", "\r\n"),
]
UNITS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}

texts = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=10).map("".join)
numbers = st.one_of(st.integers(0, 6), st.integers(0, 40), st.just(2**31 - 1))
positions = st.tuples(numbers, numbers)


@dataclass(frozen=True)
class Change:
    """A change as clients send it; without a range, of everything."""

    text: str
    start: tuple[int, int] | None = None
    end: tuple[int, int] = (0, 0)

    def event(self) -> types.TextDocumentContentChangeEvent:
        if self.start is None:
            return types.TextDocumentContentChangeWholeDocument(self.text)
        span = types.Range(types.Position(*self.start), types.Position(*self.end))
        return types.TextDocumentContentChangePartial(span, self.text)


@dataclass(frozen=True)
class Session:
    """A document, and the notifications of its changes."""

    encoding: str
    before: str
    notifications: list[list[Change]]


def width(character: str, encoding: str) -> int:
    """Code units."""
    name, size = UNITS[encoding]
    return len(character.encode(name, "surrogatepass")) // size


def offset(text: str, position: tuple[int, int], encoding: str) -> int:
    """Where a position is: the start of the character that it is in, and never behind its line."""
    line, units = position
    ends = [0, *(match.end() for match in re.finditer("\r\n|\r|\n", text))]
    if line >= len(ends):
        return len(text)
    at = ends[line]
    while at < len(text) and text[at] not in "\r\n":
        units -= width(text[at], encoding)
        if units < 0:
            break
        at += 1
    return at


def edited(text: str, change: Change, encoding: str) -> str:
    """The text afterwards."""
    if change.start is None:
        return change.text
    ends = (offset(text, place, encoding) for place in (change.start, change.end))
    first, last = sorted(ends)
    return text[:first] + change.text + text[last:]


def a_document_is_what_the_client_has(session: Session) -> None:
    """Its text after each notification, and where its positions are."""
    encoding = types.PositionEncodingKind(session.encoding)
    workspace = DocumentWorkspace(None, position_encoding=encoding)
    workspace.put_text_document(types.TextDocumentItem(URI, "python", 1, session.before))
    document = workspace.text_documents["file:///a b.py"]
    assert isinstance(document, Document)
    text = session.before
    name = types.VersionedTextDocumentIdentifier(2, URI)
    for changes in session.notifications:
        for change in changes:
            workspace.update_text_document(name, change.event())
            text = edited(text, change, session.encoding)
        assert document.source == text
        assert "".join(document.lines) == text
        clean(text).encode()
        for change in changes:
            for position in (change.start or (0, 0), change.end):
                _is_found(document, text, position, session.encoding)
    rebuilt = Document(URI, source=text, position_codec=PositionCodec(encoding))
    assert rebuilt.lines == document.lines


def _is_found(document: Document, text: str, position: tuple[int, int], encoding: str) -> None:
    place = document.locate(types.Position(*position))
    at = offset(text, position, encoding)
    assert document.before(place, len(text) + 1) == text[:at]
    assert document.after(place, len(text) + 1) == text[at:]
    back = document.position(place)
    assert document.locate(back) == place
    assert offset(text, (back.line, back.character), encoding) == at
    assert (back.line, back.character) <= position


changes = mixed(
    (4, st.builds(Change, texts, positions, positions)),
    (2, st.builds(lambda text, place: Change(text, place, place), texts, positions)),
    (1, st.builds(Change, texts)),
)
sessions = st.builds(
    Session,
    st.sampled_from(sorted(UNITS)),
    texts,
    st.lists(st.lists(changes, max_size=4), max_size=5),
)

EDITS = (Property("edits", "documents", sessions, a_document_is_what_the_client_has, budget=400),)
