"""A server is left alone for longer and longer as long as it does nothing but pass its trials."""

from __future__ import annotations

import asyncio

import pytest

from completion_ls.engines.remote import breaker
from completion_ls.engines.remote.breaker import FAILURES, FIRST_PAUSE_S, LAST_PAUSE_S, Breaker
from completion_ls.engines.remote.errors import ServerError


async def test_pauses_grow_until_a_request_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    told: list[str] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def trial() -> None:
        pass  # it passes

    async def lost(one: Breaker) -> None:
        for _ in range(FAILURES):
            one.failed(ServerError("It failed."))
        assert one._trying
        await one._trying

    monkeypatch.setattr(breaker.asyncio, "sleep", sleep)
    monkeypatch.setattr(breaker.random, "uniform", lambda low, high: 1.0)
    one = Breaker(told.append, trial)
    for _ in range(6):
        await lost(one)
    assert pauses == [min(LAST_PAUSE_S, FIRST_PAUSE_S * 2**number) for number in range(6)]
    assert told == ["It failed.", ""] * 6
    one.succeeded()
    await lost(one)
    assert pauses[-1] == FIRST_PAUSE_S


async def test_a_trial_that_fails_in_no_foreseen_way_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes: list[Exception] = [OverflowError(), RuntimeError()]

    async def sleep(seconds: float) -> None:
        pass

    async def trial() -> None:
        if outcomes:
            raise outcomes.pop()

    monkeypatch.setattr(breaker.asyncio, "sleep", sleep)
    one = Breaker(lambda text: None, trial)
    one.failed(ServerError("Nobody is there.", lasts=True))
    assert one._trying
    await asyncio.wait_for(one._trying, 5)
    assert one.trouble == ""


async def test_a_server_that_is_silent_while_one_types_is_left_alone() -> None:
    """Each key gives up the request before it, so none of them comes to its limit of time."""
    told: list[str] = []

    async def trial() -> None:
        raise ServerError("It is silent.")

    one = Breaker(told.append, trial)
    silence = ServerError("It says nothing.", lasts=True)
    for _ in range(10):
        one.given_up(0.9, 10, silence)
    assert told == []
    one.heard()  # a word, and it counts anew
    for _ in range(12):
        one.given_up(0.9, 10, silence)
    assert told == ["It says nothing."]
    assert one._trying
    one._trying.cancel()
