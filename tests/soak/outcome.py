"""What came of one kind of trial of a soak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One kind of fault, load or input: how often it was tried, and what went wrong, a sentence each
    (empty where nothing did). `slowest_s` is the longest that an editor waited for an answer in
    it, in seconds; None where nobody waited. `figures` are what else there is to say."""

    name: str
    tried: int
    problems: tuple[str, ...] = ()
    slowest_s: float | None = None
    figures: tuple[tuple[str, str], ...] = ()
