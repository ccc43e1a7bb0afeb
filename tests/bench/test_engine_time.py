"""What the daemon counts of its engine's time: on which jobs it went."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from completion_ls.config.settings import Settings
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.process

REQUEST = Complete(
    id=1, document="file:///a.py", prefix="def add(a, b):\n    ", suffix="", max_tokens=200
)
AHEAD = REQUEST.model_copy(update={"lane": "background", "max_tokens": 8})


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[EngineClient]:
    folder = write_tiny_model(tmp_path / "model")
    sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}}
    client = EngineClient(DaemonConfig.of(Settings.model_validate(sections)))
    yield client
    await client.close()


async def spent(client: EngineClient, request: Complete, *, complete: bool | None) -> Any:
    """The figures after a job, which is cancelled at its first text unless `complete` is None."""
    answer = await client.complete(request)
    async for _ in answer:
        if complete is not None:
            break
    client.cancel(answer, complete=bool(complete))
    return (await client.status()).figures


async def test_time_on_a_job_that_was_cancelled_too_early_is_wasted(client: EngineClient) -> None:
    whole = await spent(client, REQUEST.model_copy(update={"max_tokens": 8}), complete=None)
    assert whole["engine_seconds"] > 0
    assert whole["engine_seconds_wasted"] == 0
    enough = await spent(client, REQUEST, complete=True)
    assert enough["engine_seconds"] > whole["engine_seconds"]
    assert enough["engine_seconds_wasted"] == 0
    early = await spent(client, REQUEST, complete=False)
    wasted = early["engine_seconds_wasted"]
    assert 0 < wasted <= early["engine_seconds"] - enough["engine_seconds"]
    assert early["engine_seconds_background"] == 0
    assert early["jobs_awaited"] == 3


async def test_work_ahead_of_the_user_is_counted_for_itself(client: EngineClient) -> None:
    figures = await spent(client, AHEAD, complete=None)
    assert 0 < figures["engine_seconds_background"] <= figures["engine_seconds"]
    assert figures["prompt_tokens_computed_background"] == figures["prompt_tokens_computed"] > 0
    assert figures["prompt_tokens_reused_background"] == figures["prompt_tokens_reused"]
    assert (figures["jobs"], figures["jobs_awaited"]) == (1, 0)
    dropped = await spent(client, AHEAD.model_copy(update={"max_tokens": 200}), complete=False)
    assert dropped["engine_seconds_background"] > figures["engine_seconds_background"]
    assert dropped["engine_seconds_wasted"] == 0


async def test_a_promoted_job_is_one_that_somebody_waits_for(client: EngineClient) -> None:
    answer = await client.complete(AHEAD)
    client.promote(answer)
    async for _ in answer:
        pass
    figures = (await client.status()).figures
    assert (figures["jobs"], figures["jobs_awaited"]) == (1, 1)
    assert figures["engine_seconds_background"] < figures["engine_seconds"]
