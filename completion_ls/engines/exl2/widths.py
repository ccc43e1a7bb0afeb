"""How many tokens go through the target in one pass: few numbers, so that each can be warmed up.

The library's source says that its matrix kernels take tokens four at a time, so a pass of 6 should cost
what one of 8 does, and that a width is slow until it has gone through a couple of hundred times, which
nobody should have to sit through. So passes are filled up to a width that is warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from completion_ls.decode.draft_length import PassCost

WIDTHS = (1, 4, 8, 16)
"""The last token of a text and 0, 3, 7 or 15 that are offered behind it."""
DRAFTED = WIDTHS[-1] - 1
"""Most tokens of a draft."""
OFFERED = 32
"""Most tokens behind the last one of a text in one pass: drafts, and what was typed of a word."""


def filled(width: int) -> int:
    """The width of the pass that `width` tokens go through in."""
    return next((one for one in WIDTHS if one >= width), width)


def step_cost(seconds: Sequence[float]) -> PassCost:
    """What a pass costs by the tokens that are wanted of it, from the time of one of each of `WIDTHS`."""
    times = [(1, seconds[0])]
    for (before, width), took in zip(pairwise(WIDTHS), seconds[1:], strict=True):
        times += [(before + 1, took), (width, took)]
    return PassCost.of(times)
