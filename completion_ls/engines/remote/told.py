"""Values in what a server tells: each is read, or refused with one of `ODD`, before anything is computed with
it, so that a server that errs, or means ill, costs one answer and not the engine."""

from __future__ import annotations

from typing import Any

ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading something of another shape raises."""
LEAST = -1e4
"""The log probability of what is as good as impossible; some servers say minus infinity."""
MOST = 1 << 31
"""Neither numbers of tokens nor their ids come near."""
MOST_NAME = 300


def logprob(value: Any) -> float:
    """A log probability; rounding may make it a little more than 0."""
    found = float(value)
    if found != found:
        raise ValueError("not a number")
    return min(0.0, max(LEAST, found))


def token(value: Any) -> int:
    """A token's id."""
    found = int(value)
    if not 0 <= found < MOST:
        raise ValueError("no token has this id")
    return found


def text(value: Any) -> str:
    """A text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()  # no half of a surrogate pair
    return value


def count(value: Any) -> int:
    """How many tokens there were. It is only a figure, so the nearest one that is possible will do."""
    return max(0, min(int(value), MOST))


def size(value: Any, most: int = MOST) -> int | None:
    """A number that must be at least 1; None where it is no such number, or more than `most`."""
    try:
        found = int(value)
    except ODD:
        return None
    return found if 1 <= found <= most else None


def name(value: Any) -> str:
    """What something is called there, as people may be shown it: empty where that is nothing to show."""
    is_name = isinstance(value, str) and value.isprintable() and len(value) <= MOST_NAME
    return value if is_name else ""
