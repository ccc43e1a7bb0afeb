"""What two sequences, of token ids or of characters, have in common."""

from __future__ import annotations

from typing import TypeVar

Items = TypeVar("Items", list[int], tuple[int, ...], str)


def common_prefix(a: Items, b: Items) -> int:
    """How many items `a` and `b` have in common at the start.

    Halves the unknown part with slice comparisons, which run in C: a loop over 2,000 tokens and
    some sequences would cost a visible part of a one-token pass.
    """
    known, end = 0, min(len(a), len(b))
    while known < end:
        middle = (known + end + 1) // 2
        if a[known:middle] == b[known:middle]:
            known = middle
        else:
            end = middle - 1
    return known
