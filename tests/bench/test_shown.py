"""What ghost text was worth, on recordings made up for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench.future import came_next
from completion_ls.bench.shown import Key, Worth, first_line, rows, worth
from completion_ls.bench.trace import Patch, Transaction


def typing(position: int, text: str) -> list[Transaction]:
    return [(Patch(position + n, 0, one),) for n, one in enumerate(text)]


@pytest.mark.parametrize(
    ("transactions", "expected"),
    [
        ([], ")\n"),
        (typing(5, "abc"), "abc)\n"),
        ([*typing(5, "ax"), (Patch(6, 1, ""),), *typing(6, "b")], "ab)\n"),  # a slip
        ([*typing(5, "ab"), *typing(0, "#")], "ab)\n"),  # left for another place ...
        ([*typing(5, "ab"), *typing(0, "#"), *typing(8, "c")], "ab)\n"),  # ... for good
        ([*typing(5, "ab"), *typing(9, "c"), *typing(7, "d")], "ab)\n"),
        (
            [*typing(5, "a"), (Patch(4, 2, ""),), *typing(4, "b")],
            "a)\n",
        ),  # what stood before is gone
        ([(Patch(5, 0, "()"),), *typing(6, "x")], "(x))\n"),  # an editor's closer
        ([(Patch(5, 1, "ab"),), *typing(7, "c")], "abc\n"),  # typed over what stood behind
        ([(Patch(5, 0, "a"), Patch(6, 0, "b"))], "ab)\n"),
        ([(), *typing(5, "a")], "a)\n"),
    ],
)
def test_what_came_next_is_followed_until_the_place_is_left(
    transactions: list[Transaction], expected: str
) -> None:
    assert came_next(")\n", 5, transactions) == expected


def test_only_so_many_transactions_are_followed() -> None:
    assert came_next("", 0, typing(0, "a" * 300)) == "a" * 200


def keys_of(document: str, start: int, shown: dict[int, str]) -> list[Key]:
    """Of a document that is typed to its end, with what was shown after so many characters."""
    return [
        Key(document[:size], size, shown.get(size, ""), document[size:])
        for size in range(start, len(document) + 1)
    ]


def test_a_right_text_is_accepted_once_and_typed_meanwhile() -> None:
    document = "return width * height\n"
    found = worth(keys_of(document, 1, {2: "turn width", 4: "urn width", 13: "* depth"}))
    assert (found.typed, found.keys) == (22, 22 - 9)
    assert (found.shown, found.right, found.accepted, found.saved) == (2, 1, 1, 9)
    assert found.characters == len("turn width") + len("* depth")
    assert found.characters_right == len("turn width") + len("* ")
    assert found.precision == 0.5
    assert found.utility(0.5) == pytest.approx((9 - 0.5) / 22)


def test_the_first_line_is_accepted_where_the_second_is_wrong() -> None:
    found = worth(keys_of("a = 1\nb = 2\n", 2, {2: "= 1\nc = 3", 7: " = 2\n"}))
    assert (found.right, found.accepted, found.saved) == (2, 2, len("= 1") - 1 + len(" = 2\n") - 1)
    assert found.lines == 4


def test_a_character_alone_saves_nothing_and_is_not_accepted() -> None:
    found = worth(keys_of("f()\n", 1, {2: ")"}))
    assert (found.shown, found.right, found.accepted, found.saved) == (1, 1, 0, 0)


def test_nothing_shown_is_worth_nothing_and_no_error() -> None:
    assert worth([]) == Worth()
    found = worth(keys_of("abc", 0, {}))
    assert (found.keys, found.shown, found.precision, found.utility(1)) == (4, 0, 0.0, 0.0)
    assert len(rows(found)) == 3


@given(
    st.text("ab\n", max_size=12), st.dictionaries(st.integers(0, 12), st.text("ab\n", max_size=5))
)
def test_no_more_is_saved_than_was_typed(document: str, shown: dict[int, str]) -> None:
    found = worth(keys_of(document, 0, shown))
    assert found.saved + found.accepted <= len(document)
    assert found.accepted <= found.right + 1e-9
    assert 0 <= found.characters_right <= found.characters
    assert found.right <= found.shown <= found.keys <= found.typed


@pytest.mark.parametrize(
    ("text", "first"), [("a\nb", "a"), ("\n  a\nb", "\n  a"), ("", ""), ("a", "a"), ("\n", "\n")]
)
def test_the_first_line_is_the_first_with_text(text: str, first: str) -> None:
    assert first_line(text) == first
