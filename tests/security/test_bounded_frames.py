"""What a front, or whoever speaks as one, can have a daemon keep is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from completion_ls.config.settings import Settings
from completion_ls.daemon import server as daemon_server
from completion_ls.daemon import worker as daemon_worker
from completion_ls.daemon.server import MAX_BACKLOG, MAX_JOBS, Daemon
from completion_ls.wire import codec
from completion_ls.wire.codec import MAX_FRAME, MAX_ITEMS, MAX_VALUES, FrameError, unpack
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import (
    PROTOCOL,
    Cancel,
    Chunk,
    Complete,
    Error,
    File,
    Hello,
    Message,
    Welcome,
)

BOUND = 40 * 1024 * 1024
"""Most memory for a frame of 8 MiB: a text whose characters take four bytes each, and little else."""


def within_map(value: bytes) -> bytes:
    return b"\x81\xa1x" + value


def full(one: bytes) -> bytes:
    """As many as go into a frame, in lists of the largest size."""
    inner = b"\xdc" + MAX_ITEMS.to_bytes(2, "big") + one * MAX_ITEMS
    count = (MAX_FRAME - 100) // len(inner)
    return within_map(b"\xdc" + count.to_bytes(2, "big") + inner * count)


def one_map(entries: int) -> bytes:
    return (
        b"\xdf" + entries.to_bytes(4, "big") + b"".join(b"\xa4%04x\xc0" % n for n in range(entries))
    )


def one_list(one: bytes) -> bytes:
    count = (MAX_FRAME - 100) // len(one)
    return within_map(b"\xdd" + count.to_bytes(4, "big") + one * count)


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * MAX_FRAME,
        within_map(b"\x91" * (MAX_FRAME - 10)),
        within_map(b"\x81\xa1x" * 1_000_000),
        one_map(MAX_ITEMS + 1),
        one_list(b"\x00"),
        one_list(b"\x80"),
        one_list(b"\xa1a"),
        full(b"\x00"),
        full(b"\x80"),
        full(b"\x90"),
        full(b"\xcb\x00\x00\x00\x00\x00\x00\x00\x01"),
        b"\xdf\x00\x10\x00\x00" + b"".join(b"\xce%b\x00" % n.to_bytes(4, "big") for n in range(9)),
        b"\xdf\xff\xff\xff\xff",
        within_map(b"\xdd\xff\xff\xff\xff"),
        within_map(b"\xdb\xff\xff\xff\xff"),
        within_map(b"\xc7\x08\x05" + b"x" * 8),
        within_map(b"\xc7\x00\x05"),
        within_map(b"\xd6\xff" + b"\x00" * 4),
        within_map(b"\xc4\x01x"),
        b"\x81\x01\x01",
    ],
)
def test_a_frame_that_is_no_message_is_refused_within_bounds(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(FrameError):
        unpack(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < BOUND


def test_the_largest_text_stays_within_bounds() -> None:
    text = ("x" * (MAX_FRAME - 200) + "\U0001f600").encode()
    body = within_map(b"\xdb" + len(text).to_bytes(4, "big") + text)
    tracemalloc.start()
    assert unpack(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < BOUND


def test_the_largest_messages_pass() -> None:
    """The longest suggestion in one chunk, and a job with many files."""
    tokens = 4096
    chunk = Chunk(
        id=1,
        text="x" * tokens,
        reused=0,
        computed=0,
        logprobs=[-0.5] * tokens,
        sizes=[1] * tokens,
    )
    files = [File(path=f"{n}.py", text="x" * 1000) for n in range(1000)]
    job = Complete(id=1, document="a", prefix="x" * 10**6, suffix="x" * 10**6, files=files)
    for message, kinds in ((chunk, codec.daemon_messages), (job, codec.front_messages)):
        body = codec.encode(message)[codec.HEADER.size :]
        assert codec.decode(body, kinds) == message  # type: ignore[arg-type]
    assert 3 * tokens < MAX_VALUES


@pytest.fixture
async def loading(
    isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Daemon, Endpoint]]:
    """A daemon whose model never gets loaded."""
    release = threading.Event()

    def load(*_: Any) -> Any:
        release.wait(60)
        raise ValueError("let go")

    monkeypatch.setattr(daemon_worker, "load", load)
    config = DaemonConfig.of(Settings())
    endpoint = Endpoint.of(config)
    daemon = Daemon(config, endpoint)
    running = asyncio.create_task(daemon.run())
    while not endpoint.socket_file.exists():
        await asyncio.sleep(0.01)
    yield daemon, endpoint
    release.set()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class Front:
    """A connection without manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, endpoint: Endpoint) -> Front:
        front = cls(*await asyncio.open_unix_connection(endpoint.socket_file))
        front.send(Hello(protocol=PROTOCOL, version="9"))
        return front

    def send(self, message: Message) -> None:
        self.writer.write(codec.encode(message))

    async def receive(self) -> Message | None:
        body = await codec.read_body(self.reader)
        return None if body is None else codec.decode(body, codec.daemon_messages)

    async def error(self) -> Error:
        while True:
            match await self.receive():
                case Error() as found:
                    return found
                case None:
                    raise AssertionError("the connection ended")


def job(id: int, text: str = "x") -> Complete:
    return Complete(id=id, document="a", prefix=text, suffix="")


async def test_a_million_jobs_are_refused_with_a_sentence(
    loading: tuple[Daemon, Endpoint],
) -> None:
    daemon, endpoint = loading
    front = await Front.to(endpoint)
    for id in range(MAX_JOBS + 50):
        front.send(job(id))
    refused = [await front.error() for _ in range(50)]
    assert [one.id for one in refused] == list(range(MAX_JOBS, MAX_JOBS + 50))
    assert all(one.code == "busy" and one.text.endswith(".") for one in refused)
    # One id a million times is one job.
    front.send(job(0))
    assert "still running" in (await front.error()).text
    # Cancelling makes room, and another front has room of its own.
    front.send(Cancel(id=0))
    front.send(job(1000))
    front.send(job(1001))
    assert (await front.error()).id == 1001
    other = await Front.to(endpoint)
    other.send(job(1))
    other.send(job(1))
    assert "still running" in (await other.error()).text
    assert daemon._worker.backlog <= MAX_JOBS + 10
    for one in (front, other):
        one.writer.close()


async def test_the_texts_of_jobs_are_bounded_together(
    loading: tuple[Daemon, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_server, "MAX_JOB_BYTES", 1_000_000)
    _, endpoint = loading
    front = await Front.to(endpoint)
    for id in (1, 2, 3):
        front.send(job(id, "x" * 400_000))
    assert (await front.error()).id == 3
    front.writer.close()


def texts_that_wait(daemon: Daemon) -> list[daemon_worker._Submit]:
    """The jobs in the inbox of the engine's thread."""
    return [one for one in daemon._worker._inbox if isinstance(one, daemon_worker._Submit)]


async def test_who_asks_and_cancels_for_ever_waits(
    loading: tuple[Daemon, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is read from it, so the socket is full, and no text of what was cancelled is kept."""
    most = 500
    monkeypatch.setattr(daemon_server, "MAX_BACKLOG", most)
    daemon, endpoint = loading
    front = await Front.to(endpoint)
    for id in range(most):
        front.send(job(id, "secret text"))
        front.send(Cancel(id=id))
    for _ in range(20 * most):
        front.send(Cancel(id=1))
    while daemon._worker.backlog <= most:
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert daemon._worker.backlog <= most + 2
    assert texts_that_wait(daemon) == []
    assert most < MAX_BACKLOG
    front.writer.transport.abort()


async def test_of_who_has_left_no_text_waits(loading: tuple[Daemon, Endpoint]) -> None:
    daemon, endpoint = loading
    for _ in range(5):
        front = await Front.to(endpoint)
        for id in range(MAX_JOBS):
            front.send(job(id, "secret text"))
        front.send(job(MAX_JOBS))
        assert (await front.error()).code == "busy"  # the others have arrived
        front.writer.close()
    while daemon._peers:
        await asyncio.sleep(0.01)
    assert texts_that_wait(daemon) == []


async def test_connections_are_bounded(
    loading: tuple[Daemon, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_server, "MAX_PEERS", 3)
    _, endpoint = loading
    fronts = [await Front.to(endpoint) for _ in range(3)]
    for front in fronts:
        assert isinstance(await front.receive(), Welcome)
    refused = await Front.to(endpoint)
    error = await refused.error()
    assert error.code == "busy"
    assert "close some windows" in error.text
    assert await refused.receive() is None
    fronts[0].writer.close()
    while True:  # it notices in a moment
        another = await Front.to(endpoint)
        if isinstance(await another.receive(), Welcome):
            break
        another.writer.close()
    for front in (*fronts, another, refused):
        front.writer.close()


async def test_who_says_no_hello_keeps_nobody_out(
    loading: tuple[Daemon, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_server, "MAX_PEERS", 3)
    _, endpoint = loading
    silent = [await asyncio.open_unix_connection(endpoint.socket_file) for _ in range(10)]
    front = await Front.to(endpoint)
    assert isinstance(await front.receive(), Welcome)
    # Those that came first are closed, the others are not.
    for reader, _ in silent[:8]:
        assert await reader.read() == b""
    assert not any(reader.at_eof() for reader, _ in silent[8:])
    for writer in (front.writer, *(writer for _, writer in silent)):
        writer.close()


async def test_a_frame_that_is_too_long_is_not_read(loading: tuple[Daemon, Endpoint]) -> None:
    _, endpoint = loading
    front = await Front.to(endpoint)
    front.writer.write(codec.HEADER.pack(MAX_FRAME + 1))
    assert (await front.error()).code == "bad_frame"
    assert await front.receive() is None
    front.writer.close()


async def test_a_frame_that_is_nested_ends_its_connection_only(
    loading: tuple[Daemon, Endpoint],
) -> None:
    _, endpoint = loading
    front, other = await Front.to(endpoint), await Front.to(endpoint)
    body = msgpack.packb({"type": "complete"})[:-1] + b"\x91" * 1_000_000
    front.writer.write(codec.HEADER.pack(len(body)) + body)
    assert (await front.error()).code == "bad_frame"
    other.send(job(1))
    other.send(job(1))
    assert "still running" in (await other.error()).text
    for one in (front, other):
        one.writer.close()
