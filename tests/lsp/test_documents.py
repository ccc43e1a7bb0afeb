"""Documents against a naive model: one string, edited by offsets counted in the client's units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import PositionCodec

from completion_ls.lsp.documents import Document, DocumentWorkspace, Place, clean, split_lines

ENCODINGS = ("utf-8", "utf-16", "utf-32")
PIECES = [
    "a",
    "é",
    "e\u0301",
    "🥸",
    "\ud83d",
    "\udd78",
    "\u2028",
    "\x0c",
    "\x85",
    "\x1c",
    "\t",
    "漢",
]
PIECES += ["\n", "\r", "\r\n", "\n", "\r"]

texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
encodings = st.sampled_from(ENCODINGS)
positions = st.builds(types.Position, st.integers(0, 8), st.integers(0, 12))


def document(text: str, encoding: str = "utf-16") -> Document:
    return Document("file:///x.py", source=text, position_codec=PositionCodec(encoding))


def edit(
    start: types.Position, end: types.Position, text: str
) -> types.TextDocumentContentChangePartial:
    return types.TextDocumentContentChangePartial(types.Range(start, end), text)


def width(character: str, encoding: str) -> int:
    """Code units of one character, by the definitions of the encodings."""
    code = ord(character)
    if encoding == "utf-8":
        return 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
    return 1 + (code > 0xFFFF) if encoding == "utf-16" else 1


def naive_lines(text: str) -> list[str]:
    """Contents and line ends alternate in the answer of the split."""
    parts = [*re.split("(\r\n|\r|\n)", text), ""]
    return [content + end for content, end in zip(parts[::2], parts[1::2], strict=True)]


def naive_offset(text: str, position: types.Position, encoding: str) -> int:
    lines = naive_lines(text)
    if position.line >= len(lines):
        return len(text)
    offset = sum(len(line) for line in lines[: position.line])
    units = 0
    for character in lines[position.line].rstrip("\r\n"):
        units += width(character, encoding)
        if units > position.character:
            break
        offset += 1
    return offset


@given(texts)
def test_lines_are_those_of_lsp(text: str) -> None:
    assert split_lines(text) == naive_lines(text)


@given(texts, encodings, st.lists(st.tuples(positions, positions, texts), max_size=8))
def test_any_edits_give_the_text_of_the_naive_model(
    text: str, encoding: str, edits: list[tuple[types.Position, types.Position, str]]
) -> None:
    doc = document(text, encoding)
    for start, end, new in edits:
        first, last = sorted(naive_offset(text, p, encoding) for p in (start, end))
        text = text[:first] + new + text[last:]
        doc.apply_change(edit(start, end, new))
        assert doc.source == text
        assert list(doc.lines) == naive_lines(text)


@given(texts, encodings, positions)
def test_locate_and_position_are_inverse(
    text: str, encoding: str, position: types.Position
) -> None:
    doc = document(text, encoding)
    place = doc.locate(position)
    offset = naive_offset(text, position, encoding)
    assert sum(len(line) for line in doc.lines[: place.line]) + place.column == offset
    assert doc.locate(doc.position(place)) == place
    if position.line < len(doc.lines):
        assert doc.position(place).character <= position.character


@given(texts, positions, st.integers(0, 20))
def test_windows_are_the_ends_of_the_text(text: str, position: types.Position, limit: int) -> None:
    doc = document(text, "utf-32")
    place, offset = doc.locate(position), naive_offset(text, position, "utf-32")
    units = re.compile("\r\n|.", re.DOTALL)
    left, right = units.findall(text[:offset]), units.findall(text[offset:])
    assert doc.before(place, limit) == "".join(left[max(0, len(left) - limit) :])
    assert doc.after(place, limit) == "".join(right[:limit])


@given(st.lists(st.sampled_from(["a", "🥸", "\n"]), max_size=20).map("".join), positions)
def test_line_ends_and_encodings_do_not_change_the_window(
    text: str, position: types.Position
) -> None:
    place = document(text, "utf-32").locate(position)
    seen = set()
    for eol in ("\n", "\r\n", "\r"):
        for encoding in ENCODINGS:
            doc = document(text.replace("\n", eol), encoding)
            same = doc.locate(doc.position(place))
            seen.add((clean(doc.before(same, 6)), clean(doc.after(same, 6)), same))
    assert len(seen) == 1


def test_positions_amid_a_character_are_its_start() -> None:
    text = 'msg = "🥸 hi" + na'
    for encoding, columns in {"utf-8": (8, 9, 10), "utf-16": (8,), "utf-32": ()}.items():
        doc = document(text, encoding)
        for column in columns:
            assert doc.locate(types.Position(0, column)) == Place(0, 7)
        end = doc.position(Place(0, len(text)))
        assert end.character == sum(width(c, encoding) for c in text)
        assert doc.locate(end) == Place(0, len(text))


@pytest.mark.parametrize(
    ("text", "start", "end", "new", "expected"),
    [
        ("a\rb", (1, 0), (1, 0), "\n", ["a\r\n", "b"]),
        ("a\rX\nb", (1, 0), (1, 1), "", ["a\r\n", "b"]),
        ("a\r\nb", (0, 0), (1, 0), "\n", ["\n", "b"]),
        ("a\r\nb", (0, 1), (0, 9), "\r", ["a\r", "\r\n", "b"]),
        ("\r\r\n", (0, 0), (1, 0), "", ["\r\n", ""]),
        ("a\nb", (9, 9), (9, 9), "c", ["a\n", "bc"]),
        ("ab", (0, 2), (0, 0), "x", ["x"]),
        ("", (0, 0), (5, 5), "", [""]),
    ],
)
def test_edits_at_line_ends(
    text: str, start: tuple[int, int], end: tuple[int, int], new: str, expected: list[str]
) -> None:
    doc = document(text)
    doc.apply_change(edit(types.Position(*start), types.Position(*end), new))
    assert list(doc.lines) == expected


def test_a_full_change_replaces_everything() -> None:
    doc = document("a\nb")
    doc.apply_change(types.TextDocumentContentChangeWholeDocument("c\r\nd"))
    assert (doc.source, doc.eol) == ("c\r\nd", "\r\n")


@pytest.mark.parametrize(
    ("text", "eol"),
    [("", "\n"), ("a", "\n"), ("a\nb\r\n", "\n"), ("a\r\nb\n", "\r\n"), ("a\rb", "\r")],
)
def test_eol_is_that_of_the_first_line(text: str, eol: str) -> None:
    assert document(text).eol == eol


def test_line_has_no_line_end_and_is_empty_beyond_the_text() -> None:
    doc = document("a\r\nb\x0cc\n")
    assert [doc.line(n) for n in (-1, 0, 1, 2, 3)] == ["", "a", "b\x0cc", "", ""]


def test_places_that_no_longer_exist_are_clamped() -> None:
    doc = document("ab\r\ncd")
    assert doc.position(Place(0, 9)) == types.Position(0, 2)
    assert doc.position(Place(7, 0)) == types.Position(1, 2)
    assert doc.before(Place(7, 7), 3) == "\r\ncd"
    assert doc.after(Place(0, 9), 2) == "\r\nc"


def test_clean_leaves_no_half_characters_and_only_lf() -> None:
    assert clean("a\r\nb\rc\n\x0c") == "a\nb\nc\n\x0c"
    assert clean("x\ud83dy\udd78\ud83d") == "x\ufffdy\ufffd\ufffd"
    assert clean("\ud83e\udd78") == "🥸"
    clean("\udd78\ud83d").encode()


def test_a_document_nobody_opened_is_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a\r\nb\xff")
    workspace = DocumentWorkspace(None)
    found = workspace.get_text_document(file.as_uri())
    assert found.source == "a\r\nb\ufffd"
    assert workspace.get_text_document((tmp_path / "none").as_uri()).source == ""
    assert workspace.get_text_document("untitled:Untitled-1").source == ""


def test_the_workspace_makes_documents_in_its_encoding() -> None:
    workspace = DocumentWorkspace(None, position_encoding="utf-8")
    uri = "file:///a%20b.py"
    workspace.put_text_document(types.TextDocumentItem(uri, "python", 1, "é\n"))
    change = edit(types.Position(0, 2), types.Position(0, 2), "!")
    workspace.update_text_document(types.VersionedTextDocumentIdentifier(2, uri), change)
    doc = workspace.get_text_document(uri)
    assert isinstance(doc, Document)
    assert (doc.source, doc.version) == ("é!\n", 2)


def test_changes_of_what_is_not_open_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    workspace = DocumentWorkspace(None)
    change = edit(types.Position(0, 0), types.Position(0, 0), "x")
    workspace.update_text_document(types.VersionedTextDocumentIdentifier(1, "file:///no"), change)
    cells = types.NotebookDocumentChangeEvent()
    notebook = types.VersionedNotebookDocumentIdentifier(1, "file:///no.ipynb")
    workspace.update_notebook_document(types.DidChangeNotebookDocumentParams(notebook, cells))
    assert len(caplog.records) == 2
    assert not workspace.text_documents


def test_cells_of_an_open_notebook_are_documents() -> None:
    workspace = DocumentWorkspace(None)
    uri, cell = "file:///n.ipynb", "vscode-notebook-cell:/n.ipynb#1"
    kind = types.NotebookCellKind.Code
    notebook = types.NotebookDocument(uri, "jupyter", 1, [types.NotebookCell(kind, cell)])
    opened = types.TextDocumentItem(cell, "python", 1, "a\x0cb")
    workspace.put_notebook_document(types.DidOpenNotebookDocumentParams(notebook, [opened]))
    whole = types.TextDocumentContentChangeWholeDocument("c\n")
    text = types.NotebookDocumentCellContentChanges(
        types.VersionedTextDocumentIdentifier(2, cell), [whole]
    )
    cells = types.NotebookDocumentCellChanges(text_content=[text])
    workspace.update_notebook_document(
        types.DidChangeNotebookDocumentParams(
            types.VersionedNotebookDocumentIdentifier(2, uri),
            types.NotebookDocumentChangeEvent(cells=cells),
        )
    )
    assert workspace.get_text_document(cell).source == "c\n"
