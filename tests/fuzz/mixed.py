"""Some kinds of input more often than others (`one_of` takes each as often, however often it is named)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def mixed(*kinds: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Of each strategy so many, in proportion."""
    drawn = [kind for count, kind in kinds for _ in range(count)]
    return st.integers(0, len(drawn) - 1).flatmap(drawn.__getitem__)
