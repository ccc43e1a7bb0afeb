"""Searches the settings that answer soonest, one setting after the other, within a time.

Whatever is tried is measured in turns with the best settings so far, on the same prompts, so that the
machine's other work hits both; it takes their place only where it is better by more than the noise. Drafts
have the burden of proof: unless they are faster than none, there are none. In the end the winner and
the present settings meet on prompts that were not searched with, and only who wins there, too, is the winner.

Nothing here measures: that is `measure`'s, which a test can replace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from completion_ls.bench.tune_arms import (
    CHUNK_KEY,
    Coordinate,
    changes,
    described,
    speculates,
    without_drafts,
)
from completion_ls.bench.tune_figures import WORTH, Figures, Ratio, ratio
from completion_ls.config.settings import Settings

LEAST_ROUNDS = 5
ROUNDS = 8
"""Rounds of a comparison, each with a prompt of its own; fewer where it is clear."""

CHANGE_PASSES = frozenset({"engine.threads", "engine.kv_cache"})
"""What changes the cost of passes, and so what drafts are worth."""


class CannotRun(Exception):
    """The engine refuses these settings; the message says why."""


Measure = Callable[[Settings, int], Awaitable[Figures]]
"""The figures of settings at the prompt of this number, of `2 * ROUNDS`. Raises CannotRun."""


@dataclass(slots=True)
class Comparison:
    """Settings against others; `rounds` are pairs of their figures at the same prompts."""

    settings: Settings
    against: Settings
    rounds: list[tuple[Figures, Figures]] = field(default_factory=list)
    refused: str = ""
    """Why the engine cannot run the settings."""
    is_done: bool = False
    """Whether it was measured to the end."""

    @property
    def what(self) -> str:
        """What is different."""
        return described(self.against, self.settings)

    @property
    def by_cold(self) -> bool:
        """Whether the first token of a cold prompt decides: the size of a chunk changes nothing else."""
        return set(changes(self.against, self.settings)) == {CHUNK_KEY}

    @property
    def ratio(self) -> Ratio:
        """The time of these settings as a multiple of that of the others. There must be a round."""
        return ratio(*([self.seconds(one[side]) for one in self.rounds] for side in (0, 1)))

    @property
    def ends_drafts(self) -> bool:
        """Whether the others are the same with drafts, which then must be faster to stay."""
        return self.settings == without_drafts(self.against) != self.against

    @property
    def is_clear(self) -> bool:
        """Whether it is decided before all rounds are measured."""
        bar = 1 if self.ends_drafts else 1 - WORTH
        return len(self.rounds) >= LEAST_ROUNDS and self.ratio.is_clear_of(bar)

    @property
    def wins(self) -> bool:
        """Whether these settings take the place of the others."""
        if not self.is_done:
            return False
        return self.ratio.middle <= 1 if self.ends_drafts else self.ratio.is_better

    @property
    def outcome(self) -> str:
        """In two words at most."""
        if self.refused:
            return "cannot run"
        if not self.is_done:
            return "unfinished"
        if self.wins:
            return "better" if self.ratio.is_better else "as fast"
        if self.ratio.low > 1 - WORTH:
            return "worse" if self.ratio.low > 1 else "no better"
        return "within noise"

    def seconds(self, figures: Figures) -> float:
        """The time that decides."""
        return figures.cold_s if self.by_cold else figures.felt_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {
            "tried": changes(self.against, self.settings),
            "judged_by": "cold_s" if self.by_cold else "felt_s",
            "outcome": self.outcome,
            "refused": self.refused,
            "takes_its_place": self.wins,
            "rounds": [[_as_dict(one) for one in both] for both in self.rounds],
        }
        if self.rounds:
            middle, low, high = self.ratio.middle, self.ratio.low, self.ratio.high
            found |= {"ratio": middle, "ratio_low": low, "ratio_high": high}
        return found


class Search:
    """One search. What was found stands in the fields, also where `run` was cancelled."""

    def __init__(
        self,
        present: Settings,
        coordinates: Sequence[Coordinate],
        measure: Measure,
        *,
        seconds: float,
        clock: Callable[[], float],
        turn: int = 1,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`turn` is how many rounds one side is measured before the other has its turn: more where
        changing sides takes long. The `seconds` begin now, by `clock`."""
        self.present = self.best = present
        self.winner: Settings | None = None
        """The end of the search; None before."""
        self.comparisons: list[Comparison] = []
        self.final: list[Comparison] = []
        """Those on other prompts."""
        self.not_tried: list[str] = []
        self._coordinates = coordinates
        self._measure = measure
        self._clock = clock
        self._ends = clock() + seconds
        self._turn = turn
        self._say = say
        self._first_s: list[float] = []
        """What the first turn of each comparison took, with what had to be loaded, ..."""
        self._next_s: list[float] = []
        """... and the others."""

    async def run(self) -> None:
        """Search until all was tried or the time is over. Raises CannotRun where the present settings
        cannot be measured."""
        for coordinate in self._coordinates:
            for arm in coordinate.others(self.best):
                await self._try(arm)
        self.winner = await self._confirmed()

    @property
    def fallback(self) -> Settings:
        """What stays where the winner does not win: the present, without drafts that were not faster."""
        plain = without_drafts(self.present)
        rounds = [
            both
            for one in (*self.comparisons, *self.final)
            if one.is_done and (one.settings, one.against) == (plain, self.present)
            for both in one.rounds
        ]
        pooled = Comparison(plain, self.present, rounds, is_done=bool(rounds))
        return plain if pooled.wins else self.present

    async def _try(self, arm: Settings) -> None:
        """Let settings take the place of the best where they win and there is time."""
        if not changes(self.best, arm):
            return
        reserve = self._least_s * (2 if self._is_unproven(arm) else 1)  # for the end
        left = self._ends - self._clock()
        if left <= 0 or left < self._least_s + reserve:
            self.not_tried.append(described(self.best, arm))
            return
        one = Comparison(arm, self.best)
        self.comparisons.append(one)
        await self._compare(one, 0, self._ends - reserve)
        if one.wins:
            self.best = arm

    async def _confirmed(self) -> Settings:
        """Who wins on prompts that were not searched with."""
        chosen = self.best
        if self._is_unproven(chosen):
            plain = await self._finally(without_drafts(chosen), chosen)
            if not plain.is_done:
                return self.fallback
            if plain.wins:
                chosen = plain.settings
        if not changes(self.present, chosen):
            return self.present
        last = await self._finally(chosen, self.present)
        return chosen if last.wins else self.fallback

    def _is_unproven(self, settings: Settings) -> bool:
        """Whether there are drafts, which were only compared with none where passes cost something else."""
        return speculates(settings) and not CHANGE_PASSES.isdisjoint(
            changes(self.present, settings)
        )

    async def _finally(self, settings: Settings, against: Settings) -> Comparison:
        one = Comparison(settings, against)
        self.final.append(one)
        await self._compare(one, ROUNDS, self._ends)
        return one

    @property
    def _least_s(self) -> float:
        """Seconds that a comparison takes at least to be of use, to judge from those before."""
        first, other = (fmean(taken or [0.0]) for taken in (self._first_s, self._next_s))
        return first + other * (-(-LEAST_ROUNDS // self._turn) - 1)

    async def _compare(self, one: Comparison, first: int, ends: float) -> None:
        """Measure rounds until it is clear, there are enough, or the time is over."""
        while len(one.rounds) < ROUNDS and not one.is_clear:
            done, began = len(one.rounds), self._clock()
            if not await self._both(one, first + done, min(self._turn, ROUNDS - done), ends):
                break
            (self._next_s if done else self._first_s).append(self._clock() - began)
        one.is_done = not one.refused and len(one.rounds) >= LEAST_ROUNDS

    async def _both(self, one: Comparison, first: int, count: int, ends: float) -> bool:
        """Some rounds of both sides, who begins changing; whether they were measured."""
        numbers = range(first, first + count)
        sides = [(one.settings, True), (one.against, False)]
        if (first // self._turn + len(self.comparisons) + len(self.final)) % 2:
            sides.reverse()
        found: dict[bool, list[Figures]] = {}
        for settings, is_new in sides:
            for number in numbers:
                if self._clock() >= ends:
                    return False
                self._say(f"{one.what}: round {number % ROUNDS + 1} of {ROUNDS} at most")
                try:
                    figures = await self._measure(settings, number)
                except CannotRun as error:
                    if not is_new:
                        raise
                    one.refused = str(error)
                    return False
                found.setdefault(is_new, []).append(figures)
        one.rounds += zip(found[True], found[False], strict=True)
        return True


def _as_dict(figures: Figures) -> dict[str, Any]:
    names = "prompt", "chunk", "first_s", "tokens", "rest", "rest_s", "rest_passes"
    return {name: getattr(figures, name) for name in (*names, "suggestion_s", "cold_s", "felt_s")}
