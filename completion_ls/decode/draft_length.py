"""How many draft tokens go through the model at once: as many as give most tokens per time.

A pass that checks k draft tokens gives one token more than are accepted, at the cost of k + 1
positions. What a pass costs is measured when the model is loaded; how often a draft token is right
is learnt. With drafts that are looked up it depends on the match: the longer the ending of the text
that was found again, the better. An accepted token makes the match longer by one, so the token
behind it is as good as the first one of a match of that length, and all learn from all.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

MOST = 16
"""Most draft tokens for one pass."""
PRIOR = (0.25, 0.45, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""How often a draft token is right behind a match of 1, 2, … tokens, before anything is learnt.
Longer matches count as the last one. Seen with code and the default model."""
RATE = 1 / 32
"""The weight of the latest outcome."""
EXPLORE = 16
"""Every so many choices one token more is tried: what is never tried cannot be learnt again."""


class Trust(NamedTuple):
    """What is known of a draft beforehand. Drafts of another model always match `LONG`."""

    source: Hashable
    match: int


LONG = len(PRIOR)
"""Longer matches are not told apart."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass of some positions costs, relative to a pass of one.

    `points` are widths (positions) and their cost, ascending in both, (1, 1.0) first. They go
    through JSON and `of` unchanged.
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, times: Iterable[tuple[int, float]]) -> Self:
        """From the measured time of passes, in any unit. A wider pass that seems to be faster (that
        is noise) counts as equally fast. Raises ValueError where width 1 is missing, a width is
        there twice or a time is not a positive number."""
        ordered = sorted((int(width), float(time)) for width, time in times)
        widths = [width for width, _ in ordered]
        if widths[:1] != [1] or len(set(widths)) < len(widths):
            raise ValueError("Measure each width of a pass once, and a pass of one position too.")
        if not all(0 < time < math.inf for _, time in ordered):
            raise ValueError("The time of a pass must be a positive number.")
        points, slowest = [], ordered[0][1]
        for width, time in ordered:
            slowest = max(slowest, time)
            points.append((width, slowest / ordered[0][1]))
        return cls(tuple(points))

    def __call__(self, width: int) -> float:
        """The cost of a pass of `width` positions, at least 1: on the line between the measured
        widths around it. Behind the widest it rises as it does up to there from the one before,
        and where one width was measured alone, in proportion."""
        (left, low), (right, high) = (0, 0.0), self.points[0]
        for point in self.points[1:]:
            if right >= width:
                break
            (left, low), (right, high) = (right, high), point
        return low + (high - low) * (width - left) / (right - left)


class DraftLength:
    """Chooses the number of draft tokens, and learns from what became of them."""

    def __init__(self, cost: PassCost) -> None:
        self._costs = [cost(1 + count) for count in range(MOST + 1)]
        self._rates: dict[Hashable, list[float]] = {}
        self._choices: dict[Trust, int] = {}

    def rates(self, source: Hashable) -> tuple[float, ...]:
        """How often a draft token of a source is right behind a match of 1, 2, … tokens."""
        return tuple(self._rates.get(source, PRIOR))

    def choose(self, trust: Trust, available: int, token_cost: float = 0.0) -> int:
        """How many of `available` draft tokens to put through the model; 0 where none pays.

        `token_cost` is what each draft token costs, relative to a pass of one position, where a
        model has yet to make them.
        """
        rates = self.rates(trust.source)
        available = min(available, MOST)
        best, best_speed = 0, 1.0
        expected, chance = 1.0, 1.0
        for count in range(1, available + 1):
            chance *= rates[min(trust.match + count - 1, LONG) - 1]
            expected += chance
            speed = expected / (self._costs[count] + token_cost * count)
            if speed > best_speed:
                best, best_speed = count, speed
        if best < available:
            trust = Trust(trust.source, min(trust.match, LONG))
            self._choices[trust] = self._choices.get(trust, 0) + 1
            if self._choices[trust] % EXPLORE == 0:
                return best + 1
        return best

    def observe(self, trust: Trust, proposed: int, accepted: int) -> None:
        """Learn that of `proposed` tokens that the model checked the first `accepted` were right."""
        rates = self._rates.setdefault(trust.source, list(PRIOR))
        for count in range(min(accepted + 1, proposed)):
            level = min(trust.match + count, LONG) - 1
            rates[level] += RATE * ((count < accepted) - rates[level])
