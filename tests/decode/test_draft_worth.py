"""Drafts are turned off where they cost more than they gain, and by nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from completion_ls.decode.draft_worth import (
    DRAFTED,
    FIRST_REST,
    LOST,
    OFF,
    PLAIN,
    REST,
    ROUNDS,
    DraftWorth,
)

Noise = Callable[[random.Random], float]


def quiet(chance: random.Random) -> float:
    return 1.0


def other_work(chance: random.Random) -> float:
    """Most passes take somewhat longer, some take many times as long."""
    return chance.lognormvariate(0, 0.4) * (10 if chance.random() < 0.03 else 1)


class Bursts:
    """Other work that comes and goes: everything takes three times as long for a while."""

    def __init__(self) -> None:
        self._left, self._factor = 0, 1.0

    def __call__(self, chance: random.Random) -> float:
        if not self._left:
            self._left, self._factor = chance.randrange(20, 400), chance.choice([1.0, 3.0])
        self._left -= 1
        return self._factor * chance.lognormvariate(0, 0.1)


@dataclass
class Machine:
    """Passes of which every one has a draft, with a cost in passes and a chance for each token."""

    worth: DraftWorth
    cost: float
    right: float
    noise: Noise = quiet
    seed: int = 1
    turned_off: int = 0
    plain: int = 0
    drafted: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self, passes: int) -> Machine:
        for _ in range(passes):
            if not self.worth.is_asked():
                continue
            drafted = self.worth.takes_draft()
            self.drafted += drafted
            self.plain += not drafted
            tokens = 1
            while drafted and tokens < 9 and self._chance.random() < self.right:
                tokens += 1
            seconds = 0.01 * (self.cost if drafted else 1.0) * self.noise(self._chance)
            self.turned_off += self.worth.note(drafted=drafted, seconds=seconds, tokens=tokens)
        return self


ENOUGH = FIRST_REST + ROUNDS * 2 * (DRAFTED + PLAIN)


@pytest.mark.parametrize("noises", [lambda: quiet, lambda: other_work, Bursts])
def test_a_draft_that_costs_more_than_it_gains_is_turned_off(noises: Callable[[], Noise]) -> None:
    # Two tokens a pass, for the time of three and a half passes.
    machine = Machine(DraftWorth(), cost=3.5, right=0.5, noise=noises()).run(ENOUGH)
    assert machine.worth.is_off
    assert machine.turned_off == 1
    rates = machine.worth.rates
    assert rates is not None and rates.drafted < rates.plain
    assert machine.worth.passes >= LOST * DRAFTED


def test_the_rates_are_those_of_the_machine() -> None:
    rates = Machine(DraftWorth(), cost=3.5, right=0.0).run(ENOUGH).worth.rates
    assert rates == pytest.approx((100 / 3.5, 100))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noises", [lambda: quiet, lambda: other_work, Bursts])
def test_a_draft_that_pays_is_never_turned_off(noises: Callable[[], Noise], seed: int) -> None:
    machine = Machine(DraftWorth(), cost=1.3, right=0.6, noise=noises(), seed=seed).run(60_000)
    assert machine.turned_off == 0
    assert not machine.worth.is_off


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noises", [lambda: other_work, Bursts])
def test_noise_alone_does_not_turn_it_off(noises: Callable[[], Noise], seed: int) -> None:
    """A draft that neither costs nor gains."""
    machine = Machine(DraftWorth(), cost=1.0, right=0.0, noise=noises(), seed=seed).run(60_000)
    assert machine.turned_off == 0


def test_a_draft_that_pays_is_seldom_left_out() -> None:
    machine = Machine(DraftWorth(), cost=1.3, right=0.6).run(20_000)
    assert 0 < machine.plain < 20_000 * 2 * PLAIN / REST


def test_a_few_passes_decide_nothing() -> None:
    machine = Machine(DraftWorth(), cost=50.0, right=0.0).run(FIRST_REST)
    assert machine.plain == 0
    machine.run((LOST - 1) * (DRAFTED + PLAIN) // 2)
    assert not machine.worth.is_off


def test_what_is_off_is_tried_again_for_one_round_and_stays_off() -> None:
    machine = Machine(DraftWorth(), cost=3.5, right=0.5).run(ENOUGH)
    before = machine.drafted
    machine.run(OFF // 2)
    assert machine.drafted == before
    machine.run(4 * OFF)
    assert machine.worth.is_off and machine.turned_off == 1
    assert 3 * DRAFTED <= machine.drafted - before < 8 * DRAFTED


def test_what_is_off_comes_back_where_it_pays_again() -> None:
    machine = Machine(DraftWorth(), cost=3.5, right=0.5).run(ENOUGH)
    machine.cost = 1.0
    machine.run(2 * OFF)
    assert not machine.worth.is_off
    machine.cost = 3.5
    machine.run(REST + ENOUGH)
    assert machine.worth.is_off
