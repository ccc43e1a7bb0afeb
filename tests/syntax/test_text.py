"""Syntax trees: every grammar is there, and a text that is continued has the tree of the whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.syntax.languages import LANGUAGES
from completion_ls.syntax.text import SyntaxText

SAMPLES = {
    "c": "int f(void) { return 1; }\n",
    "cpp": "template <class T> T f() { return T(); }\n",
    "go": "package a\n\nfunc f() int { return 1 }\n",
    "java": "class A { int f() { return 1; } }\n",
    "javascript": "const f = () => 1;\n",
    "javascriptreact": "const f = () => <p>1</p>;\n",
    "python": "def f():\n    return 1\n",
    "rust": "fn f<'a>() -> &'a str { \"1\" }\n",
    "typescript": "const f = (a: <T>(b: T) => T): number => <number>1;\n",
    "typescriptreact": "const f = (a: number): Element => <p>1</p>;\n",
}


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_each_language_reads_a_sample_without_errors(language: str) -> None:
    assert not SyntaxText(language, SAMPLES[language]).root.has_error


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_broken_text_has_a_tree_too(language: str) -> None:
    text = SAMPLES[language].rstrip()[:-1] + " ((( \ud800"
    assert SyntaxText(language, text).root.end_byte == len(text.encode("utf-8", "surrogatepass"))


PYTHON = '''class Klasse:
    """Grüße 🥸
    an alle"""
\tdef f(self, x=(1,
    2)):
        return f"{x}" if x else [
'''


@given(st.lists(st.integers(0, len(PYTHON)), min_size=1, max_size=5))
def test_a_continued_text_has_the_tree_of_the_whole(cuts: list[int]) -> None:
    ends = [*sorted(cuts), len(PYTHON)]
    text = SyntaxText("python", PYTHON[: ends[0]])
    for start, end in itertools.pairwise(ends):
        text.append(PYTHON[start:end])
    assert text.text == PYTHON
    assert str(text.root) == str(SyntaxText("python", PYTHON).root)


def test_offsets_in_code_points_lead_to_bytes() -> None:
    text = SyntaxText("python", "ä = '🥸'\nb = 1\n")
    node = text.root.children[1].children[0].children[0]
    assert (node.text, node.start_byte) == (b"b", 12)
    assert text.byte_of(text.text.index("b")) == node.start_byte
