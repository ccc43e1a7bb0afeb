"""The text rules: a table of cases per language, and properties over random texts."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from completion_ls.lsp.rules import Mode, Offer, choose_mode, offer, stop, type_through
from completion_ls.syntax.languages import LANGUAGES

Setting = Literal["auto", "single", "multi"]
MAX_LINES = 12


@dataclass(frozen=True)
class Case:
    name: str
    buffer: str
    raw: str
    result: str | None = None
    setting: Setting = "auto"
    language: str = ""
    """Where there is one, the syntax has a say."""
    cut: bool = False
    """The token limit ended the raw text."""


def cases() -> list[Case]:
    """All cases; those of a file are in its `language`, or in one of their own."""
    found = []
    for file in sorted((Path(__file__).parent / "golden").glob("*.toml")):
        table = tomllib.loads(file.read_text("utf-8"))
        language = {"language": table.get("language", "")}
        found += [Case(**language | case) for case in table["case"]]
    return found


CASES = cases()


def mode_of(before: str, after: str, setting: Setting = "auto") -> Mode:
    return choose_mode(before.rpartition("\n")[2], after.partition("\n")[0], setting)


def answer(
    raw: str,
    before: str,
    after: str,
    mode: Mode,
    language: str = "",
    *,
    ended: bool,
    cut: bool = False,
) -> Offer | None:
    """What a front offers once this much raw text has come; `ended`: no more will, with `cut` because
    of the token limit."""
    end = stop(raw, before=before, after=after, language=language, mode=mode, max_lines=MAX_LINES)
    return offer(
        raw[:end],
        before=before,
        after=after,
        language=language,
        mode=mode,
        finished=ended or end is not None,
        cut=cut and end is None,
    )


def accepted(before: str, after: str, offered: Offer) -> str:
    return before + offered.text + after[offered.replace_after :]


def check_streaming(raw: str, before: str, after: str, mode: Mode, language: str = "") -> None:
    """One character at a time: every offer is a prefix of the next, and of what is offered where the
    text ends or is cut; none where the last is none."""
    shown = ""
    for size in range(len(raw) + 1):
        now = answer(raw[:size], before, after, mode, language, ended=False)
        if now is not None:
            assert now.text.startswith(shown)
            shown = now.text
        else:
            assert not shown
    for cut in (False, True):
        last = answer(raw, before, after, mode, language, ended=True, cut=cut)
        assert (last.text if last else "").startswith(shown)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Case) -> None:
    before, after = case.buffer.split("‸")
    mode = mode_of(before, after, case.setting)
    offered = answer(case.raw, before, after, mode, case.language, ended=True, cut=case.cut)
    assert (accepted(before, after, offered) if offered else None) == case.result
    check_streaming(case.raw, before, after, mode, case.language)


def test_there_are_enough_cases_with_different_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize(
    ("before_line", "after_line", "expected"),
    [
        ("", "", Mode.BLOCK),
        ("    ", "  ", Mode.BLOCK),
        ("    ", "}", Mode.BLOCK),
        ("def f():", "", Mode.BLOCK),
        ("def f():  ", "", Mode.BLOCK),
        ("def f(", "):", Mode.BLOCK),
        ("if (x) {", "}", Mode.BLOCK),
        ("f = x =>", "", Mode.BLOCK),
        ("for x in y; do", "", Mode.BLOCK),
        ("xs.each do |x, y|", "", Mode.BLOCK),
        ("x = ", "", Mode.LINE),
        ("undo", "", Mode.LINE),
        ("std::", "", Mode.LINE),
        ("def f():", "  # why", Mode.LINE),
        ("", "return x", Mode.LINE),
        ('print("', '");', Mode.LINE),
    ],
)
def test_auto_mode(before_line: str, after_line: str, expected: Mode) -> None:
    assert choose_mode(before_line, after_line, "auto") is expected
    assert choose_mode(before_line, after_line, "single") is Mode.LINE
    assert choose_mode(before_line, after_line, "multi") is Mode.BLOCK


@pytest.mark.parametrize(
    ("raw", "before", "mode", "expected"),
    [
        ("abc", "x", Mode.LINE, None),
        ("abc\nd", "x", Mode.LINE, 3),
        ("\nabc", "x", Mode.LINE, 0),
        ("ab```", "x", Mode.LINE, 2),
        ("\n    a\n", "def f():", Mode.BLOCK, None),
        ("\n    a\n  ", "def f():", Mode.BLOCK, None),
        ("\n    a\n\n\nb", "def f():", Mode.BLOCK, 6),
        ("\n    a\n  b", "def f():", Mode.BLOCK, None),
        ("\na", "def f():", Mode.BLOCK, 0),
        ("\n  a\n}", "if (x) {", Mode.BLOCK, None),
        ("\n  a\n}\n", "if (x) {", Mode.BLOCK, 6),
        ("\n  a\n} else {\n", "if (x) {", Mode.BLOCK, None),
        ("\n  a\nen", "if x then", Mode.BLOCK, None),
        ("\n  a\nend", "if x then", Mode.BLOCK, None),
        ("\n  a\nend\n", "if x then", Mode.BLOCK, 8),
        ("\n  a\nendp", "if x then", Mode.BLOCK, 4),
        ("a\n    b\n  c", "{\n    ", Mode.BLOCK, 7),
        ("a\nb\n", "", Mode.BLOCK, None),
        ("a\nb\n\n", "", Mode.BLOCK, 3),
        ("def f():\n  a\n\n", "", Mode.BLOCK, None),
        ("def f():\n  a\n\n  b\n\nc", "", Mode.BLOCK, 17),
    ],
)
def test_stop(raw: str, before: str, mode: Mode, expected: int | None) -> None:
    assert stop(raw, before=before, mode=mode, max_lines=MAX_LINES) == expected


def test_a_block_has_at_most_max_lines() -> None:
    raw = "\n    a\n\n    b\n    c\n    d\n"
    assert stop(raw, before="def f():", mode=Mode.BLOCK, max_lines=3) == raw.index("b") + 1
    assert stop(raw, before="def f():", mode=Mode.BLOCK, max_lines=2) == raw.index("a") + 1


def test_a_growing_answer_holds_back_what_it_may_lose() -> None:
    def grown(raw: str, before: str, after: str) -> str | None:
        offered = offer(raw, before=before, after=after, mode=Mode.BLOCK, finished=False)
        return offered.text if offered else None

    assert grown("a, b)", "f(", ")") == "a, b"
    assert grown("y = 1\n    ret", "    ", "\n    return x") == "y = 1"
    assert grown("ret", "    ", "\n    return x") is None
    assert grown("x  ", "    ", "") == "x"
    assert grown("x``", "    ", "") == "x"
    assert grown("\n  a()\n  a()\n", "{", "") == "\n  a()"
    assert grown("\n  a()\nend", "if x then", "") == "\n  a()"


def test_half_characters_are_never_offered() -> None:
    def text(raw: str, finished: bool) -> str | None:
        offered = offer(raw, before="x = ", after="", mode=Mode.LINE, finished=finished)
        return offered.text if offered else None

    assert text('"\ud83e', finished=False) == '"'
    assert text('"\ud83e\udd78"', finished=True) == '"🥸"'
    assert text('"\udd78"', finished=True) == '""'
    assert text("\ud83e", finished=True) is None


def test_type_through() -> None:
    assert type_through("bar", "b") == "ar"
    assert type_through("bar", "") == "bar"
    assert type_through("bar", "bar") == ""
    assert type_through("bar", "barb") is None
    assert type_through("bar", "x") is None


# Properties over texts made of what the rules look at

WORDS = [
    "a",
    "x1",
    "foo",
    "end",
    "endx",
    "else",
    "fi",
    "then",
    "do",
    "return x",
    "if x:",
    "...",
    "0, 0, ",
    "aaa",
    "#if",
    "#endif",
    "private:",
    "\\",
    "// ",
    "a_very_long_line(with_some_arguments, and_more)",
    "é",
    "🥸",
]
SIGNS = ["(", ")", "[", "]", "{", "}", "<", ">", '"', "'", "`", "```", ";", ",", ":", "):", " => "]
SIGNS += ['"""', "'''", "/*", "*/", "${", 'r#"', '"#', 'R"(', ')"', "# ", "<a>"]
BLANKS = [
    " ",
    "\r\n",
    "\ud83e",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n",
    "\n  ",
    "\n    ",
    "\n\n",
    "\n\t",
    "\n}\n",
    "\nend\n",
]

pieces = st.sampled_from(WORDS + SIGNS + BLANKS)
raws = st.lists(pieces, max_size=14).map("".join)
lines_around = st.lists(pieces, max_size=8).map("".join)
modes = st.sampled_from(Mode)
languages = st.sampled_from(["", *sorted(LANGUAGES)])


@st.composite
def close_raws(draw: st.DrawFn) -> tuple[str, str, str]:
    """Raw text that repeats parts of what stands right of and below the cursor."""
    before, after = draw(lines_around), draw(lines_around)
    parts = [draw(raws)]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(after)))
        parts += [after[start : start + draw(st.integers(0, 12))], draw(raws)]
    return "".join(parts), before, after


@settings(deadline=None)
@given(raws, raws, lines_around, lines_around, languages, modes, st.integers(1, 4))
def test_stop_is_not_contradicted_by_more_text(
    raw: str, more: str, before: str, after: str, language: str, mode: Mode, max_lines: int
) -> None:
    place = {"before": before, "after": after, "language": language}
    cut = stop(raw, mode=mode, max_lines=max_lines, **place)
    assume(cut is not None)
    assert stop(raw + more, mode=mode, max_lines=max_lines, **place) == cut


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(close_raws(), modes, languages)
def test_offers_of_growing_text_are_prefixes_of_the_last(
    texts: tuple[str, str, str], mode: Mode, language: str
) -> None:
    check_streaming(*texts, mode, language)


@pytest.mark.long
@settings(deadline=None)  # a tree for each character
@given(st.lists(raws, min_size=1, max_size=3), st.integers(2, 9), lines_around, modes, languages)
def test_offers_of_text_that_repeats_itself_only_grow(
    parts: list[str], times: int, before: str, mode: Mode, language: str
) -> None:
    check_streaming(parts[0] + "".join(parts[1:]) * times + parts[-1], before, "", mode, language)


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(close_raws(), modes, languages, st.booleans(), st.booleans())
def test_accepting_loses_nothing_of_the_user(
    texts: tuple[str, str, str], mode: Mode, language: str, ended: bool, cut: bool
) -> None:
    raw, before, after = texts
    offered = answer(raw, before, after, mode, language, ended=ended, cut=ended and cut)
    assume(offered is not None)
    assert offered is not None
    assert offered.text.strip()
    assert offered.text == offered.text.rstrip()
    replaced = after[: offered.replace_after]
    assert len(replaced) == offered.replace_after
    assert "\n" not in replaced
    assert is_subsequence("".join(replaced.split()), offered.text)


@given(close_raws(), modes)
def test_no_line_of_an_offer_ends_with_blanks(texts: tuple[str, str, str], mode: Mode) -> None:
    raw, before, after = texts
    offered = answer(raw, before, after, mode, ended=True)
    for line in offered.text.split("\n")[1:] if offered else []:
        assert line == line.rstrip()


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # few answers are one line
@given(close_raws(), modes)
def test_the_next_line_is_never_offered_as_a_last_line(
    texts: tuple[str, str, str], mode: Mode
) -> None:
    raw, before, after = texts
    offered = answer(raw, before, after, mode, ended=True)
    below = next((line for line in after.split("\n")[1:] if line.strip()), None)
    assume(offered is not None and below is not None and "\n" not in offered.text)
    assert offered is not None
    line = (
        before.rpartition("\n")[2]
        + offered.text
        + after.partition("\n")[0][offered.replace_after :]
    )
    assert line.rstrip() != (below or "").rstrip()


@given(raws, st.sampled_from(["f(", "x = [", '"a', "    x"]), modes)
def test_an_answer_that_ends_with_the_rest_keeps_it_once(raw: str, before: str, mode: Mode) -> None:
    rest = " + tail(1)"
    offered = answer(raw + rest, before, rest, mode, ended=True)
    text = accepted(before, rest, offered) if offered else before + rest
    assert text.count("tail") == 1


def test_many_backslashes_in_an_unclosed_string_are_no_trouble() -> None:
    raw = "'" + r"\d" * 5000
    found = offer(raw, before="re.compile(", after=")\n", mode=Mode.LINE, finished=True)
    assert found is not None
    assert found.text.startswith("'")


@pytest.mark.parametrize("piece", ["a", "_9", "function f(a", "do |x"])
def test_a_line_of_any_length_takes_its_length(piece: str) -> None:
    # Where it takes the square of that, this takes an hour.
    before = piece * (400_000 // len(piece)) + " = "
    assert choose_mode(before, "", "auto") is Mode.LINE
    found = offer("value", before=before, after="", mode=Mode.LINE, finished=False)
    assert found == Offer("value", 0)


def test_a_later_line_of_blanks_does_not_change_what_was_offered() -> None:
    before = "auto f()\n\t    requires one\n\t    && two"
    raw, last = "_more\n\t    && (three\n\t\t|| four)\n      {", ""
    for size in range(1, len(raw) + 1):
        cut = stop(raw[:size], before=before, language="", mode=Mode.BLOCK, max_lines=12)
        found = offer(
            raw[: size if cut is None else cut],
            before=before,
            after="",
            language="",
            mode=Mode.BLOCK,
            finished=cut is not None,
        )
        assert (found.text if found else "").startswith(last)
        last = found.text if found else ""
    assert "four)" in last


def test_a_first_line_that_becomes_one_of_two_below_is_held_back() -> None:
    below = "x\n#define other_name\n#ifndef some_name\n#define some_name\n"
    raw, last = "#ifndef some_name\n#define some_name\n", ""
    for size in range(1, len(raw) + 1):
        found = offer(raw[:size], before="a\n", after=below, mode=Mode.LINE, finished=False)
        assert (found.text if found else "").startswith(last)
        last = found.text if found else ""
