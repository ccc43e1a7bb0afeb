"""The number of draft tokens: the best by what is known, and what is known follows the outcomes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.decode.draft_length import (
    EXPLORE,
    LONG,
    MOST,
    PRIOR,
    DraftLength,
    PassCost,
    Trust,
)

ALMOST_FREE = PassCost.of([(1, 24.0), (17, 39.0)])
PROPORTIONAL = PassCost.of([(1, 1.0)])
TEXT = Trust("text", 2)
MODEL = Trust("model", LONG)

trusts = st.builds(Trust, st.sampled_from(["text", "ghost"]), st.integers(1, 16))
outcomes = st.lists(
    st.tuples(trusts, st.integers(1, MOST), st.integers(0, MOST)).map(
        lambda one: (one[0], one[1], min(one[1], one[2]))
    ),
    max_size=60,
)
costs = st.dictionaries(st.integers(2, 20), st.floats(0.5, 30), max_size=6).map(
    lambda times: PassCost.of([(1, 1.0), *times.items()])
)


def taught(cost: PassCost, seen: list[tuple[Trust, int, int]]) -> DraftLength:
    length = DraftLength(cost)
    for one in seen:
        length.observe(*one)
    return length


def usual(length: DraftLength, trust: Trust, available: int = MOST) -> int:
    """The choice that is made when it is not one's turn to try more."""
    return min(length.choose(trust, available) for _ in range(2))


@given(costs, outcomes, trusts, st.integers(0, 20), st.floats(0, 0.3))
def test_the_choice_is_the_best(
    cost: PassCost,
    seen: list[tuple[Trust, int, int]],
    trust: Trust,
    available: int,
    token_cost: float,
) -> None:
    length = taught(cost, seen)
    rates = length.rates(trust.source)

    def speed(count: int) -> float:
        chances = [1.0]
        for number in range(count):
            chances.append(chances[-1] * rates[min(trust.match + number, LONG) - 1])
        return sum(chances) / (cost(count + 1) + token_cost * count)

    chosen = length.choose(trust, available, token_cost)
    assert 0 <= chosen <= min(available, MOST)
    speeds = [speed(count) for count in range(min(available, MOST) + 1)]
    assert speeds[chosen] == pytest.approx(max(speeds))
    assert chosen == min(n for n, one in enumerate(speeds) if one >= speeds[chosen])


@given(outcomes, trusts)
def test_where_a_pass_costs_as_much_as_its_positions_no_draft_pays(
    seen: list[tuple[Trust, int, int]], trust: Trust
) -> None:
    assert taught(PROPORTIONAL, seen).choose(trust, MOST) == 0


@given(outcomes)
def test_rates_are_chances(seen: list[tuple[Trust, int, int]]) -> None:
    length = taught(ALMOST_FREE, seen)
    assert all(0 < rate < 1 for source in ("text", "ghost") for rate in length.rates(source))


@given(outcomes, trusts, st.integers(1, 8))
def test_more_is_proposed_where_more_was_accepted(
    seen: list[tuple[Trust, int, int]], trust: Trust, count: int
) -> None:
    worse, better = taught(ALMOST_FREE, seen), taught(ALMOST_FREE, seen)
    for _ in range(5):
        worse.observe(trust, count, 0)
        better.observe(trust, count, count)
    assert worse.choose(trust, MOST) <= better.choose(trust, MOST)


def test_choices_follow_the_acceptance_down_and_up_again() -> None:
    length = DraftLength(ALMOST_FREE)
    at_first = usual(length, MODEL)
    assert 0 < at_first < MOST
    for _ in range(100):
        length.observe(MODEL, 4, 4)
    assert usual(length, MODEL) == MOST
    for _ in range(200):
        length.observe(MODEL, 4, 0)
    assert usual(length, MODEL) == 0
    assert usual(length, TEXT) > 0, "another source has nothing to do with it"
    choices = 0
    while usual(length, MODEL) < at_first:  # learning only from what is chosen
        choices += 1
        chosen = length.choose(MODEL, MOST)
        length.observe(MODEL, chosen, chosen)
        assert choices < 30 * EXPLORE


def test_a_source_that_is_never_right_costs_one_position_now_and_then() -> None:
    length = DraftLength(ALMOST_FREE)
    for _ in range(300):
        length.observe(MODEL, 1, 0)
    chosen = [length.choose(MODEL, MOST) for _ in range(10 * EXPLORE)]
    assert sorted(chosen) == [0] * (9 * EXPLORE + EXPLORE - 10) + [1] * 10


def test_nothing_is_tried_where_nothing_is_available() -> None:
    length = DraftLength(PROPORTIONAL)
    assert [length.choose(TEXT, 0) for _ in range(3 * EXPLORE)] == [0] * (3 * EXPLORE)


def test_an_accepted_token_makes_the_match_longer() -> None:
    length = DraftLength(ALMOST_FREE)
    length.observe(Trust("text", 2), 5, 2)
    seen = [now - prior for now, prior in zip(length.rates("text"), PRIOR, strict=True)]
    assert [(change > 0) - (change < 0) for change in seen[:6]] == [0, 1, 1, -1, 0, 0]


def test_tokens_that_a_draft_model_must_make_are_counted() -> None:
    length = DraftLength(ALMOST_FREE)
    assert length.choose(MODEL, MOST, 0.1) < length.choose(MODEL, MOST)
    assert length.choose(MODEL, MOST, 1.0) == 0


@given(costs, st.integers(1, 40))
def test_a_wider_pass_never_costs_less(cost: PassCost, width: int) -> None:
    assert cost(1) == 1.0
    assert cost(width + 1) >= cost(width) - 1e-12


def test_costs_between_and_behind_the_measured_widths() -> None:
    cost = PassCost.of([(9, 0.06), (1, 0.02), (5, 0.03), (13, 0.05)])
    assert [width for width, _ in cost.points] == [1, 5, 9, 13]
    assert [relative for _, relative in cost.points] == pytest.approx([1, 1.5, 3, 3])
    assert [cost(width) for width in (1, 3, 5, 7, 11)] == pytest.approx([1, 1.25, 1.5, 2.25, 3])
    assert PassCost.of([(1, 2.0), (5, 3.0), (9, 6.0)])(13) == pytest.approx(4.5)
    assert PROPORTIONAL(7) == 7


@given(costs)
def test_costs_go_through_json(cost: PassCost) -> None:
    assert PassCost.of(json.loads(json.dumps(cost.points))) == cost


@pytest.mark.parametrize(
    "times",
    [[], [(2, 1.0)], [(1, 1.0), (1, 2.0)], [(0, 1.0), (1, 1.0)], [(1, 0.0)], [(1, float("nan"))]],
)
def test_times_that_say_nothing_are_refused(times: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match=r"pass"):
        PassCost.of(times)
