"""The window is a pure function of the text, stays where it is, and keeps to its budget."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from completion_ls.prompt.build import FIM_LINES
from completion_ls.prompt.window import (
    anchor_before,
    window_after,
    window_before,
)

lines = st.lists(st.text(alphabet="ab (\té🥸", max_size=30), max_size=120)


def cost(text: str) -> int:
    return len(text)


@given(lines, st.integers(64, 600))
def test_the_window_is_the_end_of_the_text_within_the_budget(text: list[str], budget: int) -> None:
    whole = "\n".join(text)
    window = window_before(whole, budget, cost)
    assert whole.endswith(window)
    assert cost(window) <= budget


@given(lines, st.integers(64, 600))
def test_a_window_starts_at_a_line_unless_one_line_is_too_long(
    text: list[str], budget: int
) -> None:
    whole = "\n".join(text)
    window = window_before(whole, budget, cost)
    start = len(whole) - len(window)
    assert start == 0 or whole[start - 1] == "\n"


@given(lines, st.integers(64, 600))
def test_text_that_fits_is_taken_whole(text: list[str], budget: int) -> None:
    whole = "\n".join(text)
    if cost(whole) <= budget // 2:
        assert window_before(whole, budget, cost) == whole


def numbered(count: int) -> str:
    return "".join(f"    value_{n} = compute({n})\n" for n in range(count))


def test_typing_a_line_moves_nothing() -> None:
    above = numbered(300)
    starts = {
        len(above) - len(window_before(above + "    return value"[:n], 1000, cost)) + n
        for n in range(17)
    }
    assert len(starts) == 1


def test_enter_moves_the_start_seldom() -> None:
    starts = []
    for count in range(300, 400):
        text = numbered(count)
        starts.append(len(text) - len(window_before(text, 2000, cost)))
    moves = sum(a != b for a, b in itertools.pairwise(starts))
    assert starts == sorted(starts)
    assert 0 < moves <= 20


def test_edits_above_the_window_change_nothing() -> None:
    text = numbered(300)
    assert window_before("# a new first line\n" + text, 1000, cost) == window_before(
        text, 1000, cost
    )


@given(lines, st.integers(0, 300))
def test_the_suffix_is_whole_lines_from_the_start(text: list[str], budget: int) -> None:
    whole = "\n".join(text)
    window = window_after(whole, budget, cost)
    assert whole.startswith(window)
    assert cost(window) <= budget
    assert window == whole or not window or window.endswith("\n")


def test_a_minified_file_is_cut_inside_its_line() -> None:
    window = window_before("x" * 100_000, 1000, cost)
    assert 0 < len(window) <= 1000


@given(lines, st.integers(0, 300))
def test_the_anchor_is_the_start_of_a_line_above(text: list[str], limit: int) -> None:
    whole = "\n".join(text)
    anchor = anchor_before(whole, limit, cost, FIM_LINES)
    assert anchor == 0 or whole[anchor - 1] == "\n"
    between = whole[anchor:].split("\n")[:-1]
    assert len(between) < FIM_LINES.stop
    if len(between) > 2:
        assert sum(len(line) + 1 for line in between[:-1]) <= limit


@given(lines, st.integers(0, 300), st.text(alphabet="ab (\té🥸", max_size=30))
def test_the_anchor_of_the_next_line_is_known_before_this_one_is_written(
    text: list[str], limit: int, typed: str
) -> None:
    above = "".join(line + "\n" for line in text)
    assert anchor_before(above + typed, limit, cost, FIM_LINES) == anchor_before(
        above, limit, cost, FIM_LINES
    )
    if len(text) > 1:  # a text of two lines is all middle
        anchors = {
            anchor_before(above + line + "\n", limit, cost, FIM_LINES) for line in ("", typed)
        }
        assert len(anchors) == 1


def test_enter_moves_the_anchor_seldom() -> None:
    anchors = [anchor_before(numbered(count), 1000, cost, FIM_LINES) for count in range(300, 400)]
    moves = sum(a != b for a, b in itertools.pairwise(anchors))
    assert anchors == sorted(anchors)
    assert 0 < moves <= 30


def test_blank_lines_do_not_hold_the_anchor_nor_move_it() -> None:
    text = numbered(20) + "\n" * 3
    anchors = [anchor_before(text + "\n" * count, 1000, cost, FIM_LINES) for count in range(40)]
    assert anchors == sorted(anchors)
    assert len(set(anchors[20:])) == len(anchors[20:])
