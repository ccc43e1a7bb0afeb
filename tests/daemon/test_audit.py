"""The audit's judgement: what is a mismatch, what a tie, and what is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from completion_ls.daemon.audit import STOPPED, TIE, Audit, Output
from completion_ls.engines.contract import Event, Finish, Job, Lane, Sampling

JOB = Job(7, (1, 2, 3), 64)


def event(
    id: int, tokens: tuple[int, ...], logprobs: tuple[float, ...] = (), finish: Finish | None = None
) -> Event:
    return Event(id, tokens, logprobs or (-1.0,) * len(tokens), 0, 3, finish)


def audited(expected: Output, events: list[Event]) -> dict[str, int]:
    audit = Audit(1)
    assert audit.due(JOB)
    job = audit.repeat(JOB, expected, events[0].job_id)
    assert job.fresh and job.lane is Lane.BACKGROUND and job.prompt == JOB.prompt
    assert audit.owns(job.id)
    for one in events:
        audit.advance(one)
    assert not audit.owns(job.id)
    assert audit.figures()["audited"] == 1
    return audit.figures()


def output(tokens: tuple[int, ...], logprobs: tuple[float, ...] = (), first: int = 1) -> Output:
    return Output(tokens, logprobs or (-1.0,) * len(tokens), first)


def test_one_answer_in_so_many() -> None:
    audit = Audit(3)
    due = [audit.due(JOB) for _ in range(7)]
    assert due == [False, False, True, False, False, True, False]
    assert not any(Audit(0).due(JOB) for _ in range(10))
    drawn = replace(JOB, sampling=Sampling(temperature=0.5))
    assert not any(audit.due(drawn) for _ in range(10))


def test_one_at_a_time() -> None:
    """They get on only while nobody types, and each holds the KV of a whole prompt."""
    audit = Audit(1)
    assert audit.due(JOB)
    audit.repeat(JOB, output((4,)), 9)
    assert not any(audit.due(JOB) for _ in range(10))
    audit.advance(event(9, (4,), (), Finish.LENGTH))
    assert audit.due(JOB)


@pytest.mark.parametrize(
    ("expected", "found", "logprobs", "figures"),
    [
        ((4, 5), (4, 5), (), (0, 0)),
        ((4, 5), (4, 6), (-1.0, -1.0 + TIE / 2), (1, 0)),
        ((4, 5), (4, 6), (-1.0, -1.0 + TIE * 2), (0, 1)),
        ((4, 5), (4,), (), (0, 1)),  # it stopped where the answer had gone on
        ((4,), (4, 5), (), (0, 0)),  # the front had enough
        ((4, STOPPED), (4, STOPPED), (), (0, 0)),
        ((4, STOPPED), (4, 5), (-1.0, -1.0 + TIE / 2), (1, 0)),
        ((4, STOPPED), (4, 5), (-1.0, -1.5), (0, 1)),  # the answer had ended too early
        ((4, 5), (4, STOPPED), (-1.0, -1.5), (0, 1)),
        ((STOPPED,), (5,), (-1.5,), (0, 1)),
    ],
)
def test_the_judgement(
    expected: tuple[int, ...],
    found: tuple[int, ...],
    logprobs: tuple[float, ...],
    figures: tuple[int, int],
) -> None:
    events = [event(9, (token,), logprobs[n : n + 1]) for n, token in enumerate(found)]
    if found[-1] == STOPPED:
        stop = (logprobs or (-1.0,) * len(found))[-1]
        events[-1] = replace(event(9, (), (), Finish.STOP), stop_logprob=stop)
    else:
        events.append(event(9, (), (), Finish.LENGTH))
    got = audited(output(expected), events)
    assert (got["audit_ties"], got["audit_mismatches"]) == figures


def test_the_tokens_of_an_unfinished_word_are_compared_as_one_choice() -> None:
    """Two ways to split it, each token of which is far from the other's, may be equally good."""
    expected = output((4, 5, 8), (-1.0, -2.0, -1.0), first=2)
    tie = [event(9, (6, 7), (-2.5, -0.5)), event(9, (8,), (), Finish.LENGTH)]
    assert audited(expected, tie)["audit_ties"] == 1
    other = [event(9, (6, 7), (-2.5, -0.4)), event(9, (8,), (), Finish.LENGTH)]
    assert audited(expected, other)["audit_mismatches"] == 1


def test_a_job_that_failed_is_not_counted() -> None:
    audit = Audit(1)
    audit.due(JOB)
    audit.repeat(JOB, output((4,)), 9)
    audit.drop(9)
    assert not audit.owns(9)
    assert audit.figures()["audited"] == 0
