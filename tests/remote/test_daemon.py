"""A daemon whose engine is a real server: typed at as editors do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import groupby

import psutil
import pytest

from completion_ls.config.settings import Settings
from completion_ls.wire.client import EngineClient, EngineFailed, Watcher
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete, Reach
from support.remote_llama import Llama, llama
from support.window import until

pytestmark = [pytest.mark.model, pytest.mark.process]

CODE = 'def add(first, second):\n    """Add two numbers."""\n    return '


def configured(url: str) -> DaemonConfig:
    sections = {"engine": {"kind": "remote"}, "remote": {"url": url, "timeout_s": 60}}
    return DaemonConfig.of(Settings.model_validate(sections))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def server(port: int) -> Iterator[Llama]:
    with llama(port=port) as started:
        yield started


async def asked(client: EngineClient, text: str, **more: object) -> str:
    wanted = {"id": 0, "document": "file:///a.py", "prefix": text, "suffix": "\n", "max_tokens": 8}
    answer = await client.complete(Complete.model_validate({**wanted, **more}))
    return "".join([chunk.text async for chunk in answer])


async def test_typing_costs_a_token_or_two_and_its_figures_say_so(
    isolated: dict[str, str], server: Llama
) -> None:
    client = EngineClient(configured(server.url))
    try:
        for length in range(len(CODE) - 25, len(CODE) + 1):
            text = await asked(client, CODE[:length])
        assert "first" in text
        assert await asked(client, CODE, ways=4, lane="manual") == ""  # lines are not weighed
        figures = (await client.status()).figures
    finally:
        await client.close()
    assert figures["engine"] == "remote" and figures["server_software"] == "llama.cpp"
    assert figures["prompt_tokens_computed_p50"] <= 3
    assert figures["server_by_tokens"] and figures["server_trouble"] == ""
    assert figures["drafting"] == {} and figures["weight_bytes"] == 0


async def test_a_server_that_goes_and_comes_back(isolated: dict[str, str], port: int) -> None:
    heard: list[Reach] = []
    client = EngineClient(configured(f"http://127.0.0.1:{port}"), Watcher(reach=heard.append))
    client.warm_up()
    try:
        await until(lambda: bool(heard))
        assert not heard[-1].ok and "cannot be reached" in heard[-1].text
        # Nobody is kept waiting for a server that may never be there.
        with pytest.raises(EngineFailed, match="cannot be reached") as failure:
            await asked(client, CODE)
        assert failure.value.passing
        assert "cannot be reached" in (await client.status()).figures["loading"]
        with llama(port=port):
            await until(lambda: heard[-1].ok)
            await until(lambda: client.ready is not None)
            assert await asked(client, CODE)
        with pytest.raises(EngineFailed, match="cannot be reached"):
            await asked(client, CODE + "x")
        await until(lambda: not heard[-1].ok)
        with llama(port=port):
            await until(lambda: heard[-1].ok)
            assert await asked(client, CODE)
    finally:
        await client.close()
    # While it starts it may be away for another reason, which is told, too.
    turns = [ok for ok, _ in groupby(one.ok for one in heard)]
    assert turns == [False, True, False, True]


async def test_who_asked_before_it_was_known_that_the_server_is_away_hears_of_it(
    isolated: dict[str, str], port: int
) -> None:
    client = EngineClient(configured(f"http://127.0.0.1:{port}"))
    try:
        with pytest.raises(EngineFailed, match="cannot be reached"):
            await asked(client, CODE)
    finally:
        await client.close()


async def test_a_daemon_that_waits_for_its_server_can_be_stopped(
    isolated: dict[str, str], port: int
) -> None:
    heard: list[Reach] = []
    client = EngineClient(configured(f"http://127.0.0.1:{port}"), Watcher(reach=heard.append))
    client.warm_up()
    await until(lambda: bool(heard))
    assert client._connection
    pid = client._connection.welcome.pid
    await client.leave()  # which stops a daemon that nobody else needs
    await until(lambda: not has_process(pid))


def has_process(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
