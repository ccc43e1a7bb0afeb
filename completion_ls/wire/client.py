"""A front's view of the engine: ask for completions, through daemon deaths and restarts.

The client attaches when told to (`warm_up`) or asked (`complete`), again after the daemon was lost,
and not more often than the back-off allows. It never raises into the editor: a job that cannot be
served ends with EngineFailed, whose message is for people.

A daemon that says nothing for a while is asked for a sign of life. Where none comes (it was stopped by
a signal, or hangs), jobs end, and nothing more is sent until it is heard again: what nobody reads would
fill our memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from completion_ls.config import shortage
from completion_ls.wire.attach import StartFailed, attach
from completion_ls.wire.codec import MessageError
from completion_ls.wire.connection import Connection, Refused
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import (
    AnsweredWithoutPass,
    CameIntoView,
    Cancel,
    Chunk,
    Complete,
    Done,
    Error,
    GetStatus,
    Loading,
    Message,
    Ping,
    Promote,
    Reach,
    Ready,
    Status,
    Stop,
)

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
LOOK_S = 1.0
"""While a daemon owes us something it is looked at so often."""
SILENT_LOOKS = 5
"""When nothing has come at so many looks behind the one that asked (`Ping`), it does not answer. Looks and
not seconds: where it is we who could not run for a minute, that is one."""
SILENT_LOOKS_LOADING = 30
"""While it loads, libraries may hold its event loop for long."""


class EngineFailed(Exception):
    """A job cannot be served; the message is a sentence for the user. `passing`: the server that computes
    has failed once, which is no news to who did not ask by hand; if it lasts, a watcher hears of it.
    `told`: a watcher has heard of it, so it is no news, least of all where the trouble is over meanwhile."""

    def __init__(self, text: str, *, passing: bool = False, told: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
        self.told = told


@dataclass(slots=True)
class Watcher:
    """What the owner of a client is told (all optional): called on the event loop."""

    loading: Callable[[str, float], None] = lambda text, fraction: None
    ready: Callable[[Ready], None] = lambda ready: None
    failed: Callable[[str], None] = lambda text: None
    reach: Callable[[Reach], None] = lambda reach: None


@dataclass(slots=True)
class Answer:
    """A job under way: iterate over its chunks; `done` is set when the iteration has ended."""

    id: int
    chunks: asyncio.Queue[Chunk | Done | EngineFailed | None] = field(default_factory=asyncio.Queue)
    done: Done | None = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            item = await self.chunks.get()
            if item is None:
                return
            if isinstance(item, EngineFailed):
                raise item
            if isinstance(item, Done):
                self.done = item
                return
            yield item


class EngineClient:
    """One front's connection to its daemon, kept up. Use from one event loop."""

    def __init__(self, config: DaemonConfig, watcher: Watcher | None = None) -> None:
        self.config = config
        self.ready: Ready | None = None
        self.unreachable = ""
        """Why the server that computes cannot be reached, in a sentence; empty where it can."""
        self.completed = 0
        """Answers that have come, to their end."""
        self._watch = watcher or Watcher()
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._waiting_for_status: list[asyncio.Future[Status]] = []
        self._connection: Connection | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._load_error = ""
        self._served = self._stopped = False
        self._backoff = FIRST_BACKOFF_S
        self._not_before = 0.0
        self._trouble = ""
        self._closed = False
        self._owes = False
        """Whether something was sent since the daemon was heard last."""
        self._unheard = 0
        """Looks since then."""
        self._next_look: asyncio.TimerHandle | None = None
        self._silence = ""
        """What is to be said of a daemon that does not answer; empty where it does."""

    def warm_up(self) -> None:
        """Attach in the background, so that the model is loaded before the first key."""
        if not self._connection and not self._attaching and not self._closed:
            self._attaching = asyncio.create_task(self._attach())

    async def complete(self, request: Complete) -> Answer:
        """Send a job (its `id` is set here). Raises EngineFailed where there is no daemon for it."""
        await self._answering()
        if self._waits_for_server:
            raise EngineFailed(self.unreachable, passing=True)
        answer = Answer(next(self._ids))
        self._send(request.model_copy(update={"id": answer.id}))
        self._answers[answer.id] = answer
        return answer

    def cancel(self, answer: Answer, *, complete: bool = False) -> None:
        """Stop a job; its iteration ends. Harmless when it has ended already. `complete`: it gave
        all that was wanted of it."""
        if self._answers.pop(answer.id, None) is None:
            return
        answer.chunks.put_nowait(None)
        if self._connection:
            self._send(Cancel(id=answer.id, complete=complete))

    def promote(self, answer: Answer) -> None:
        """Have a background job served as a keystroke from now on."""
        if answer.id in self._answers and self._connection:
            self._send(Promote(id=answer.id))

    def came_into_view(self) -> None:
        """The user has come to our window."""
        if self._connection:
            self._send(CameIntoView())

    def answered_without_pass(self) -> None:
        """Count a keystroke that needed no engine, where there is a daemon to count it."""
        if self._connection:
            self._send(AnsweredWithoutPass())

    async def status(self) -> Status:
        """A snapshot of the daemon. Raises EngineFailed."""
        await self._answering()
        waiting: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._waiting_for_status.append(waiting)
        self._send(GetStatus())
        return await waiting

    async def leave(self) -> None:
        """Hang up for good. A daemon that is left without a front is stopped: nobody comes back to
        settings that were only passed by. One that is being started hears it when it can."""
        self._closed, self._watch = True, Watcher()
        if self._attaching:
            await asyncio.gather(self._attaching, return_exceptions=True)
        if self._connection:  # which is told though it be silent: it may go on
            self._connection.send(Stop(if_alone=True))
        await self.close()

    async def close(self) -> None:
        """Hang up. Jobs under way end with EngineFailed."""
        self._closed = True
        self._hear()
        tasks = [task for task in (self._attaching, self._receiving) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection:
            self._connection.close()
            self._connection = None
        self._fail_all("The connection to the engine was closed.")

    async def _answering(self) -> None:
        await self._attached()
        if self._silence:
            raise EngineFailed(self._silence, told=True)

    async def _attached(self) -> None:
        if self._connection:
            return
        if self._closed:
            raise EngineFailed("The connection to the engine was closed.")
        if not self._attaching and asyncio.get_running_loop().time() < self._not_before:
            raise EngineFailed(self._trouble, told=True)
        self.warm_up()
        assert self._attaching is not None
        # Shielded: many requests wait for the same attach, and one of them may be cancelled.
        await asyncio.shield(self._attaching)
        if not self._connection:
            raise EngineFailed(self._trouble, told=True)

    async def _attach(self) -> None:
        try:
            self._connection = await attach(self.config)
        except OSError as error:
            self._failed(_cannot_start(error))
        except (StartFailed, Refused) as error:
            self._failed(str(error))
        except Exception as error:
            log.exception("cannot attach to the engine daemon")
            self._failed(f"The engine daemon cannot be reached: {error}")
        else:
            self._receiving = asyncio.create_task(self._receive(self._connection))
        finally:
            self._attaching = None

    async def _receive(self, connection: Connection) -> None:
        self._load_error, self._served, self._stopped = "", False, False
        try:
            await self._listen(connection)
        finally:
            connection.close()
            self._connection, self.ready, self.unreachable = None, None, ""
            self._hear()
            self._lost()

    async def _listen(self, connection: Connection) -> None:
        while message := await connection.receive():
            goes_on = bool(self._silence)
            self._hear()
            if goes_on and self.ready:
                self._watch.ready(self.ready)
            match message:
                case Chunk(id=id):
                    self._served = True
                    if answer := self._answers.get(id):
                        answer.chunks.put_nowait(message)
                case Done(id=id):
                    self._backoff = FIRST_BACKOFF_S
                    self.completed += message.generated > 0
                    if answer := self._answers.pop(id, None):
                        answer.chunks.put_nowait(message)
                case Error(id=int(id)):
                    if answer := self._answers.pop(id, None):
                        passing = message.code == "server"
                        answer.chunks.put_nowait(EngineFailed(message.text, passing=passing))
                case Error(code="load"):
                    self._load_error = message.text
                case Error(code="stopping"):
                    self._stopped = True
                case Error():
                    log.warning("the engine daemon answered: %s", message.text)
                case Loading():
                    self._watch.loading(message.text, message.fraction)
                case Ready():
                    self.ready = message
                    self._watch.ready(message)
                case Reach():
                    self.unreachable = "" if message.ok else message.text
                    self._watch.reach(message)
                    if self._waits_for_server:
                        self._give_up_all()
                case Status():
                    for waiting in self._waiting_for_status:
                        if not waiting.done():
                            waiting.set_result(message)
                    self._waiting_for_status.clear()

    @property
    def _waits_for_server(self) -> bool:
        """Whether the daemon has never seen the server that computes: it keeps jobs until it has, which may
        be never. (Later it says itself, at once, that the server cannot be reached.)"""
        return bool(self.unreachable) and self.ready is None

    def _give_up_all(self) -> None:
        answers, self._answers = self._answers, {}
        for id, answer in answers.items():
            self._send(Cancel(id=id))
            answer.chunks.put_nowait(EngineFailed(self.unreachable, passing=True))

    def _lost(self) -> None:
        """The daemon has gone: say so, unless that was meant, and bring it back if it had worked."""
        if self._closed:
            self._fail_all("The engine daemon has left.")
        elif self._stopped and not self._load_error:
            # Somebody stopped it, or nobody had used it: the next request starts another.
            self._fail_all("The engine daemon was stopped; the next request starts it again.")
        else:
            self._failed(self._load_error or "The engine daemon stopped; it is started again.")
            if self._served and not self._load_error:
                self._not_before = 0.0
                self.warm_up()

    def _failed(self, text: str) -> None:
        self._trouble = text
        self._not_before = asyncio.get_running_loop().time() + self._backoff
        self._backoff = min(2 * self._backoff, LAST_BACKOFF_S)
        log.warning("%s", text)
        self._fail_all(text, told=True)
        self._watch.failed(text)

    def _hear(self) -> None:
        """The daemon lives, or there is none any more."""
        self._owes, self._unheard, self._silence = False, 0, ""
        if self._next_look and not self._answers and not self._waiting_for_status:
            self._next_look.cancel()
            self._next_look = None

    def _look(self) -> None:
        """Has it said anything since the last look?"""
        self._next_look = None
        connection = self._connection
        if not connection or not (self._owes or self._answers or self._waiting_for_status):
            return
        self._unheard += 1
        if self._unheard > (SILENT_LOOKS if self.ready else SILENT_LOOKS_LOADING):
            self._silence = (
                f"The engine daemon (process {connection.welcome.pid}) does not answer. Completions go "
                "on when it does; if that lasts, end that process, and another one is started."
            )
            log.warning("%s", self._silence)
            for id in self._answers:  # should it go on, nobody waits for these
                connection.send(Cancel(id=id))
            self._fail_all(self._silence, told=True)
            self._watch.failed(self._silence)
            return
        if self._unheard == 1:
            connection.send(Ping())
        self._look_later()

    def _look_later(self) -> None:
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _fail_all(self, text: str, *, told: bool = False) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.chunks.put_nowait(EngineFailed(text, told=told))
        waiting, self._waiting_for_status = self._waiting_for_status, []
        for future in waiting:
            if not future.done():
                future.set_exception(EngineFailed(text, told=told))

    def _send(self, message: Message) -> None:
        assert self._connection is not None
        if self._silence:
            return
        self._owes = True
        self._look_later()
        try:
            self._connection.send(message)
        except MessageError as error:
            raise EngineFailed(str(error)) from error


def _cannot_start(error: OSError) -> str:
    if error.strerror is None:  # a sentence of our own
        return str(error)
    if error.filename is None or error.errno in shortage.DESCRIPTORS:
        return f"The engine daemon cannot be started: {error.strerror}."
    full = error.errno in shortage.DISK
    return (
        f"The engine daemon cannot be started: {error.strerror}: {error.filename}. "
        f"{'Make room there, or name' if full else 'Name'} another folder in COMPLETION_LS_RUNTIME_DIR."
    )
