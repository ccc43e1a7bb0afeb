"""When a server is left alone, and when it is tried again."""

from __future__ import annotations

import asyncio

import pytest

from completion_ls.engines.remote import breaker
from completion_ls.engines.remote.breaker import Breaker
from completion_ls.engines.remote.errors import ServerError

LOST = ServerError("Nobody is there.", lasts=True)


def test_a_server_that_passes_its_trials_alone_is_tried_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def slept(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(breaker.random, "uniform", lambda low, high: 1.0)
    monkeypatch.setattr(breaker.asyncio, "sleep", slept)

    async def trial() -> None:
        pass

    async def lose(one: Breaker, told: asyncio.Queue[str]) -> None:
        one.failed(LOST)
        assert await told.get() == str(LOST)
        assert await told.get() == ""

    async def history() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        one = Breaker(told.put_nowait, trial)
        for _ in range(6):
            await lose(one, told)
        one.succeeded()
        await lose(one, told)

    asyncio.run(history())
    assert pauses == [2, 4, 8, 16, 30, 30, 2]
