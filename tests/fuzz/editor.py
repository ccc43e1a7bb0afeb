"""An editor's session with the real server in this process: a script of messages goes in, and what the
server sends is kept. Time goes by when nothing else is left to do, there are no threads, and what the
engine says is in the script."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pygls.exceptions import JsonRpcException

from completion_ls import __version__
from completion_ls.lsp.channel import Malformed
from completion_ls.lsp.first_answer import answer_initialize
from completion_ls.lsp.server import create_server
from completion_ls.wire import client, codec
from completion_ls.wire.messages import (
    PROTOCOL,
    Cancel,
    Chunk,
    Complete,
    Done,
    GetStatus,
    Message,
    Ping,
    Pong,
    Ready,
    Status,
    Welcome,
)

GOOD_URI = "file:///home/u/good.py"
"""The document in which the engine always says the same."""
SETTLED_S = 100.0
"""By then nothing is under way any more."""


@dataclass(frozen=True)
class Say:
    """Send a body, whatever it is."""

    body: bytes


@dataclass(frozen=True)
class Skipped:
    """The channel has skipped what was no frame."""


@dataclass(frozen=True)
class Pause:
    """Let time go by."""

    seconds: float


@dataclass(frozen=True)
class Release:
    """Let the engine say so many of its answers."""

    count: int


@dataclass(frozen=True)
class Die:
    """The daemon crashes."""


Step = Say | Skipped | Pause | Release | Die


@dataclass(frozen=True)
class Script:
    """A session: the steps, what the engine says (in turns), how the client answers the server's
    requests, and whether `initialize` is answered before pygls is there."""

    steps: Sequence[Step]
    speeches: Sequence[str] = ("return a",)
    answers: Any = None
    early: bool = True


class Loop(asyncio.SelectorEventLoop):
    """Its time is that of the next thing to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready:
            times = [handle.when() for handle in loop._scheduled if not handle.cancelled()]
            assert times, "it waits for what never comes"
            self._now = max(self._now, min(times))
        super()._run_once()  # type: ignore[misc]


class Engine:
    """The daemons of a session; what they answer waits until it is released."""

    def __init__(self, speeches: Sequence[str]) -> None:
        self._speeches = speeches or [""]
        self._count = 0
        self._waiting: deque[tuple[Link, int, list[Message]]] = deque()
        self.links: list[Link] = []
        self.is_free = False

    async def attach(self, config: object) -> Link:
        """In the place of `wire.attach`."""
        link = Link(self)
        self.links.append(link)
        link.arrived.put_nowait(Ready(model="scripted", max_context=4096))
        return link

    def ask(self, link: Link, request: Complete) -> None:
        if request.document == GOOD_URI:
            text = "return a"
        else:
            text = "" if request.ways else self._speeches[self._count % len(self._speeches)]
        self._count += 1
        parts = [
            Chunk(id=request.id, text=one, reused=0, computed=1, logprobs=[-0.1], sizes=[len(one)])
            for one in _parts(text)
        ]
        done = Done(
            id=request.id,
            finish="stop",
            reused=0,
            computed=1,
            generated=1,
            first_token_ms=1.0,
            total_ms=1.0,
        )
        self._waiting.append((link, request.id, [*parts, done]))
        if self.is_free:
            self.release(len(self._waiting))

    def cancel(self, link: Link, id: int) -> None:
        self._waiting = deque(one for one in self._waiting if one[:2] != (link, id))

    def release(self, count: int) -> None:
        """Say so many answers."""
        for _ in range(min(count, len(self._waiting))):
            link, _, said = self._waiting.popleft()
            for message in said:
                link.arrived.put_nowait(message)

    def die(self) -> None:
        """All connections end."""
        for link in self.links:
            link.arrived.put_nowait(None)
        self.links.clear()
        self._waiting.clear()


def _parts(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


class Link:
    """As `wire.connection.Connection`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.welcome = Welcome(protocol=PROTOCOL, version=__version__, pid=0)
        self.arrived: asyncio.Queue[Message | None] = asyncio.Queue()

    def send(self, message: Message) -> None:
        codec.encode(message)
        match message:
            case Complete():
                self._engine.ask(self, message)
            case Cancel(id=id):
                self._engine.cancel(self, id)
            case GetStatus():
                self.arrived.put_nowait(Status(figures={"jobs": 1}))
            case Ping():
                self.arrived.put_nowait(Pong())

    async def receive(self) -> Message | None:
        return await self.arrived.get()

    def close(self) -> None:
        self._engine._waiting = deque(one for one in self._engine._waiting if one[0] is not self)


class ScriptedChannel:
    """As `lsp.channel.Channel`."""

    def __init__(self, script: Script, engine: Engine, last: Callable[[], Sequence[Step]]) -> None:
        self._steps = deque(script.steps)
        self._engine = engine
        self._answers = script.answers
        self._last = last
        self._first: list[bytes | Malformed | None] = []
        self.answering: deque[bytes] = deque()
        self.sent: list[dict[str, Any]] = []
        self.received: list[bytes] = []
        self._ends = False

    def give_back(self, item: bytes | Malformed | None) -> None:
        self._first.append(item)

    async def receive(self) -> bytes | Malformed | None:
        if self._first:
            return self._first.pop()
        while True:
            if self.answering:
                return self.answering.popleft()
            if not self._steps:
                if self._ends:
                    return None
                self._ends = True
                self._engine.is_free = True
                self._engine.release(1000)
                await asyncio.sleep(SETTLED_S)
                self._steps.extend(self._last())
                continue
            match self._steps.popleft():
                case Say(body):
                    self.received.append(body)
                    return body
                case Skipped():
                    return Malformed(
                        "Bytes that are no LSP header were received; they are skipped."
                    )
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Release(count):
                    self._engine.release(count)
                    await asyncio.sleep(0)
                case Die():
                    self._engine.die()
                    await asyncio.sleep(0)

    def send(self, body: bytes) -> None:
        message = json.loads(body)
        self.sent.append(message)
        if "method" in message and "id" in message and self._answers is not None:
            answer = {"jsonrpc": "2.0", "id": message["id"], **self._answers}
            self.answering.append(json.dumps(answer).encode())

    def close(self, timeout_s: float = 1.0) -> None:
        pass


@dataclass
class Heard:
    """What came of a session: bodies that the server read and messages that it sent, and what it
    should not have said."""

    received: list[bytes]
    sent: list[dict[str, Any]]
    goes_on: bool
    """Whether it would have read more."""
    faults: list[str] = field(default_factory=list)


def hold(script: Script, last: Sequence[Step]) -> Heard:
    """Hold a session, and go on with `last` where it is initialized and not shut down."""
    with _log() as faults, asyncio.Runner(loop_factory=Loop) as runner:
        heard = runner.run(_held(script, last))
        loop: Any = runner.get_loop()
        runner.run(asyncio.sleep(SETTLED_S))
        faults += [f"{one.get('message')} {one.get('exception')!r}" for one in loop.failures]
    heard.faults += faults
    return heard


async def _held(script: Script, last: Sequence[Step]) -> Heard:
    engine = Engine(script.speeches)
    server = create_server()
    protocol = server.protocol

    def goes_on() -> bool:
        return protocol._workspace is not None and not protocol._shutdown

    channel = ScriptedChannel(script, engine, lambda: last if goes_on() else ())
    before = client.attach
    client.attach = engine.attach  # type: ignore[assignment]
    try:
        item = await channel.receive()
        answered = answer_initialize(item, channel) if script.early else None  # type: ignore[arg-type]
        channel.give_back(item)
        await protocol.run(channel, answered)  # type: ignore[arg-type]
        went_on = goes_on() and protocol.exit_code is None
        await server.close()
    finally:
        client.attach = before
    return Heard(channel.received, channel.sent, went_on)


@contextmanager
def _log() -> Iterator[list[str]]:
    """What is logged that tells of a fault: exceptions, but for pygls's notes of what the client
    is answered."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, JsonRpcException) and record.name.startswith("pygls"):
                return
            text = record.getMessage()
            if error is not None or text.startswith("a task failed"):
                found.append(f"{record.name}: {text[:300]} {error!r} {_where(error)}")

    handler, root = Handler(), logging.getLogger()
    root.addHandler(handler)
    levels = [
        (one, one.level, one.propagate) for one in map(logging.getLogger, ("pygls", "asyncio"))
    ]
    kept = [one for one in root.handlers if one is not handler]
    for one in kept:
        root.removeHandler(one)
    for logger, _, _ in levels:
        logger.setLevel(logging.WARNING)
    try:
        yield found
    finally:
        root.removeHandler(handler)
        for one in kept:
            root.addHandler(one)
        for logger, level, _ in levels:
            logger.setLevel(level)


def _where(error: BaseException | None) -> str:
    trace = error.__traceback__ if error else None
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
