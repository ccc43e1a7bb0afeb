"""What is open where lines begin: brackets, strings and comments, also in broken code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.syntax.blocks import ABOVE, closed_below, read
from completion_ls.syntax.languages import LANGUAGES
from completion_ls.syntax.text import MOST

IF = "int f() {\n  if (x) {"


@pytest.mark.parametrize(
    ("language", "before", "lines", "brackets", "literal"),
    [
        ("c", IF, (), [("}", -1), ("}", 0)], ""),
        ("c", IF, ("", "  a('{');"), [("}", -1), ("}", 0)], ""),
        ("c", IF, ("", "  /* a (", "b ("), [("}", -1), ("}", 0)], "*/"),
        ("c", IF, ("", "  /* a (", "b ( */ c["), [("}", -1), ("}", 0), ("]", 2)], ""),
        ("c", IF, ("", "  a(", "  }"), [("}", -1)], ""),
        ("python", "def f(", ("a, b = {", "}, x["), [(")", 0), ("]", 1)], ""),
        ("python", "x = ", ('"""a (', "b", '""" + (', "1)"), [], ""),
        ("python", "x = ", ('"""a (', "b"), [], '"""'),
        ("javascript", "f(", ("`a ${b(",), [(")", 0), ("}", 0), (")", 0)], ""),
        ("javascript", "f(", ("`a ${b(", "c)} (d"), [(")", 0)], "`"),
        ("javascript", "f(", ("`a ${b(", "c)} (d", "` (e"), [(")", 0), (")", 2)], ""),
        ("rust", "fn f<'a>(x: &'a str) {", ("", 'g("a (', 'b"'), [("}", 0), (")", 1)], ""),
        ("go", "x := f(", ("`a (", "b` {"), [(")", 0), ("}", 1)], ""),
    ],
)
def test_what_is_open_behind_lines(
    language: str,
    before: str,
    lines: tuple[str, ...],
    brackets: list[tuple[str, int]],
    literal: str,
) -> None:
    found = read(language, before, lines)
    assert found is not None
    assert [(one.closer, one.line) for one in found.brackets] == brackets
    assert found.literal == literal


def test_closers_below_are_counted() -> None:
    assert closed_below("c", ")\n  }\n}\nint g() { return f(1); }\n") == 3
    assert closed_below("c", "\n\nint g() { return f(1); }\n") == 0
    assert closed_below("c", " " * (MOST + 1)) is None


def test_there_is_no_telling_without_a_grammar_or_amid_a_long_string() -> None:
    assert read("lua", "x = (", ()) is None
    prose = "words of a text\n" * MOST
    assert read("python", "x = '''\n" + prose + "'''\ny = f(", ()) is None
    code = "x = f(1)\n" * MOST
    found = read("python", code + "y = f(", ("1,",))
    assert found is not None
    assert [one.line for one in found.brackets] == [0]
    assert len(found.text.text) < 2 * MOST


PIECES = ["(", ")", "{", "}", "[", '"', "'", '"""', "`", "${", "/*", "*/", "#", "//", "\\"]
PIECES += ["a", "b1 ", "\n", "\n", " ", "if x:", "é🥸", "\ud83e", "r#", "R", "<b>"]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@settings(deadline=None)
@given(texts, st.lists(texts, max_size=4), st.sampled_from(sorted(LANGUAGES)))
def test_any_text_can_be_read(before: str, parts: list[str], language: str) -> None:
    lines = tuple(part.replace("\n", " ") for part in parts)
    found = read(language, before, lines)
    assert found is not None
    assert all(ABOVE <= one.line < max(1, len(lines)) for one in found.brackets)
