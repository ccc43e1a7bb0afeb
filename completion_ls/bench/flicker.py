"""Flicker: ghost text that changes although what was typed agreed with it."""

from __future__ import annotations

from collections.abc import Sequence


def flickers(before: str, typed: str, shown: Sequence[str], final: str | None) -> bool:
    """Whether typing `typed` made the ghost text `before` change.

    What must stay is the rest of `before`. The answer (`final`, None where nobody waited for it)
    must begin with it. Partial texts (`shown`) are on their way to the answer: each must begin with
    the rest or be a beginning of it. Typing all of `before`, or something else, asks for new text.
    """
    if not before.startswith(typed) or before == typed:
        return False
    rest = before[len(typed) :]
    if not all(text.startswith(rest) or rest.startswith(text) for text in shown):
        return True
    return final is not None and not final.startswith(rest)
