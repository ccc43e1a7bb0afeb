"""A clock that only work moves, in the place of a module's `time`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from completion_ls.engines.contract import Sampling
from completion_ls.engines.drafts import Guesser


class Clock:
    """Its seconds are those that are added to it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def timed(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """`work`, which takes so long."""

        def act(*arguments: Any, **more: Any) -> Any:
            self.now += seconds
            return work(*arguments, **more)

        return act


class SlowGuesser:
    """A draft model's guesses, which take longer than it says."""

    cost = 0.0

    def __init__(self, guesser: Guesser, clock: Clock, seconds: float) -> None:
        self.calls = 0
        self._propose = clock.timed(guesser.propose, seconds)

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        self.calls += 1
        found: tuple[int, ...] = self._propose(text, count, sampling)
        return found
