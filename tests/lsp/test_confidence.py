"""What is offered unasked: however the text comes, and while it comes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.lsp.confidence import OFF
from completion_ls.lsp.rules import Mode
from completion_ls.lsp.suggestion import Suggestion
from support.session import at

Tokens = list[tuple[str, float]]
texts = st.sampled_from(
    [
        "return",
        " x",
        "\n",
        "\n    ",
        "    ",
        "if",
        " (",
        ")",
        ":",
        "\n\n",
        "a,\n",
        "é",
        "`",
        "}",
        "end",
    ]
)
logprobs = st.sampled_from([0.0, -0.05, -0.3, -0.7, -2.5])
tokens = st.lists(st.tuples(texts, logprobs), max_size=14)
places = st.sampled_from(
    [
        at("def f(x):\n    "),
        at("x = "),
        at("if x:"),
        at("print(", ")\n"),
        at("def f():\n    a", "\n"),
    ]
)
leasts = st.sampled_from([OFF, math.log(0.1), math.log(0.4), math.log(0.8)])


def begun(place: object, mode: Mode, least: float) -> Suggestion:
    return Suggestion(place, mode, 4, "key", least=least)  # type: ignore[arg-type]


def offered(suggestion: Suggestion) -> str:
    offer = suggestion.offer()
    return offer.text if offer else ""


def give(suggestion: Suggestion, some: Tokens) -> None:
    if not suggestion.finished:
        suggestion.add(
            "".join(text for text, _ in some),
            [logprob for _, logprob in some],
            [len(text) for text, _ in some],
        )


@given(tokens, st.lists(st.integers(1, 4)), places, st.sampled_from(Mode), leasts)
def test_the_text_is_the_same_however_many_tokens_come_at_once(
    given_tokens: Tokens, sizes: list[int], place: object, mode: Mode, least: float
) -> None:
    one, many = begun(place, mode, least), begun(place, mode, least)
    for token in given_tokens:
        give(one, [token])
    left = given_tokens
    for size in [*sizes, len(left)]:
        give(many, left[:size])
        left = left[size:]
    assert (one.finished, one.stopped, one.raw) == (many.finished, many.stopped, many.raw)
    one.finished = many.finished = True
    assert one.offer() == many.offer()


@given(tokens, places, st.sampled_from(Mode), leasts)
def test_what_is_offered_only_grows(
    given_tokens: Tokens, place: object, mode: Mode, least: float
) -> None:
    suggestion = begun(place, mode, least)
    shown = [offered(suggestion)]
    for token in given_tokens:
        give(suggestion, [token])
        shown.append(offered(suggestion))
    suggestion.finished = True
    shown.append(offered(suggestion))
    for before, after in itertools.pairwise(shown):
        assert after.startswith(before)


@given(tokens, places, st.sampled_from(Mode), leasts)
def test_a_suggestion_that_was_whole_can_be_limited_afterwards(
    given_tokens: Tokens, place: object, mode: Mode, least: float
) -> None:
    whole, limited = begun(place, mode, OFF), begun(place, mode, least)
    for token in given_tokens:
        give(whole, [token])
        give(limited, [token])
    whole.finished = limited.finished = True
    assert not whole.stopped
    assert whole.limited(least).offer() == limited.offer()
    assert whole.limited(OFF).offer() == whole.offer()


@pytest.mark.parametrize(
    ("given_tokens", "expected", "stopped"),
    [
        ([("return", -0.1), (" x", -0.1), ("\n", -3.0)], "return x", True),
        ([("return", -0.1), (" x", -0.9)], "return", True),
        ([("return", -0.9), (" x", 0.0)], "", True),
        # Each further line by itself, and whole or not at all.
        ([("a", -0.4), ("\n    ", -0.4), ("b", -0.2), ("\n    ", -0.1)], "a\n    b", False),
        ([("a", -0.4), ("\n    ", -0.4), ("b", -0.2), ("c", -0.9)], "a", True),
        ([("a", -0.1), ("\n    b", 0.0), ("\n    c", -0.1), ("d", -1.0)], "a\n    b", True),
        ([("a:\n", -0.6), ("        b", -0.6), ("\n", 0.0)], "a:\n        b", False),
        # Lines without text in front belong to the first one.
        ([("\n    ", -0.6), ("b", -0.6)], "", True),
    ],
)
def test_a_suggestion_ends_where_the_model_is_not_sure(
    given_tokens: Tokens, expected: str, stopped: bool
) -> None:
    before = "if x:" if given_tokens[0][0].startswith("\n") else "if x:\n    "
    suggestion = begun(at(before), Mode.BLOCK, math.log(0.45))
    give(suggestion, given_tokens)
    suggestion.finished = True
    assert (offered(suggestion), suggestion.stopped) == (expected, stopped)


def test_text_whose_probability_is_not_told_is_certain() -> None:
    suggestion = begun(at("x = "), Mode.LINE, math.log(0.9))
    suggestion.add("1 + ")
    suggestion.add("2 + 3", [-0.05], [1])
    assert offered(suggestion) == "1 + 2 + 3"


def test_a_further_line_waits_until_it_is_whole() -> None:
    suggestion = begun(at("def f():\n    "), Mode.BLOCK, math.log(0.5))
    for token, expected in [("a", "a"), (" = 1", "a = 1"), ("\n    b", "a = 1"), ("c", "a = 1")]:
        give(suggestion, [(token, 0.0)])
        assert offered(suggestion) == expected
    give(suggestion, [("\n    d", 0.0)])
    assert offered(suggestion) == "a = 1\n    bc"
