"""Whose turn it is, where several fronts want one engine: the rule of fairness.

1. The jobs of the front where the user is (the favoured one) go first, work ahead of the user
   included. Of the time in which others want the engine too, they have at most half, but for `LEAD_S`.
2. Then come the other fronts in whose jobs somebody waits. One front at a time has the
   engine, until nobody waits there, or it has had `TURN_S`, an answer, and its job is done (or
   `LONGEST_TURN_S`); the next is the one that has had the least. Who comes back has had as much as
   the least of those that stayed, so that nobody saves time up by staying away.
3. Then, in the same way, what is computed ahead for these.

Among the jobs of one front, `jobs.first_of` says which is next. A turn is so long because a front
whose KV was given up has to read its whole prompt: in slices it would never have an answer.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TypeVar

from completion_ls.engines.contract import Lane
from completion_ls.engines.jobs import RunningJob, first_of

LEAD_S = 5.0
TURN_S = 2.0
LONGEST_TURN_S = 4.0
ACTIVE_S = 1.0
"""So long after its last step, or key, the favoured front is likely to want another step at any moment."""

R = TypeVar("R", bound=RunningJob)


class Turns:
    """The turns of an engine's fronts, told what each step took."""

    def __init__(self) -> None:
        self._favoured: Hashable = None
        """At the beginning: whose front is None."""
        self._spent: dict[Hashable, float] = {}
        """Engine seconds of the other fronts, for comparison only."""
        self._wanted: set[Hashable] = set()
        """The other fronts that wanted a turn when one was given last."""
        self._turn: Hashable = None
        self._turn_s = 0.0
        self._turn_answered = False
        """Whether a job of it had output."""
        self._lead_s = 0.0
        self._favoured_at = float("-inf")

    def favour(self, front: Hashable) -> None:
        """The user types at this front, or has come there: it goes first from now on."""
        self._favoured, self._favoured_at = front, time.perf_counter()

    @property
    def user_is_active(self) -> bool:
        """Whether the user typed at the favoured front, or a step was done for it, just now."""
        return time.perf_counter() - self._favoured_at < ACTIVE_S

    def goes_first(self, running: RunningJob) -> bool:
        """Whether a job is one of the favoured front."""
        return running.job.front == self._favoured

    def next(self, jobs: dict[int, R]) -> R:
        """The job whose turn it is, of jobs in the order of their arrival; one that has output moves to
        their end."""
        favoured = [one for one in jobs.values() if self.goes_first(one)]
        others = [one for one in jobs.values() if not self.goes_first(one)]
        if not others:
            self._spent.clear()
            self._lead_s = 0.0
        if favoured and (not others or self._lead_s < LEAD_S):
            found = first_of(favoured)
        else:
            awaited = [one for one in others if one.lane is not Lane.BACKGROUND] or others
            turn = self._whose(awaited)
            found = first_of([one for one in awaited if one.job.front == turn])
        if found.prefilled:
            jobs[found.job.id] = jobs.pop(found.job.id)
        return found

    def took(self, running: RunningJob, seconds: float, jobs: dict[int, R]) -> None:
        """A step of so many seconds was done for one of these jobs."""
        if self.goes_first(running):
            self._favoured_at = time.perf_counter()
            if not all(map(self.goes_first, jobs.values())):
                self._lead_s += seconds
        else:
            front = running.job.front
            self._spent[front] = self._spent.get(front, 0.0) + seconds
            self._turn_s += seconds
            self._turn_answered |= running.prefilled
            self._lead_s = max(0.0, self._lead_s - seconds)

    def _whose(self, awaited: list[R]) -> Hashable:
        fronts = dict.fromkeys(one.job.front for one in awaited)
        has_begun = any(one.begun for one in awaited if one.job.front == self._turn)
        is_over = self._turn_answered and not has_begun
        if self._turn in fronts and self._turn_s < (TURN_S if is_over else LONGEST_TURN_S):
            return self._turn
        spent = self._spent
        stayed = [spent[front] for front in fronts if front in self._wanted and front in spent]
        least = min(stayed, default=0.0)
        for front in fronts:
            spent[front] = max(least, spent.get(front, least))
        # Who comes back with less is raised to the least: no need to remember it.
        self._spent = {front: one for front, one in spent.items() if front in fronts or one > least}
        self._wanted = set(fronts)
        self._turn = min(fronts, key=lambda front: self._spent[front])
        self._turn_s, self._turn_answered = 0.0, False
        return self._turn
