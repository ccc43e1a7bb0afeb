"""The figures of infilling: shares and means with their intervals, and arms compared in pairs.

Nothing here asks a model. Intervals are of 95 %. Places in one function are alike, so a bootstrap draws
functions, each with all its places; Wilson's interval of a share takes every place for one of its own, and
is somewhat too narrow where there are several to a function.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

Z = 1.959963984540054
"""A normal variable is within this many deviations in 95 % of cases."""
DRAWS = 2000
FEWEST = 10
"""Of fewer functions a bootstrap's interval says little: that of one has no width."""
MEASURES = ("exact", "similarity", "passed")


class Kind(StrEnum):
    """Where in a line the cursor stands."""

    START = "start of the line"
    LINE = "in the line"
    WORD = "in a word"


@dataclass(frozen=True, slots=True)
class Result:
    """What one arm wrote at one place. `function` is the one that the place is in."""

    function: str
    place: str
    kind: Kind
    arm: str
    text: str
    exact: bool
    similarity: float
    passed: bool
    below: bool
    """Whether the text below has a part in the prompt."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm at the places of one kind. `offered`: the share of places where there was any text."""

    kind: Kind
    arm: str
    places: int
    exact: Estimate
    similarity: Estimate
    passed: Estimate
    offered: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the arm `with_it` has more than `without` at the same places; `other_texts` is the number of
    those where they wrote different texts."""

    what: str
    kind: Kind
    with_it: str
    without: str
    places: int
    functions: int
    other_texts: int
    exact: Estimate
    similarity: Estimate
    passed: Estimate


def edit_similarity(one: str, other: str) -> float:
    """1 minus the edit distance (insert, delete, replace) over the length of the longer text; 1 for two
    empty texts."""
    if one == other:
        return 1.0
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return 1 - row[-1] / max(len(one), len(other))


def wilson(successes: int, trials: int) -> Estimate:
    """A share with Wilson's score interval. Raises ValueError without trials."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} of {trials} is no share.")
    share, square = successes / trials, Z * Z / trials
    centre = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / trials + square / trials / 4) / (1 + square)
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def bootstrap(values: Iterable[tuple[Hashable, float]], seed: int) -> Estimate:
    """The mean of values with its percentile interval; those of one cluster are drawn together.
    Raises ValueError without values."""
    clusters = defaultdict[Hashable, list[float]](list)
    for cluster, value in values:
        clusters[cluster].append(value)
    if not clusters:
        raise ValueError("There are no values to take a mean of.")
    sums = np.array([math.fsum(own) for own in clusters.values()])
    counts = np.array([len(own) for own in clusters.values()])
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, len(sums), (DRAWS, len(sums)))
    means = sums[chosen].sum(1) / counts[chosen].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    value = float(sums.sum() / counts.sum())
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def arm_figures(results: Sequence[Result], seed: int) -> list[ArmFigures]:
    """One for each kind of place and arm, in the order in which these come."""
    found = []
    for kind in Kind:
        for arm, own in _by_arm(result for result in results if result.kind is kind).items():
            found.append(
                ArmFigures(
                    kind,
                    arm,
                    len(own),
                    wilson(sum(one.exact for one in own.values()), len(own)),
                    bootstrap(((one.function, one.similarity) for one in own.values()), seed),
                    wilson(sum(one.passed for one in own.values()), len(own)),
                    sum(bool(one.text.strip()) for one in own.values()) / len(own),
                )
            )
    return found


def compared(
    results: Sequence[Result], what: str, with_it: str, without: str, seed: int
) -> list[Comparison]:
    """Two arms at the places that both have, for each kind of place."""
    found = []
    for kind in Kind:
        arms = _by_arm(result for result in results if result.kind is kind)
        more, less = arms.get(with_it, {}), arms.get(without, {})
        if pairs := [(more[place], less[place]) for place in more if place in less]:
            differences = (_difference(pairs, measure, seed) for measure in MEASURES)
            other = sum(a.text != b.text for a, b in pairs)
            functions = len({a.function for a, _ in pairs})
            found.append(
                Comparison(what, kind, with_it, without, len(pairs), functions, other, *differences)
            )
    return found


def decided(difference: Estimate, functions: int) -> bool:
    """Whether a difference is one: its interval is on one side of 0, and of functions enough."""
    return functions >= FEWEST and (difference.low > 0 or difference.high < 0)


def _difference(pairs: Sequence[tuple[Result, Result]], measure: str, seed: int) -> Estimate:
    return bootstrap(
        ((a.function, float(getattr(a, measure)) - float(getattr(b, measure))) for a, b in pairs),
        seed,
    )


def _by_arm(results: Iterable[Result]) -> Mapping[str, Mapping[str, Result]]:
    arms = defaultdict[str, dict[str, Result]](dict)
    for result in results:
        arms[result.arm][result.place] = result
    return arms
