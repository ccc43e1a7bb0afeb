"""From a model's own probabilities to calibrated ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.models.catalogue import DEFAULT
from completion_ls.models.reliability import (
    Point,
    least_logprob,
    least_probability,
    monotone,
    table,
)

POINTS = (Point(0.2, 0.1), Point(0.5, 0.4), Point(0.9, 0.7))
shares = st.floats(0, 1)


@pytest.mark.parametrize("model", ["x" * 300, "a/b", "a\0b", ""])
def test_a_name_of_no_table(model: str) -> None:
    assert table(model) == ()


@pytest.mark.parametrize(
    ("show_above", "least"),
    [
        (0.0, 0.0),
        (0.05, 0.1),
        (0.1, 0.2),
        (0.25, 0.35),
        (0.4, 0.5),
        (0.7, 0.9),
        (0.85, 0.95),
        (1, 1),
    ],
)
def test_the_least_probability_is_read_off_the_points(show_above: float, least: float) -> None:
    assert least_probability(POINTS, show_above) == pytest.approx(least)


def test_nothing_asked_for_is_nothing_needed() -> None:
    assert least_probability([Point(0.5, 0.0), Point(0.9, 0.9)], 0.0) == 0.0


@given(shares)
def test_without_points_it_is_the_models_own(show_above: float) -> None:
    assert least_probability((), show_above) == pytest.approx(show_above)


@given(shares, shares)
def test_more_asked_for_is_more_needed(one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert 0 <= least_probability(POINTS, low) <= least_probability(POINTS, high) <= 1


@given(st.lists(st.tuples(shares, shares, st.integers(1, 1000)), max_size=12))
def test_pooled_bins_rise_and_keep_their_mass(bins: list[tuple[float, float, int]]) -> None:
    bins.sort()
    pooled = monotone(bins)
    assert [one[0] for one in pooled] == sorted(one[0] for one in pooled)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(pooled))
    assert sum(n for *_, n in pooled) == sum(n for *_, n in bins)
    total = sum(right * n for _, right, n in bins)
    assert sum(right * n for _, right, n in pooled) == pytest.approx(total)


def test_the_default_model_has_a_table_and_others_have_none() -> None:
    points = table(DEFAULT)
    assert len(points) > 4
    for one, two in itertools.pairwise(points):
        assert 0 <= one.probability < two.probability <= 1
        assert 0 <= one.right < two.right <= 1
    assert least_logprob(DEFAULT, 0.0) == -math.inf
    assert least_logprob(DEFAULT, 0.5) == math.log(least_probability(points, 0.5))
    for other in ("owner/name", "../reliability/" + DEFAULT, f"/x/{DEFAULT}", "", "."):
        assert table(other) == ()
        assert least_logprob(other, 0.5) == math.log(0.5)
