"""A front's view of a daemon that does not answer."""

from __future__ import annotations

import asyncio

import pytest

from completion_ls.config.settings import Settings
from completion_ls.wire import client as wire_client
from completion_ls.wire import codec
from completion_ls.wire.client import EngineClient, EngineFailed, Watcher
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import PROTOCOL, Complete, Message, Ready, Stop, Welcome


async def test_a_daemon_that_is_silent_is_told_all_the_same_that_nobody_needs_it(
    isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_client, "LOOK_S", 0.01)
    heard: list[Message] = []
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for message in (
            Welcome(protocol=PROTOCOL, version="9", pid=1),
            Ready(model="a", max_context=64),
        ):
            writer.write(codec.encode(message))
        while (body := await codec.read_body(reader)) is not None:
            heard.append(codec.decode(body, codec.front_messages))
        writer.close()
        gone.set()

    config = DaemonConfig.of(Settings())
    server = await asyncio.start_unix_server(silent, Endpoint.of(config).socket_file)
    told: list[str] = []
    front = EngineClient(config, Watcher(failed=told.append))
    request = Complete(id=0, document="a", prefix="x", suffix="")
    for _ in range(2):  # one whose answer does not come, and one that is not sent
        with pytest.raises(EngineFailed, match="does not answer") as failed:
            async for _ in await front.complete(request):
                pass
        assert failed.value.told
        assert told == [str(failed.value)]
    await front.leave()
    await gone.wait()
    assert heard[-1] == Stop(if_alone=True)
    server.close()
