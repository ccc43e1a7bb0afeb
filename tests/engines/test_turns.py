"""The rule of fairness, with jobs that are only counted and a clock that is only added up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.engines import turns
from completion_ls.engines.contract import Job, Lane
from completion_ls.engines.jobs import RunningJob
from completion_ls.engines.turns import ACTIVE_S, LEAD_S, LONGEST_TURN_S, TURN_S, Turns

STEP_S = 0.02
USER = "user"


@dataclass
class Desk:
    """An engine without a model: each step takes `STEP_S`, a job `steps` of them."""

    turns: Turns = field(default_factory=Turns)
    jobs: dict[int, RunningJob] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    had_s: Counter[Hashable] = field(default_factory=Counter)
    now: float = 0.0
    last_id: int = 0

    def add(self, front: Hashable, steps: int, lane: Lane = Lane.KEY) -> int:
        self.last_id += 1
        job = Job(self.last_id, (1,), 1000, lane=lane, front=front)
        self.jobs[job.id], self.left[job.id] = RunningJob(job, lane), steps
        return job.id

    def cancel(self, id: int) -> None:
        self.jobs.pop(id, None)

    def step(self, *, answers: bool = True) -> RunningJob:
        running = self.turns.next(self.jobs)
        self.now += STEP_S
        self.had_s[running.job.front] += STEP_S
        running.computed += 1
        if answers:
            running.output.append(1)
        self.turns.took(running, STEP_S, self.jobs)
        self.left[running.job.id] -= 1
        if not self.left[running.job.id]:
            del self.jobs[running.job.id]
        return running

    def run(self, seconds: float, busy: Iterable[Hashable], steps: int = 30) -> None:
        """All of these always have a job."""
        end = self.now + seconds
        while self.now < end:
            for front in busy:
                if all(one.job.front != front for one in self.jobs.values()):
                    self.add(front, steps)
            self.step()


def test_the_front_where_the_user_is_waits_for_the_step_in_progress_only() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    for front in range(19):
        desk.add(front, 100)
    for _ in range(40):
        desk.step()
        desk.step()
        desk.step()
        key = desk.add(USER, 1)
        assert desk.step().job.id == key


def test_work_ahead_of_the_user_goes_before_other_fronts_too() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.add("other", 10)
    ahead = desk.add(USER, 5, Lane.BACKGROUND)
    assert desk.step().job.id == ahead


def test_the_user_is_active_for_a_moment_after_a_key_and_after_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: now))
    desk = Desk()
    assert not desk.turns.user_is_active
    desk.turns.favour(USER)
    assert desk.turns.user_is_active
    now += 0.9 * ACTIVE_S
    desk.add(USER, 1)
    desk.step()
    now += 0.9 * ACTIVE_S
    assert desk.turns.user_is_active
    desk.add("other", 1)
    desk.step()
    now += 0.2 * ACTIVE_S
    assert not desk.turns.user_is_active


def test_a_front_that_is_favoured_has_at_most_half_of_what_others_want() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.run(60, [USER, "a", "b"])
    assert 30 - 1 <= desk.had_s[USER] <= 30 + LEAD_S


def test_others_have_the_same_time() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.run(200, range(10), steps=30)
    assert max(desk.had_s.values()) - min(desk.had_s.values()) <= LONGEST_TURN_S


def test_short_jobs_and_long_ones_have_the_same_time() -> None:
    desk = Desk()
    while desk.now < 300:
        for front, steps in (("short", 2), ("long", 140)):
            if all(one.job.front != front for one in desk.jobs.values()):
                desk.add(front, steps)
        desk.step()
    assert abs(desk.had_s["short"] - desk.had_s["long"]) <= 2 * LONGEST_TURN_S


def test_a_front_whose_keys_cancel_each_other_keeps_its_turn() -> None:
    """Else it reads the beginning of its prompt again and again, and never has an answer."""
    desk = Desk()
    desk.turns.favour(USER)
    for front in range(5):
        desk.add(front, 1000)
    first = desk.step().job
    for _ in range(round(TURN_S / STEP_S) - 2):
        desk.cancel(first.id)
        first = desk.jobs[desk.add(first.front, 1000)].job
        assert desk.step().job.id == first.id


def test_a_turn_is_not_over_before_there_was_an_answer() -> None:
    """A prompt that takes longer to read than a turn would be read for nothing, again and again."""
    desk = Desk()
    desk.turns.favour(USER)
    desk.add("a", 1000)
    desk.add("b", 1000)
    first = desk.step(answers=False).job
    reading = round(LONGEST_TURN_S / STEP_S) - 5
    for _ in range(reading):
        desk.cancel(first.id)
        first = desk.jobs[desk.add(first.front, 1000)].job
        assert desk.step(answers=False).job.id == first.id
    assert desk.step().job.id == first.id
    desk.cancel(first.id)
    desk.add(first.front, 1000)
    assert desk.step().job.front != first.front


def test_a_job_that_has_begun_is_finished_before_the_next_fronts() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    steps = round(1.5 * TURN_S / STEP_S)
    order = [desk.add(front, steps) for front in range(4)]
    done = list(dict.fromkeys(desk.step().job.id for _ in range(4 * steps)))
    assert sorted(done) == order
    assert not desk.jobs


def test_who_floods_does_not_keep_the_turn() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.add("other", 1000)
    while desk.now < 20:
        desk.add("flood", 50)
        desk.step()
    assert desk.had_s["other"] >= 8


def test_nobody_saves_time_up_by_staying_away() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.run(5, ["a", "b", "late"])
    desk.run(100, ["a", "b"])
    before = desk.had_s["late"]
    desk.run(9, ["a", "b", "late"])
    assert desk.had_s["late"] - before <= 3 + LONGEST_TURN_S


def test_work_ahead_of_others_waits_for_all_who_wait() -> None:
    desk = Desk()
    desk.turns.favour(USER)
    desk.add("a", 5, Lane.BACKGROUND)
    key = desk.add("b", 5)
    assert {desk.step().job.id for _ in range(5)} == {key}


def test_one_front_alone_is_served_as_if_it_were_favoured() -> None:
    desk = Desk()
    old = desk.add("only", 10)
    assert desk.step().job.id == old
    new = desk.add("only", 10)
    assert desk.step().job.id == new  # the newest that has no token
    assert [desk.step().job.id for _ in range(4)] == [old, new, old, new]


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_every_job_is_served_in_the_end(seed: int, fronts: int, favour: bool) -> None:
    draw = random.Random(seed)
    desk = Desk()
    desk.turns.favour(0 if favour else USER)
    for _ in range(30):
        if draw.random() < 0.5:
            lane = draw.choice([Lane.KEY, Lane.MANUAL, Lane.BACKGROUND])
            desk.add(draw.randrange(fronts), draw.randint(1, 90), lane)
        elif desk.jobs:
            desk.step()
    steps = sum(desk.left[id] for id in desk.jobs)
    for _ in range(steps):
        desk.step()
    assert not desk.jobs
