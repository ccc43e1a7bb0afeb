"""The daemon's event loop: listens, checks who comes, and carries messages to and from the worker."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import psutil
from filelock import FileLock, Timeout

from completion_ls import __version__
from completion_ls.config import shortage
from completion_ls.daemon.worker import EngineBroken, LoadFailed, Outgoing, Published, Worker
from completion_ls.wire import codec
from completion_ls.wire.connection import HELLO_TIMEOUT_S
from completion_ls.wire.endpoint import LOOPBACK, DaemonConfig, Endpoint
from completion_ls.wire.messages import (
    PROTOCOL,
    AnsweredWithoutPass,
    CameIntoView,
    Cancel,
    Complete,
    Done,
    Error,
    GetStatus,
    Hello,
    Loading,
    Message,
    Ping,
    Pong,
    Promote,
    Reach,
    Ready,
    Status,
    Stop,
    Welcome,
)
from completion_ls.wire.peer import is_other_user

if TYPE_CHECKING:
    from completion_ls.daemon.metrics import Metrics

log = logging.getLogger(__name__)

FIGURES_TIMEOUT_S = 5.0
LEAVING_S = 5.0
START_GRACE_S = 10.0
ENDPOINT_CHECK_S = 3.0
ENGINE_CHECK_S = 1.0
MAX_UNREAD = 4 * 1024 * 1024
"""A peer that leaves this many bytes unread is cut off: it must not fill our memory."""
MAX_PEERS = 128
"""Most fronts at once; besides, as many connections may be about to say hello: for another one, that
which came first is closed, so that those who say nothing keep nobody out."""
MAX_JOBS = 128
"""Most jobs of one front at once: it has a few, and cancels those that it does not want any more."""
MAX_JOB_BYTES = 64 * 1024 * 1024
"""Most bytes of their messages."""
TOO_MUCH = (
    f"This front has {MAX_JOBS} jobs or {MAX_JOB_BYTES >> 20} MiB of text under way; cancel some."
)
MAX_BACKLOG = 10_000
"""While more waits for the engine's thread than this, no more is read from a front."""
BACKLOG_CHECK_S = 0.05
NO_DESCRIPTORS_S = 60.0
"""It is said so often that there are none."""


class AlreadyRunning(Exception):
    """Another daemon holds this endpoint."""


class Peer:
    """One connected front."""

    def __init__(self, id: int, writer: asyncio.StreamWriter) -> None:
        self.id = id
        self.only_looks = False
        """Whether all that it asked for is the status."""
        self._jobs: dict[int, int] = {}
        """Under way: the bytes of each one's message."""
        self._writer = writer

    def send(self, message: Message) -> None:
        """Queue a message, or hang up: on a peer that does not read, and where there is no memory for
        it, since a text must not have a hole, nor a job no end."""
        if self._writer.is_closing():
            return
        try:
            self._writer.write(codec.encode(message))
        except MemoryError:
            log.error("no memory for a message to peer %d; it is cut off", self.id)
            self._writer.transport.abort()
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD:
            log.warning("peer %d does not read its messages; it is cut off", self.id)
            self._writer.transport.abort()

    def take(self, job: int, size: int) -> Error | None:
        """Count a job as under way; or say why it is not taken."""
        if job in self._jobs:
            text = f"The id {job} is that of a job that is still running."
            return Error(code="job", text=text)  # no id: that one goes on
        if len(self._jobs) >= MAX_JOBS or sum(self._jobs.values()) + size > MAX_JOB_BYTES:
            return Error(id=job, code="busy", text=TOO_MUCH)
        self._jobs[job] = size
        return None

    def has_ended(self, job: int) -> None:
        """A job is done, failed or cancelled."""
        self._jobs.pop(job, None)

    async def hang_up(self) -> None:
        """Close after what was queued is sent."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError, MemoryError):  # what it was closed for
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)


class Daemon:
    """Serves one endpoint until it is told to stop or nobody has been there for a while."""

    def __init__(self, config: DaemonConfig, endpoint: Endpoint) -> None:
        self._config = config
        self._endpoint = endpoint
        self._token: str | None = None
        self._stopping = asyncio.Event()
        self._peers: dict[Hashable, Peer] = {}
        self._ids = itertools.count(1)
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Who has not said hello, in the order of their arrival."""
        self._state: Loading | Ready = Loading(text="Starting", fraction=0.0)
        self._reach = Reach(ok=True)
        self._failure = ""
        self._metrics: Metrics | None = None
        self._no_metrics = ""
        """Why there are none, though a port is named."""
        self._started = time.monotonic()
        self._memory_bytes = 0
        self._no_descriptors_at = float("-inf")

    @property
    def failure(self) -> str:
        """Why the model could not be loaded, or the engine failed; empty where neither is so."""
        return self._failure

    async def run(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Serve; `say` hears when that begins. Raises AlreadyRunning where another daemon has the
        endpoint, and OSError."""
        life = FileLock(self._endpoint.life_lock)
        try:
            # One that is leaving holds it for a moment longer.
            life.acquire(timeout=LEAVING_S)
        except Timeout:
            raise AlreadyRunning(f"A daemon already serves {self._endpoint.name}.") from None
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unforeseen)
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):
                self._loop.add_signal_handler(number, self._stopping.set)
        self._lock_inode = self._endpoint.life_lock.stat().st_ino
        self._endpoint.remove()  # left behind by a daemon that was killed
        self._idle_timer: asyncio.TimerHandle | None = None
        self._worker = Worker(self._config, self._publish)
        self._server = await self._listen()
        say(f"Serving {self._endpoint.name}; Ctrl-C stops it.")
        tasks = [
            asyncio.create_task(watch()) for watch in (self._watch_endpoint, self._watch_engine)
        ]
        if port := self._config.daemon.metrics_port:
            tasks.append(asyncio.create_task(self._serve_metrics(port)))
        try:
            self._worker.start()
            # Whoever started us needs a moment to connect.
            self._stay(at_least_s=START_GRACE_S)
            self._watch_idleness()
            await self._stopping.wait()
        finally:
            for task in tasks:
                task.cancel()
            if self._is_ours():
                self._endpoint.remove()
            self._server.close()
            self._worker.close()
            for stranger in self._strangers:
                stranger.close()
            for peer in self._peers.values():
                peer.send(Error(code="stopping", text="The daemon is leaving."))
            await asyncio.gather(*(peer.hang_up() for peer in self._peers.values()))
            # Loading cannot be interrupted; the thread is a daemon thread and dies with us.
            await asyncio.to_thread(self._worker.join, 1.0)
            if self._metrics:
                await asyncio.to_thread(self._metrics.close)  # the next daemon wants the port
            life.release()
        log.info("left")

    async def _listen(self) -> asyncio.Server:
        self._endpoint.check()
        if self._endpoint.uses_unix(self._config.daemon.transport):
            mask = os.umask(0o177)
            try:
                return await asyncio.start_unix_server(self._serve, self._endpoint.socket_file)
            finally:
                os.umask(mask)
        server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        try:
            address = self._endpoint.write_tcp(server.sockets[0].getsockname()[1])
        except OSError:  # nobody could find it, and each new attempt would leave one more
            server.close()
            raise
        self._token = address.token
        return server

    async def _watch_endpoint(self) -> None:
        """Listen again when somebody removed our socket; leave when the whole folder has gone, since
        another daemon cannot see our lock any more."""
        while True:
            await asyncio.sleep(ENDPOINT_CHECK_S)
            if not self._is_ours():
                log.warning("the folder %s was removed; leaving", self._endpoint.folder)
                self._stopping.set()
                return
            if not self._endpoint.socket_file.exists() and not self._endpoint.tcp_file.exists():
                log.warning("the socket was removed; listening again")
                self._server.close()
                try:
                    self._server = await self._listen()
                except PermissionError as error:
                    log.warning("%s", error)
                    self._stopping.set()
                    return
                except OSError as error:  # a full disk, perhaps only for a while
                    log.error("cannot listen again yet: %s", error.strerror or error)

    async def _watch_engine(self) -> None:
        """Leave when the engine's thread has ended and could not say so: jobs would wait for ever."""
        while self._worker.is_alive():
            await asyncio.sleep(ENGINE_CHECK_S)
        await asyncio.sleep(ENGINE_CHECK_S)  # what it said last may be on its way
        if not self._failure:
            log.error("the engine's thread has ended")
            self._deliver(EngineBroken("The engine ended. The next request starts it again."))

    def _unforeseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody catches is logged. While no descriptors are left, asyncio tries to take a new
        connection a hundred times a second, which would fill the disk."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in shortage.DESCRIPTORS:
            loop.default_exception_handler(context)
        elif loop.time() - self._no_descriptors_at > NO_DESCRIPTORS_S:
            self._no_descriptors_at = loop.time()
            log.error("nobody new can connect: %s (`ulimit -n`)", error.strerror)

    def _is_ours(self) -> bool:
        """Whether the lock that others see is the one that we hold."""
        try:
            return self._endpoint.life_lock.stat().st_ino == self._lock_inode
        except FileNotFoundError:
            return False

    def _stay(self, at_least_s: float = 0.0) -> None:
        """Somebody has been there now."""
        self._stays_until = self._loop.time() + max(at_least_s, self._config.daemon.idle_exit_s)

    def _watch_idleness(self) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._peers and self._config.daemon.idle_exit_s:
            self._idle_timer = self._loop.call_at(self._stays_until, self._stopping.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_other_user(writer):
            writer.close()
            return
        if len(self._strangers) >= MAX_PEERS:
            first_come = next(iter(self._strangers))
            del self._strangers[first_come]
            first_come.transport.abort()
        peer = Peer(next(self._ids), writer)
        self._strangers[writer] = None
        try:
            if await self._welcome(peer, reader):
                self._strangers.pop(writer, None)
                self._peers[peer.id] = peer
                self._watch_idleness()
                if not self._reach.ok:  # before anything that sounds as if all were well
                    peer.send(self._reach)
                peer.send(Error(code="load", text=self._failure) if self._failure else self._state)
                await self._listen_to(peer, reader)
        except codec.FrameError as error:
            peer.send(Error(code="bad_frame", text=str(error)))
        except OSError:
            pass  # the peer has gone
        except MemoryError:
            log.error("no memory for what peer %d says; it is cut off", peer.id)
        finally:
            self._strangers.pop(writer, None)
            if self._peers.pop(peer.id, None):
                self._worker.cancel_all(peer.id)
                if not peer.only_looks:  # `status --watch` keeps no model in memory
                    self._stay()
                self._watch_idleness()
            await peer.hang_up()

    async def _welcome(self, peer: Peer, reader: asyncio.StreamReader) -> bool:
        try:
            body = await asyncio.wait_for(codec.read_body(reader), HELLO_TIMEOUT_S)
            hello = None if body is None else codec.decode(body, codec.front_messages)
        except TimeoutError:
            return False
        except codec.MessageError as error:
            peer.send(Error(code="bad_message", text=str(error)))
            return False
        if self._stopping.is_set():
            # Nobody would answer it, nor end us: before Python 3.12 `wait_for` forgets that it was
            # cancelled where the hello comes at that moment.
            return False
        if not isinstance(hello, Hello):
            peer.send(Error(code="protocol", text="The first message must be hello."))
        elif hello.protocol != PROTOCOL:
            text = (
                f"This daemon (completion-ls {__version__}) speaks protocol {PROTOCOL}, the other "
                f"side (completion-ls {hello.version}) {hello.protocol}. Restart the older one."
            )
            peer.send(Error(code="protocol", text=text))
        elif self._token is not None and not hmac.compare_digest(
            self._token.encode(), hello.token.encode("utf-8", "surrogatepass")
        ):
            peer.send(Error(code="token", text="The token is wrong."))
        elif len(self._peers) >= MAX_PEERS:
            text = f"This daemon has {MAX_PEERS} connections already; close some windows."
            peer.send(Error(code="busy", text=text))
        else:
            peer.send(Welcome(protocol=PROTOCOL, version=__version__, pid=os.getpid()))
            return True
        return False

    async def _listen_to(self, peer: Peer, reader: asyncio.StreamReader) -> None:
        is_first = True
        while (body := await codec.read_body(reader)) is not None:
            try:
                message = codec.decode(body, codec.front_messages)
                peer.only_looks = isinstance(message, GetStatus) and (is_first or peer.only_looks)
                is_first = False
            except codec.MessageError as error:
                code = "unknown_message" if error.unknown_type else "bad_message"
                peer.send(Error(id=error.id, code=code, text=str(error)))  # type: ignore[arg-type]
                continue
            match message:
                case Complete(id=id):
                    if refusal := peer.take(id, len(body)):
                        peer.send(refusal)
                    else:
                        self._worker.submit(peer.id, message)
                case Cancel():
                    peer.has_ended(message.id)
                    self._worker.cancel(peer.id, message.id, complete=message.complete)
                case Promote():
                    self._worker.promote(peer.id, message.id)
                case CameIntoView():
                    self._worker.came_into_view(peer.id)
                case AnsweredWithoutPass():
                    self._worker.answered_without_pass(peer.id)
                case GetStatus():
                    self._ask_for_figures(lambda figures: peer.send(Status(figures=figures)))
                case Ping():
                    peer.send(Pong())
                case Stop(if_alone=if_alone):
                    if not (if_alone and self._fronts(without=peer)):
                        self._stopping.set()
                case Hello():
                    peer.send(Error(code="bad_message", text="There was a hello already."))
            while self._worker.backlog > MAX_BACKLOG:
                await asyncio.sleep(BACKLOG_CHECK_S)

    def _ask_for_figures(self, answer: Callable[[dict[str, Any]], None]) -> None:
        """Have `answer` called with what there is to say of the daemon and the engine."""
        figures = self._own_figures()
        if isinstance(self._state, Loading):
            answer(figures | {"loading": self._state.text})
            return

        def with_engine(of_engine: dict[str, Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving
                self._loop.call_soon_threadsafe(answer, figures | of_engine)

        self._worker.snapshot(with_engine)

    async def _serve_metrics(self, port: int) -> None:
        try:
            # It is imported there, too, which takes a moment.
            self._metrics = await asyncio.to_thread(self._start_metrics, port)
        except ImportError:
            self._no_metrics = (
                f"daemon.metrics_port is {port}, but prometheus-client is not installed, so there are "
                "no metrics. `pip install prometheus-client` installs it; 0 turns metrics off."
            )
        except OSError as error:
            self._no_metrics = (
                f"daemon.metrics_port: port {port} cannot be had ({error.strerror or error}), so this "
                "daemon has no metrics. Another daemon may have it: give one of them another port."
            )
        if self._no_metrics:
            log.warning("%s", self._no_metrics)

    def _start_metrics(self, port: int) -> Metrics:
        from completion_ls.daemon.metrics import Metrics

        return Metrics(port, self._figures_for_a_thread)

    def _figures_for_a_thread(self) -> dict[str, Any]:
        """The figures; to be called on neither the loop's thread nor the engine's. Raises TimeoutError."""
        found = Future[dict[str, Any]]()
        self._loop.call_soon_threadsafe(self._ask_for_figures, found.set_result)
        return found.result(FIGURES_TIMEOUT_S)

    def _own_figures(self) -> dict[str, Any]:
        # Without a descriptor for it, it is what it was.
        with contextlib.suppress(OSError, psutil.Error):
            self._memory_bytes = psutil.Process().memory_info().rss
        return {
            "version": __version__,
            "pid": os.getpid(),
            "endpoint": self._endpoint.name,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "fronts": self._fronts(),
            "memory_bytes": self._memory_bytes,
            **self._metrics_figures(),
        }

    def _fronts(self, without: Peer | None = None) -> int:
        """How many are there that do not only look."""
        return sum(not peer.only_looks for peer in self._peers.values() if peer is not without)

    def _metrics_figures(self) -> dict[str, Any]:
        """Where metrics are served, or why not; neither where no port is named, or not yet."""
        port = self._config.daemon.metrics_port
        if self._metrics:
            return {"metrics_port": port, "metrics_url": f"http://{LOOPBACK}:{port}/metrics"}
        if self._no_metrics:
            return {"metrics_port": port, "metrics_failure": self._no_metrics}
        return {"metrics_port": port}

    def _publish(self, published: Published) -> None:
        """Called on the engine thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving
            self._loop.call_soon_threadsafe(self._deliver, published)

    def _deliver(self, published: Published) -> None:
        match published:
            case Outgoing(peer=None, message=message):
                if isinstance(message, Loading | Ready):
                    self._state = message
                elif isinstance(message, Reach):
                    self._reach = message
                for peer in self._peers.values():
                    peer.send(message)
            case Outgoing(peer=id, message=message):
                if (receiver := self._peers.get(id)) is not None:
                    if isinstance(message, Done | Error) and message.id is not None:
                        receiver.has_ended(message.id)
                    receiver.send(message)
            case LoadFailed(text=text) | EngineBroken(text=text):
                self._failure = text
                for peer in self._peers.values():
                    peer.send(Error(code="load", text=text))
                # Whoever started us is about to connect; let them hear it before we leave.
                self._loop.call_later(1.0, self._stopping.set)
