"""The daemon as its fronts meet it: real processes, a tiny model, both transports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from filelock import FileLock

from completion_ls.config.settings import Settings
from completion_ls.daemon.server import AlreadyRunning, Daemon
from completion_ls.wire import codec
from completion_ls.wire.attach import StartFailed, attach, daemon_log
from completion_ls.wire.client import EngineClient, EngineFailed, Watcher
from completion_ls.wire.connection import Connection, NoDaemon, Silent
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import (
    PROTOCOL,
    Cancel,
    Chunk,
    Complete,
    Done,
    Error,
    GetStatus,
    Hello,
    Message,
    Ready,
    Status,
    Stop,
    Welcome,
)
from support.tiny_model import write_tiny_model
from support.window import until

pytestmark = pytest.mark.process

REQUEST = Complete(id=1, document="file:///a.py", prefix="def add(a, b):\n    ", suffix="\n")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(params=["unix", "tcp"])
def config(request: pytest.FixtureRequest, tiny_folder: Path) -> DaemonConfig:
    return configured(tiny_folder, transport=request.param)


def configured(folder: Path | str, **daemon: Any) -> DaemonConfig:
    sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}, "daemon": daemon}
    return DaemonConfig.of(Settings.model_validate(sections))


def test_a_daemon_by_hand_that_cannot_load_says_so_in_its_status() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "completion_ls", "daemon", "run"],
        env={**os.environ, "COMPLETION_LS_MODEL__NAME": "/no/such"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no model file or folder /no/such" in done.stderr


@pytest.fixture
async def client(config: DaemonConfig) -> AsyncIterator[EngineClient]:
    client = EngineClient(config)
    yield client
    await client.close()


async def text_of(client: EngineClient, request: Complete) -> tuple[str, Done]:
    answer = await client.complete(request)
    text = "".join([chunk.text async for chunk in answer])
    assert answer.done
    return text, answer.done


class Raw:
    """A connection without manners."""

    def __init__(self, config: DaemonConfig) -> None:
        self.endpoint = Endpoint.of(config)

    async def __aenter__(self) -> Raw:
        if self.endpoint.socket_file.exists():
            pair = await asyncio.open_unix_connection(self.endpoint.socket_file)
        else:
            address = self.endpoint.read_tcp()
            assert address
            pair = await asyncio.open_connection("127.0.0.1", address.port)
        self.reader, self.writer = pair
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def hello(self, **changes: Any) -> None:
        address = self.endpoint.read_tcp()
        fields = {"protocol": PROTOCOL, "version": "9", "token": address.token if address else ""}
        self.writer.write(codec.encode(Hello(**{**fields, **changes})))

    async def receive(self) -> Message | None:
        body = await asyncio.wait_for(codec.read_body(self.reader), 30)
        return None if body is None else codec.decode(body, codec.daemon_messages)

    async def error(self) -> Error:
        while not isinstance(message := await self.receive(), Error):
            assert message is not None
        return message


async def running(config: DaemonConfig) -> Connection:
    """Start the daemon and wait until the model is loaded."""
    connection = await attach(config)
    while not isinstance(await connection.receive(), Ready):
        pass
    return connection


async def test_a_job_streams_its_text_and_ends(client: EngineClient) -> None:
    text, done = await text_of(client, REQUEST.model_copy(update={"max_tokens": 12}))
    assert text
    assert done.finish == "length"
    assert 12 <= done.generated <= 16  # the unfinished word may take some more
    assert done.computed > 0
    again, done = await text_of(client, REQUEST.model_copy(update={"max_tokens": 12}))
    assert again == text
    assert done.computed <= 3  # what may be computed again is the unfinished word
    assert done.reused > 1


async def test_a_job_that_stops_at_the_line(client: EngineClient) -> None:
    whole, _ = await text_of(client, REQUEST.model_copy(update={"max_tokens": 400}))
    assert "\n" in whole, "the model must write a line end for this test"
    text, done = await text_of(
        client, REQUEST.model_copy(update={"max_tokens": 400, "stop_at_line": True})
    )
    assert text == whole[: whole.index("\n") + 1]
    assert done.finish == "line"


async def test_private_files(client: EngineClient) -> None:
    await client.status()
    endpoint = Endpoint.of(client.config)
    assert stat.S_IMODE(endpoint.folder.stat().st_mode) == 0o700
    files = [file for file in (endpoint.socket_file, endpoint.tcp_file) if file.exists()]
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


async def test_ten_fronts_at_once_get_one_daemon(config: DaemonConfig) -> None:
    program = """
import asyncio, sys
from completion_ls.wire.attach import attach
from completion_ls.wire.endpoint import DaemonConfig
async def main():
    connection = await attach(DaemonConfig.model_validate_json(sys.argv[1]))
    print(connection.welcome.pid)
    await asyncio.sleep(1)
asyncio.run(main())
"""
    fronts = [
        subprocess.Popen(
            [sys.executable, "-c", program, config.model_dump_json()], stdout=subprocess.PIPE
        )
        for _ in range(10)
    ]
    pids = {await asyncio.to_thread(lambda front=front: front.communicate()[0]) for front in fronts}
    assert len(pids) == 1
    assert int(pids.pop()) > 0


async def test_it_leaves_when_nobody_has_been_there_for_a_while(tiny_folder: Path) -> None:
    config = configured(tiny_folder, idle_exit_s=0.3)
    connection = await running(config)
    pid = connection.welcome.pid
    await asyncio.sleep(1)  # connected, so it stays
    connection.send(GetStatus())
    assert await connection.receive()
    connection.close()
    await until(lambda: not alive(pid))
    assert not Endpoint.of(config).socket_file.exists()


async def test_who_only_looks_at_the_status_does_not_keep_it(tiny_folder: Path) -> None:
    config = configured(tiny_folder, idle_exit_s=2)
    connection = await running(config)
    pid = connection.welcome.pid
    connection.close()
    endpoint = Endpoint.of(config)

    async def has_left() -> bool:
        try:
            looking = await Connection.open(endpoint)
        except NoDaemon:
            return True
        looking.send(GetStatus())
        while not isinstance(await looking.receive(), Status | None):
            pass
        looking.close()
        return False

    while not await has_left():
        await asyncio.sleep(0.05)
    await until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    # The daemon is our child here, so it must be reaped to be gone.
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return Path(f"/proc/{pid}").exists()
    return done == 0


@pytest.mark.parametrize("way", ["message", "SIGTERM", "command"])
async def test_it_can_be_stopped(config: DaemonConfig, way: str) -> None:
    connection = await attach(config)  # while it is loading
    if way == "message":
        connection.send(Stop())
    elif way == "SIGTERM":
        os.kill(connection.welcome.pid, signal.SIGTERM)
    else:
        command = [sys.executable, "-m", "completion_ls", "daemon", "stop"]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True
        )
        assert "1 daemon stopped" in done.stdout
    while await connection.receive():
        pass
    await until(lambda: not alive(connection.welcome.pid))
    with pytest.raises(NoDaemon):
        await Connection.open(Endpoint.of(config))


async def test_a_daemon_that_leaves_welcomes_nobody(config: DaemonConfig) -> None:
    """Who says hello meanwhile would wait for ever: the daemon could not end before that one left."""
    connection = await attach(config)
    async with Raw(config) as stranger:
        connection.send(Stop())
        while await connection.receive():  # while it loads, it takes a second to leave
            pass
        with contextlib.suppress(ConnectionError):
            stranger.hello()
            assert await stranger.receive() is None
    await until(lambda: not alive(connection.welcome.pid))


async def test_a_killed_daemon_is_replaced(config: DaemonConfig, client: EngineClient) -> None:
    answer = await client.complete(REQUEST.model_copy(update={"max_tokens": 1000}))
    chunks = aiter(answer)
    await anext(chunks)
    pid = (await client.status()).figures["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineFailed, match="stopped"):
        async for _ in chunks:
            pass
    _, done = await text_of(client, REQUEST)
    assert done.generated > 0
    assert (await client.status()).figures["pid"] != pid


async def test_a_killed_daemon_is_no_zombie(config: DaemonConfig) -> None:
    connection = await attach(config)
    pid = connection.welcome.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    connection.close()


async def test_a_front_that_comes_while_the_daemon_leaves_gets_another(
    config: DaemonConfig,
) -> None:
    connection = await attach(config)  # it is loading, which takes a while to end
    connection.send(Stop())
    while await connection.receive():
        pass
    client = EngineClient(config)
    _, done = await text_of(client, REQUEST)
    assert done.generated > 0
    assert (await client.status()).figures["pid"] != connection.welcome.pid
    await client.close()


async def test_a_stopped_daemon_is_not_started_again_by_itself(config: DaemonConfig) -> None:
    said: list[str] = []
    client = EngineClient(config, Watcher(failed=said.append))
    await text_of(client, REQUEST)
    connection = await attach(config)
    connection.send(Stop())
    while await connection.receive():
        pass
    await until(lambda: client.ready is None)
    await asyncio.sleep(0.2)
    with pytest.raises(NoDaemon):
        await Connection.open(Endpoint.of(config))
    assert said == []
    await text_of(client, REQUEST)  # but by the next request
    await client.close()


async def test_a_daemon_whose_socket_was_removed_listens_again(config: DaemonConfig) -> None:
    connection = await attach(config)
    endpoint = Endpoint.of(config)
    endpoint.remove()
    again = await attach(config)
    assert again.welcome.pid == connection.welcome.pid
    connection.close()
    again.close()


async def test_a_daemon_that_cannot_listen_again_tries_until_it_can(tiny_folder: Path) -> None:
    config = configured(tiny_folder, transport="unix")
    connection = await attach(config)
    endpoint = Endpoint.of(config)
    log_file = daemon_log(endpoint)
    assert log_file
    endpoint.remove()
    endpoint.socket_file.symlink_to("nothing")
    while "cannot listen again yet" not in log_file.read_text():
        await asyncio.sleep(0.1)
    endpoint.remove()
    again = await attach(config)
    assert again.welcome.pid == connection.welcome.pid
    connection.close()
    again.close()


async def test_a_daemon_whose_folder_was_removed_leaves_to_another(config: DaemonConfig) -> None:
    connection = await attach(config)
    endpoint = Endpoint.of(config)
    shutil.rmtree(endpoint.folder)
    other = await attach(config)
    assert other.welcome.pid != connection.welcome.pid
    while await connection.receive():
        pass
    await until(lambda: not alive(connection.welcome.pid))
    # What the first one left alone still serves.
    third = await Connection.open(endpoint)
    assert third.welcome.pid == other.welcome.pid
    other.close()
    third.close()


async def test_an_id_that_is_in_use_is_refused_and_the_first_job_goes_on(
    config: DaemonConfig,
) -> None:
    connection = await running(config)
    for _ in range(2):
        connection.send(REQUEST.model_copy(update={"max_tokens": 300}))
    seen: list[Message] = []
    while not isinstance(message := await connection.receive(), Done):
        assert message
        seen.append(message)
    errors = [message for message in seen if isinstance(message, Error)]
    assert [error.code for error in errors] == ["job"]
    connection.close()


async def test_a_second_daemon_for_the_same_settings_leaves(config: DaemonConfig) -> None:
    connection = await running(config)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "completion_ls", "daemon", "run", "--config", "-"],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "already" in done.stderr
    connection.send(GetStatus())
    assert isinstance(await connection.receive(), Status)
    connection.close()


async def test_a_cancelled_job_says_nothing_more_and_its_kv_stays(config: DaemonConfig) -> None:
    connection = await running(config)
    connection.send(REQUEST.model_copy(update={"max_tokens": 3000}))
    assert isinstance(await connection.receive(), Chunk)
    connection.send(Cancel(id=1))
    connection.send(GetStatus())
    while not isinstance(message := await connection.receive(), Status):
        assert isinstance(message, Chunk)
    assert message.figures["jobs_active"] == 0
    assert message.figures["jobs_cancelled"] == 1
    connection.send(REQUEST.model_copy(update={"id": 2, "max_tokens": 1}))
    chunk = await connection.receive()
    assert isinstance(chunk, Chunk)
    assert chunk.id == 2
    assert chunk.computed <= 3
    connection.close()


async def test_a_front_that_goes_takes_its_jobs_along(config: DaemonConfig) -> None:
    first, second = await running(config), await attach(config)
    first.send(REQUEST.model_copy(update={"max_tokens": 3000}))
    await first.receive()
    first.close()

    async def active() -> int:
        second.send(GetStatus())
        while not isinstance(message := await second.receive(), Status):
            pass
        return int(message.figures["jobs_active"])

    while await active():
        await asyncio.sleep(0.02)
    second.close()


async def test_two_fronts_are_served_side_by_side(config: DaemonConfig) -> None:
    first, second = EngineClient(config), EngineClient(config)
    long = REQUEST.model_copy(update={"max_tokens": 2000})
    endless = asyncio.create_task(text_of(first, long))
    text, _ = await text_of(second, REQUEST.model_copy(update={"max_tokens": 5}))
    assert text
    assert not endless.done()
    _, done = await endless
    assert done.generated >= 2000
    await first.close()
    await second.close()


async def test_a_prompt_longer_than_the_context_is_cut(client: EngineClient) -> None:
    text = "value = value + 1\n" * 20_000
    request = REQUEST.model_copy(update={"prefix": text, "suffix": text, "prompt_tokens": 100_000})
    _, done = await text_of(client, request)
    assert done.reused + done.computed <= 4096 - request.max_tokens


async def test_an_unknown_message_is_answered_and_the_connection_stays(
    config: DaemonConfig,
) -> None:
    (await running(config)).close()
    async with Raw(config) as raw:
        raw.hello()
        for bad in ({"type": "dance", "id": 5}, {"type": "complete", "id": 6}, {}):
            body = msgpack.packb(bad)
            raw.writer.write(codec.HEADER.pack(len(body)) + body)
        errors = [await raw.error() for _ in range(3)]
        assert [error.code for error in errors] == [
            "unknown_message",
            "bad_message",
            "unknown_message",
        ]
        assert [error.id for error in errors] == [5, 6, None]
        raw.writer.write(codec.encode(GetStatus()))
        assert isinstance(await raw.receive(), Status)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\xff\xff\xff\xff", "bad_frame"),
        (b"\x00\x00\x00\x03abc", "bad_frame"),
        (codec.encode(GetStatus()), "protocol"),
        (codec.encode(Hello(protocol=99, version="9")), "protocol"),
    ],
)
async def test_who_does_not_say_hello_is_shown_the_door(
    config: DaemonConfig, sent: bytes, code: str
) -> None:
    (await running(config)).close()
    async with Raw(config) as raw:
        raw.writer.write(sent)
        assert (await raw.error()).code == code
        assert await raw.receive() is None


async def test_a_wrong_token_is_refused(tiny_folder: Path) -> None:
    config = configured(tiny_folder, transport="tcp")
    (await running(config)).close()
    for token in ("", "0" * 64, "ü"):
        async with Raw(config) as raw:
            raw.hello(token=token)
            assert (await raw.error()).code == "token"
            assert await raw.receive() is None
    async with Raw(config) as raw:
        raw.hello()
        assert isinstance(await raw.receive(), Welcome)


async def test_who_does_not_read_is_cut_off_and_others_go_on(config: DaemonConfig) -> None:
    connection = await running(config)
    endpoint = Endpoint.of(config)
    address = endpoint.read_tcp()
    if address:
        deaf = socket.create_connection(("127.0.0.1", address.port))
    else:
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(str(endpoint.socket_file))
    token = address.token if address else ""
    deaf.sendall(codec.encode(Hello(protocol=PROTOCOL, version="9", token=token)))
    deaf.sendall(codec.encode(Cancel(id=1)))  # who only looks is no front

    async def fronts() -> int:
        connection.send(GetStatus())
        while not isinstance(message := await connection.receive(), Status):
            pass
        return int(message.figures["fronts"])

    deaf.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(1000):
            await loop.sock_sendall(deaf, codec.encode(GetStatus()) * 100)
    while await fronts():
        await asyncio.sleep(0.05)
    deaf.close()
    connection.close()


async def test_a_second_one_does_not_say_that_it_serves(config: DaemonConfig) -> None:
    connection = await running(config)
    said: list[str] = []
    with pytest.raises(AlreadyRunning):
        await Daemon(config, Endpoint.of(config)).run(said.append)
    assert not said
    connection.close()


async def test_the_last_who_leaves_stops_it_and_who_looks_is_nobody(config: DaemonConfig) -> None:
    looks = await running(config)
    one, other = EngineClient(config), EngineClient(config)
    for client in (one, other):
        await text_of(client, REQUEST)

    async def fronts() -> int:
        looks.send(GetStatus())
        while not isinstance(message := await looks.receive(), Status):
            assert message
        return int(message.figures["fronts"])

    assert await fronts() == 2
    await one.leave()
    while await fronts() > 1:
        await asyncio.sleep(0.05)
    await other.leave()
    while await looks.receive():
        pass
    looks.close()


async def test_a_model_that_does_not_exist_is_a_sentence(isolated: dict[str, str]) -> None:
    client = EngineClient(configured("/no/such/folder"))
    with pytest.raises(EngineFailed, match="/no/such/folder"):
        await text_of(client, REQUEST)
    # Asked again at once, it neither waits nor starts another process.
    with pytest.raises(EngineFailed, match="/no/such/folder"):
        await client.complete(REQUEST)
    await client.close()


async def test_a_log_folder_that_cannot_be_used(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPLETION_LS_LOG_DIR", str(tmp_path / "file" / "log"))
    client = EngineClient(configured(tiny_folder))
    text, _ = await text_of(client, REQUEST)
    assert text
    await client.close()


async def test_a_runtime_folder_that_cannot_be_made_is_a_sentence(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(tmp_path / "file" / "run"))
    client = EngineClient(configured(tiny_folder))
    with pytest.raises(
        EngineFailed, match=r"cannot be started: .*COMPLETION_LS_RUNTIME_DIR"
    ) as said:
        await client.complete(REQUEST)
    assert "Make room" not in str(said.value)  # room is not what is missing
    await client.close()


async def test_a_window_that_does_not_get_on_with_starting_is_not_waited_for_for_ever(
    config: DaemonConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("completion_ls.wire.attach.START_TIMEOUT_S", 0.1)
    with (
        FileLock(Endpoint.of(config).start_lock),
        pytest.raises(StartFailed, match="Another window is starting"),
    ):
        await attach(config)


async def test_a_window_waits_for_a_daemon_that_another_starts_and_that_still_imports(
    config: DaemonConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await running(config)
    opened = Connection.open
    said: list[Exception] = [NoDaemon(), Silent(Endpoint.of(config)), Silent(Endpoint.of(config))]

    async def slowly(endpoint: Endpoint) -> Connection:
        if said:
            raise said.pop(0)
        return await opened(endpoint)

    monkeypatch.setattr(Connection, "open", slowly)
    with FileLock(Endpoint.of(config).start_lock):  # by the window that starts it
        second = await asyncio.wait_for(attach(config), 30)
    assert second.welcome.pid == first.welcome.pid
    assert not said
    for connection in (first, second):
        connection.close()


async def test_a_daemon_that_cannot_start_is_a_sentence(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartFailed, match="status 1"):
        await attach(configured(tiny_folder))


async def test_the_log_holds_no_code(config: DaemonConfig, isolated: dict[str, str]) -> None:
    loud = config.model_copy(update={"log_level": "debug"})
    client = EngineClient(loud)
    marked = "SECRET_MARK = 'zebra-4711'\n"
    await text_of(client, REQUEST.model_copy(update={"prefix": marked, "suffix": marked}))
    await client.leave()
    logs = list(Path(isolated["COMPLETION_LS_LOG_DIR"]).iterdir())
    assert logs
    assert all("zebra" not in log.read_text() for log in logs)
