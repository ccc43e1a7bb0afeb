"""A small strict HTTP/1.1 server in a thread with a loop of its own. h11 refuses what is not HTTP; what is
answered is a dialect's concern (`vllm.py`, `tabby.py`), what goes wrong a fault's (`faults.py`)."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import h11

MOST_BYTES = 32 << 20
WAIT_S = 10.0
"""Longest wait of a test's thread for the server's."""

JSON = "application/json"


@dataclass
class Asked:
    """A request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    raw: bytes
    body: Any
    """Parsed; None where it is no JSON."""
    closed_early: bool = False
    """Whether the client was gone before the answer had ended."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the answer has ended, or the client has gone."""

    @property
    def bearer(self) -> str | None:
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        return key if scheme.lower() == "bearer" and key else None


@dataclass
class Answer:
    """What is sent: a head, then parts, computed as they are sent. `streams`: the parts are events."""

    status: int
    parts: Iterable[bytes]
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    streams: bool = False


def json_answer(status: int, value: object) -> Answer:
    return Answer(status, [json.dumps(value).encode()])


class Dialect(Protocol):
    """A kind of server."""

    def answer(self, asked: Asked) -> Answer: ...

    def error(self, status: int, message: str) -> object:
        """The body of an answer that is an error."""

    def error_events(self, message: str) -> list[bytes]:
        """What ends a stream in which something went wrong."""


class ClientGone(Exception):
    """The client has closed the connection."""


class Wire:
    """One answer on its way."""

    def __init__(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialect: Dialect,
    ) -> None:
        self.dialect = dialect
        self._connection, self._reader, self._writer = connection, reader, writer
        self._gone = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        # A client that waits for its answer sends nothing: what ends this is its close.
        with suppress(ConnectionError):
            await self._reader.read(1)

    async def head(self, answer: Answer) -> None:
        sized = [] if answer.streams else self._sized(answer)
        headers = [("content-type", answer.content_type), *answer.headers.items(), *sized]
        # httptools and uvicorn, which both real servers use, chunk what has no length; so does h11.
        await self._send(h11.Response(status_code=answer.status, headers=headers))

    @staticmethod
    def _sized(answer: Answer) -> list[tuple[str, str]]:
        answer.parts = list(answer.parts)
        return [("content-length", str(sum(map(len, answer.parts))))]

    async def data(self, part: bytes) -> None:
        await self._send(h11.Data(data=part))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        await asyncio.sleep(0)
        if self._gone.done():
            raise ClientGone
        self._writer.write(self._connection.send(event) or b"")
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ClientGone from error

    async def sleep(self, seconds: float) -> None:
        """Wait, unless the client goes: raises ClientGone then."""
        done, _ = await asyncio.wait([self._gone], timeout=seconds)
        if done:
            raise ClientGone

    async def until_gone(self) -> None:
        """Say nothing more. Raises ClientGone at the end."""
        await self._gone
        raise ClientGone

    def drop(self, reset: bool) -> None:
        """Close the connection where it stands, with RST or with FIN."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def stop_watching(self) -> None:
        self._gone.cancel()
        with suppress(asyncio.CancelledError):
            await self._gone


async def honest(wire: Wire, answer: Answer) -> None:
    """The answer as it is."""
    await wire.head(answer)
    for part in answer.parts:
        await wire.data(part)
    await wire.end()


class Fault(Protocol):
    """What goes wrong with one answer; returning with the message not ended closes the connection."""

    async def play(self, wire: Wire, answer: Answer) -> None: ...


@dataclass
class _Planned:
    fault: Fault
    times: float
    path: str


class Server:
    """Runs until it is closed. What it was asked is in `requests`, the last one last."""

    def __init__(self, dialect: Dialect, tls: ssl.SSLContext | None = None) -> None:
        self.dialect = dialect
        self._tls = tls
        self.requests: list[Asked] = []
        self.connections = 0
        """How many have been made."""
        self._planned: deque[_Planned] = deque()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.listen()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def asked(self, path: str) -> list[Asked]:
        """The requests for `path`."""
        return [asked for asked in self.requests if asked.path == path]

    def fail(self, fault: Fault, times: float = 1, path: str = "") -> None:
        """The next `times` requests (for `path`, if one is given) meet `fault`, after those in wait."""
        self._planned.append(_Planned(fault, times, path))

    @property
    def fault(self) -> Fault | None:
        """What every request meets, until it is set to None."""
        return next((planned.fault for planned in self._planned), None)

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._planned.clear()
        if fault is not None:
            self.fail(fault, times=float("inf"))

    def listen(self) -> None:
        """Listen, again on the same port after `refuse`."""
        self._run(self._listen())

    def refuse(self) -> None:
        """Close the listening socket and all connections: who comes is refused."""
        self._run(self._refuse())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self.refuse()
        try:
            yield
        finally:
            self.listen()

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, reuse_address=True, ssl=self._tls
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        # Who stands at the door is let in, to be shown out: not every kernel resets them with the listener.
        for _ in range(6):
            await asyncio.sleep(0)
        if self._listener is not None:
            self._listener.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        await self._refuse()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._one(connection, reader, writer):
                connection.start_next_cycle()
        except (ConnectionError, ClientGone):
            pass
        except h11.RemoteProtocolError as error:
            await self._no_http(connection, writer, error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer one request; whether another may follow on this connection."""
        asked = await _read(connection, reader)
        if asked is None:
            return False
        self.requests.append(asked)
        wire = Wire(connection, reader, writer, self.dialect)
        try:
            await self._play(asked)(wire, self.dialect.answer(asked))
        except ClientGone:
            asked.closed_early = True
            raise
        finally:
            await wire.stop_watching()
            asked.over.set()
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    def _play(self, asked: Asked) -> Callable[[Wire, Answer], Coroutine[Any, Any, None]]:
        for planned in list(self._planned):
            if planned.path in ("", asked.path):
                planned.times -= 1
                if planned.times <= 0:
                    self._planned.remove(planned)
                return planned.fault.play
        return honest

    async def _no_http(
        self,
        connection: h11.Connection,
        writer: asyncio.StreamWriter,
        error: h11.RemoteProtocolError,
    ) -> None:
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        said = str(error).encode()
        head = h11.Response(
            status_code=error.error_status_hint,
            headers=[("content-length", str(len(said))), ("connection", "close")],
        )
        for event in (head, h11.Data(data=said), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        with suppress(ConnectionError):
            await writer.drain()


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> Asked | None:
    """The next request, whole; None where the client sends none."""
    head: h11.Request | None = None
    raw = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                raise h11.RemoteProtocolError("no 100-continue here", error_status_hint=417)
            connection.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            raw += event.data
            if len(raw) > MOST_BYTES:
                raise h11.RemoteProtocolError("too long", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            return None
    assert head is not None
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    body = None
    with suppress(ValueError):
        body = json.loads(raw)
    return Asked(head.method.decode(), head.target.decode().partition("?")[0], headers, raw, body)


@contextmanager
def serving(dialect: Dialect, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server of that kind on a free port of this machine."""
    server = Server(dialect, tls)
    try:
        yield server
    finally:
        server.close()
