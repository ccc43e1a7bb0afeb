"""The objective of `tune`: what of a setting a user feels, in seconds, and whether one is better than
another by more than the noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

COLD_SHARE = 0.1
"""One suggestion in so many is taken to be behind a prompt of which nothing is known: a file that was
just opened, a place far away. All others are behind a few new tokens, which go through in one pass."""
WORTH = 0.03
"""A change must save this share of the time at least."""
SURE = 0.99
"""The share of resamples within the interval."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Figures:
    """One suggestion, behind a cold prompt of `prompt` tokens that is read by `chunk` in a step: the seconds
    to its first token, and those of the `rest` tokens behind it, in `rest_passes`. `tokens` are all."""

    prompt: int
    chunk: int
    first_s: float
    tokens: int
    rest: int
    rest_s: float
    rest_passes: int

    @property
    def suggestion_s(self) -> float:
        """The whole suggestion after a typical key: its few new tokens take one pass, as a token does."""
        return self.tokens * self.rest_s / self.rest

    @property
    def cold_s(self) -> float:
        """The first token of the cold prompt, and half a step of reading it: a newer key, which comes at
        any moment, waits for the end of a step."""
        return self.first_s * (1 + min(1.0, self.chunk / self.prompt) / 2)

    @property
    def felt_s(self) -> float:
        """The objective: seconds per suggestion, with the cold prompt's in its share."""
        return self.suggestion_s + COLD_SHARE * self.cold_s


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time as a multiple of another, and the interval that other prompts and other noise would
    leave it in."""

    middle: float
    low: float
    high: float

    @property
    def is_better(self) -> bool:
        """Whether the time is shorter by what is worth a change, and by more than the noise."""
        return self.middle <= 1 - WORTH and self.high < 1

    def is_clear_of(self, bar: float) -> bool:
        """Whether more rounds would hardly take it to the other side of a bar."""
        return self.high < bar or self.low > bar


def ratio(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """Of the sums of times of the same rounds. The interval is a bootstrap over rounds, of which there
    must be one at least: a round's two times stay together, as its prompt and the machine's load do."""
    rounds = range(len(new))
    draw = random.Random(0)
    found = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(rounds, k=len(rounds))
        found.append(sum(new[one] for one in chosen) / sum(old[one] for one in chosen))
    found.sort()
    outside = int(RESAMPLES * (1 - SURE) / 2)
    return Ratio(sum(new) / sum(old), found[outside], found[-1 - outside])
