"""Jobs for an engine, and what comes out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from completion_ls.engines.contract import Engine, Event, Job

_ids = count(1)


def job(prompt: Sequence[int], tokens: int = 6, **more: Any) -> Job:
    """A job of its own id."""
    return Job(next(_ids), tuple(prompt), tokens, **more)


def drain(engine: Engine, limit: int = 5000) -> Iterator[Event]:
    """Step until nothing is left to do."""
    for _ in range(limit):
        events = engine.step()
        if not events and not engine.stats().jobs_active:
            return
        yield from events
    raise AssertionError(f"still busy after {limit} steps")


def answer(engine: Engine, one: Job) -> list[Event]:
    """The events of a job alone, of an engine whose steps may wait for a server."""
    engine.add(one)
    return list(drain(engine, 100_000))


class Answer:
    """The events of one job, added up."""

    def __init__(self, job: Job, events: Sequence[Event]) -> None:
        own = [event for event in events if event.job_id == job.id]
        self.tokens = [token for event in own for token in event.tokens]
        self.logprobs = [logprob for event in own for logprob in event.logprobs]
        self.others = [other for event in own for other in event.others]
        self.reused, self.computed = own[-1].reused, own[-1].computed
        self.finish = own[-1].finish
        # To cover an unfinished word, other ways to split it may be computed as well.
        assert job.unfinished or self.reused + self.computed == len(job.prompt)
        assert len(self.tokens) == len(self.logprobs)
        assert [event.finish for event in own[:-1]] == [None] * (len(own) - 1)


def run(engine: Engine, one: Job) -> Answer:
    """A job alone."""
    engine.add(one)
    return Answer(one, list(drain(engine)))
