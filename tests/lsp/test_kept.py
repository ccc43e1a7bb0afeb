"""Accepted text is followed through edits, and how much of it is left is counted."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from completion_ls.lsp.documents import Document, Place, Stretch
from completion_ls.lsp.kept import Kept, kept_characters

CHARACTERS = st.sampled_from(["a", "b", " ", "é", "🥸", "\n", "\r\n"])
TEXTS = st.lists(CHARACTERS, max_size=12)


def place_of(before: list[str]) -> Place:
    """Where these characters stop."""
    line = sum(one.endswith("\n") for one in before)
    last = [n for n, one in enumerate(before) if one.endswith("\n")]
    return Place(line, len(before) - (last[-1] + 1 if last else 0))


def replace(document: Document, before: list[str], start: int, end: int, text: str) -> None:
    """Edit a document that holds these characters."""
    places = [document.position(place_of(before[:at])) for at in (start, end)]
    document.apply_change(
        types.TextDocumentContentChangePartial(text=text, range=types.Range(*places))
    )


class Naive:
    """Characters, each with a note whether it is in the range; what comes between two of these is, too.
    `empty` is where a range is that has none."""

    def __init__(self, characters: list[str], start: int, end: int) -> None:
        self.characters = characters
        self.inside = [start <= n < end for n in range(len(characters))]
        self.empty = start

    def replace(self, start: int, end: int, new: list[str]) -> None:
        old = self.characters[start:end]
        while new and old and old[0] == new[0]:
            start, old, new = start + 1, old[1:], new[1:]
        while new and old and old[-1] == new[-1]:
            end, old, new = end - 1, old[:-1], new[:-1]
        was_empty = not any(self.inside)
        left, right = self.inside[:start], self.inside[end:]
        count = len(new)
        if was_empty:
            is_inside = start <= self.empty <= end and not start < self.empty == end
            if self.empty >= end and not is_inside:
                self.empty += count - (end - start)
        else:
            is_inside = (left[-1:] == [True] == right[:1]) or not any(left + right)
        if is_inside:
            self.empty = start
        self.characters[start:end] = new
        self.inside = [*left, *[is_inside] * count, *right]
        if not was_empty and not any(self.inside):
            self.empty = start

    @property
    def start(self) -> int:
        return self.inside.index(True) if any(self.inside) else self.empty

    @property
    def text(self) -> str:
        return "".join(c for c, is_in in zip(self.characters, self.inside, strict=True) if is_in)


EDITS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), TEXTS, st.booleans()), max_size=8)


@given(st.lists(CHARACTERS, min_size=1, max_size=30), st.integers(0, 29), st.integers(1, 10), EDITS)
def test_a_stretch_stays_with_its_text(
    characters: list[str],
    start: int,
    length: int,
    edits: list[tuple[int, int, list[str], bool]],
) -> None:
    start = min(start, len(characters) - 1)
    finish = min(start + length, len(characters))
    model = Naive(list(characters), start, finish)
    document = Document("file:///a.py", "".join(characters))
    stretch = Stretch(place_of(characters[:start]), place_of(characters[:finish]))
    document.follow(stretch)
    for at, deleted, new, whole in edits:
        at = min(at, len(model.characters))
        till = min(at + deleted, len(model.characters))
        if whole:  # the editor sends all of the text
            text = "".join(model.characters[:at] + new + model.characters[till:])
            document.apply_change(types.TextDocumentContentChangeWholeDocument(text))
            model.replace(
                0, len(model.characters), model.characters[:at] + new + model.characters[till:]
            )
        else:
            replace(document, model.characters, at, till, "".join(new))
            model.replace(at, till, new)
        assert document.source == "".join(model.characters)
        found = document.between(stretch.start, stretch.end)
        assert found == model.text
        assert stretch.start == place_of(model.characters[: model.start])


@given(
    st.text("ab\r\n", max_size=12),
    st.lists(st.tuples(*[st.integers(0, 9)] * 4, st.text("ab\r\n", max_size=4)), max_size=6),
)
def test_halves_of_line_ends_do_no_harm(
    text: str, edits: list[tuple[int, int, int, int, str]]
) -> None:
    document, plain = Document("file:///a.py", text), Document("file:///b.py", text)
    stretch = Stretch(Place(0, 1), Place(1, 1))
    document.follow(stretch)
    for line, column, lines, columns, new in edits:
        range = types.Range(types.Position(line, column), types.Position(lines, columns))
        for one in (document, plain):
            one.apply_change(types.TextDocumentContentChangePartial(text=new, range=range))
        assert document.source == plain.source
        assert stretch.start <= stretch.end


def test_the_text_of_a_range() -> None:
    document = Document("file:///a.py", "one\r\ntwo\r\nthree")
    assert document.between(Place(0, 1), Place(2, 2)) == "ne\r\ntwo\r\nth"
    assert document.between(Place(1, 0), Place(1, 9)) == "two"
    assert document.between(Place(2, 0), Place(0, 1)) == ""
    assert document.between(Place(1, 2), Place(1, 1)) == ""
    assert document.between(Place(1, 2), Place(7, 1)) == "o\r\nthree"


WORDS = st.lists(st.sampled_from(["area", "w", "h", " ", "*", "\n", "(", ")"]), max_size=20).map(
    "".join
)


@given(WORDS, WORDS, WORDS)
def test_of_what_was_not_touched_all_is_kept(text: str, before: str, after: str) -> None:
    assert kept_characters(text, before + text + after) == len(text)
    assert kept_characters(text, "") == 0


@given(WORDS, WORDS)
def test_no_more_is_kept_than_there_is(accepted: str, now: str) -> None:
    assert 0 <= kept_characters(accepted, now) <= min(len(accepted), len(now))


@given(WORDS, st.integers(0, 60), st.integers(0, 10), st.sampled_from(["", "x", "#"]))
def test_one_edit_costs_what_it_takes_away(text: str, at: int, size: int, new: str) -> None:
    now = text[:at] + new + text[at + size :]
    assert kept_characters(text, now) >= len(text[:at] + text[at + size :])


def test_other_code_is_not_kept() -> None:
    assert kept_characters("return width * height", "raise ValueError") == len("r") + len(" ")
    assert kept_characters("a, b\n    c, d", "x = a, b\n    y\n    c") == len("a, b\n    c")


def test_a_file_of_a_megabyte_that_comes_anew() -> None:
    lines = "".join(f"value_{n} = {n} * (n + {n})\n" for n in range(40_000))
    document = Document("file:///a.py", lines)
    stretch = Stretch(Place(20_000, 0), Place(20_001, 0))
    document.follow(stretch)
    document.apply_change(
        types.TextDocumentContentChangeWholeDocument("# new\n" + lines.replace("39999", "0"))
    )
    now = document.between(stretch.start, stretch.end)
    assert kept_characters("value_20000 = ", now) == 14
    document.apply_change(types.TextDocumentContentChangeWholeDocument(lines[::-1]))
    assert kept_characters("value_20000 = 1", lines[::-1]) < 15


async def test_two_looks() -> None:
    seen: list[tuple[str, int, int, int]] = []
    kept = Kept(lambda *look: seen.append(look), after_s=(0.01, 0.2))
    document = Document("file:///a.py", "x = area(1, 2)\n")
    kept.watch(document, Place(0, 4), Place(0, 14), "model")
    replace(document, list("x = area(1, 2)\n"), 9, 10, "10")
    while not seen:
        await asyncio.sleep(0.005)
    assert seen == [("model", 0, 10, 10)]
    replace(document, list("x = area(10, 2)\n"), 4, 15, "")
    while len(seen) < 2:
        await asyncio.sleep(0.005)
    assert seen[1] == ("model", 1, 10, 0)
    replace(document, list("x = \n"), 0, 5, "")
    assert not document._followed


async def test_a_document_that_is_closed_is_looked_at_then() -> None:
    seen: list[tuple[str, int, int, int]] = []
    kept = Kept(lambda *look: seen.append(look))
    for name in ("a", "%62"):
        document = Document(f"file:///{name}.py", "area")
        kept.watch(document, Place(0, 0), Place(0, 4), name)
    kept.close("file:///b.py")
    assert seen == [("%62", 0, 4, 4), ("%62", 1, 4, 4)]
    kept.close()
    assert seen[2:] == [("a", 0, 4, 4), ("a", 1, 4, 4)]
