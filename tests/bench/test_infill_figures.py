"""Statistics of infilling, on synthetic results."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench.infill_figures import (
    Estimate,
    Kind,
    Result,
    arm_figures,
    bootstrap,
    compared,
    decided,
    edit_similarity,
    wilson,
)

TEXTS = st.text("ab(", max_size=12)
CLUSTERED = st.lists(st.tuples(st.integers(0, 5), st.floats(-1, 1)), min_size=1, max_size=40)


def result(place: int, arm: str, right: bool, function: str = "", **changed: object) -> Result:
    values: dict[str, object] = {
        "function": function or f"f{place}",
        "place": str(place),
        "kind": Kind.WORD,
        "arm": arm,
        "text": "right" if right else "wrong",
        "exact": right,
        "similarity": 1.0 if right else 0.25,
        "passed": right,
        "below": True,
    }
    return Result(**(values | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "similarity"),
    [
        ("", "", 1.0),
        ("", "abc", 0.0),
        ("abc", "abd", 2 / 3),
        ("return a", "return b", 7 / 8),
        ("kitten", "sitting", 1 - 3 / 7),
        ("ab", "ba", 0.0),
    ],
)
def test_known_similarities(one: str, other: str, similarity: float) -> None:
    assert edit_similarity(one, other) == pytest.approx(similarity)


@given(TEXTS, TEXTS, TEXTS)
def test_the_edit_distance_is_one(a: str, b: str, c: str) -> None:
    def distance(one: str, other: str) -> int:
        return round((1 - edit_similarity(one, other)) * max(len(one), len(other)))

    assert (distance(a, b) == 0) is (a == b)
    assert distance(a, b) == distance(b, a)
    assert distance(a, c) <= distance(a, b) + distance(b, c)
    assert abs(len(a) - len(b)) <= distance(a, b) <= max(len(a), len(b))
    assert distance(a, a + c) == len(c)


def test_wilson_is_as_published() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I.
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = wilson(successes, trials)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(drawn: tuple[int, int]) -> None:
    successes, trials = drawn
    found, other = wilson(successes, trials), wilson(trials - successes, trials)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0
    assert found.low == pytest.approx(1 - other.high)
    more = wilson(4 * successes, 4 * trials)
    assert more.high - more.low < found.high - found.low


@pytest.mark.parametrize("share", [(0, 0), (-1, 3), (4, 3)])
def test_no_share_is_an_error(share: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson(*share)


@given(CLUSTERED, st.integers(0, 9))
def test_a_bootstrap_is_around_the_mean_and_its_seed_is_all(
    values: list[tuple[int, float]], seed: int
) -> None:
    found = bootstrap(values, seed)
    assert found.value == pytest.approx(math.fsum(value for _, value in values) / len(values))
    assert found.low <= found.value <= found.high
    assert found == bootstrap(values, seed)
    lowest, highest = min(value for _, value in values), max(value for _, value in values)
    assert lowest - 1e-9 <= found.low and found.high <= highest + 1e-9


@given(st.floats(-1, 1), st.integers(1, 20))
def test_equal_values_leave_no_doubt(value: float, count: int) -> None:
    found = bootstrap(enumerate([value] * count), 0)
    assert (found.low, found.high) == pytest.approx((value, value))


def test_a_bootstrap_holds_the_mean_about_as_often_as_it_says() -> None:
    random = Random(1)
    held = 0
    for seed in range(200):
        found = bootstrap(enumerate(random.gauss(0.3, 1) for _ in range(60)), seed)
        held += found.low <= 0.3 <= found.high
    assert 178 <= held <= 199  # of 200: 190 are expected, and the deviation is 3


def test_values_of_one_cluster_say_less_than_as_many_of_their_own() -> None:
    values = [float(number % 2) for number in range(40)]
    alone = bootstrap(enumerate(values), 0)
    together = bootstrap(((number % 4, value) for number, value in enumerate(values)), 0)
    assert together.value == alone.value
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_a_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        bootstrap([], 0)


def test_figures_are_by_kind_and_arm() -> None:
    results = [result(place, "a", place < 3) for place in range(4)]
    results += [result(4, "a", True, kind=Kind.START), result(0, "b", False, text=" ")]
    found = arm_figures(results, 0)
    assert [(one.kind, one.arm, one.places) for one in found] == [
        (Kind.START, "a", 1),
        (Kind.WORD, "a", 4),
        (Kind.WORD, "b", 1),
    ]
    assert found[1].exact.value == found[1].passed.value == 0.75
    assert found[1].similarity.value == pytest.approx((3 + 0.25) / 4)
    assert (found[1].offered, found[2].offered) == (1.0, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_a_comparison_is_of_the_same_places(rights: list[tuple[bool, bool]]) -> None:
    results = [result(1000, "a", True), result(1001, "b", True)]  # each alone
    for place, (one, other) in enumerate(rights):
        results += [result(place, "b", other), result(place, "a", one)]
    (found,) = compared(results, "it", "a", "b", 0)
    assert found.places == len(rights)
    assert found.other_texts == sum(one != other for one, other in rights)
    mean = sum(one - other for one, other in rights) / len(rights)
    assert found.exact.value == pytest.approx(mean)
    assert found.similarity.value == pytest.approx(0.75 * mean)
    (turned,) = compared(results, "it", "b", "a", 0)
    assert turned.exact.value == pytest.approx(-mean)


def test_pairs_are_more_certain_than_shares() -> None:
    """Places differ much, and one arm is right at a few more of them."""
    results = []
    for place in range(200):
        results += [
            result(place, "a", place % 2 == 0 or place % 20 == 1),
            result(place, "b", place % 2 == 0),
        ]
    a, b = arm_figures(results, 0)
    assert a.exact.low < b.exact.high  # the shares' intervals overlap
    (found,) = compared(results, "it", "a", "b", 0)
    assert found.exact.value == pytest.approx(0.05)
    assert found.functions == 200 and decided(found.exact, found.functions)


def test_an_arm_that_is_missing_is_not_compared() -> None:
    assert compared([result(0, "a", True)], "it", "a", "b", 0) == []


def test_a_difference_is_decided_when_its_interval_is_on_one_side() -> None:
    better, worse = Estimate(0.1, 0.01, 0.2), Estimate(-0.1, -0.2, -0.01)
    assert decided(better, 50) and decided(worse, 50)
    assert not decided(Estimate(0.1, 0.0, 0.2), 50) and not decided(Estimate(0.0, -0.1, 0.1), 50)
    assert not decided(better, 1)  # one function always agrees with itself
