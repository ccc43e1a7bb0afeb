"""Faults in the real processes, one function each, and the trial of one or of many.

Orders (files that `injected/sitecustomize.py` looks for in the processes): `hold` keeps the engine at a
place, `fail_step`, `fail_decode` and `break_engine` raise in a step and outside of it, `wall_clock` moves
the clock, `version`, `protocol` and `said_protocol` make what starts from now on another version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from completion_ls.engines import weight_cache
from completion_ls.lsp import counts
from completion_ls.wire import client, codec
from completion_ls.wire.messages import PROTOCOL, Complete, Hello
from completion_ls.wire.stop import stop_daemon
from soak import after
from soak.front import Front
from soak.outcome import Outcome
from soak.stand import NO_ANSWER_S, Failed, Stand, kill

SILENT_S = client.LOOK_S * (client.SILENT_LOOKS + 1)
STOPPED_S = 30.0
GROWTH = 40 * 2**20
"""More memory than a front may take for what nobody reads."""
NO_FILES = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh")
"""Runs a program that can write nothing into files, as on a full disk."""

Injection = Callable[[Stand, float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. `inject` gets the stand and how long a stopped process stays so; `messages` are the most
    that the user is told."""

    name: str
    inject: Injection
    messages: int = 1


FAULTS: list[Fault] = []


def fault(*, messages: int = 1) -> Callable[[Injection], Injection]:
    """Among FAULTS, by its function's name."""

    def add(inject: Injection) -> Injection:
        name = inject.__name__.replace("_", " ")  # type: ignore[attr-defined]
        FAULTS.append(Fault(name, inject, messages))
        return inject

    return add


async def trial(stand: Stand, one: Fault, stopped_s: float = STOPPED_S) -> Outcome:
    """Inject a fault and look at what holds afterwards."""
    for front in stand.fronts:
        front.heard.earlier += front.heard.messages
        front.heard.messages.clear()
        front.waits.longest_s = 0.0
    stand.yardstick_s = 0.0
    found: list[str] = []
    try:
        await one.inject(stand, stopped_s)
    except (Failed, OSError, psutil.Error) as failure:
        found.append(str(failure) or type(failure).__name__)
    for file in stand.orders.iterdir():
        file.unlink()
    found += await after.problems(stand, one.messages)
    slowest_s = max(front.waits.now_s for front in stand.fronts)
    said = tuple(("told", text) for front in stand.fronts for text in front.heard.messages)
    return Outcome(one.name, 1, tuple(found), slowest_s, said)


async def run(rounds: int, seed: int, say: Callable[[str], None]) -> list[Outcome]:
    """Every kind of fault, so many times, in random orders on one stand (another where one was left
    broken). Failed checks are in the outcomes; `say` hears how far it is."""
    order = random.Random(seed)
    outcomes = {one.name: Outcome(one.name, 0) for one in FAULTS}
    stand: Stand | None = None
    try:
        for number in range(rounds):
            for one in order.sample(FAULTS, len(FAULTS)):
                try:
                    if stand is None:
                        stand = Stand()
                        await stand.start()
                    found = await trial(stand, one)
                except Exception as error:
                    found = Outcome(one.name, 1, (f"The trial failed: {error!r}.",))
                outcomes[one.name] = _together(outcomes[one.name], found)
                state = "; ".join(found.problems) or "ok"
                say(f"faults, round {number + 1} of {rounds}: {one.name}: {state}")
                if found.problems and stand is not None:
                    await stand.close()
                    stand = None
    finally:
        if stand is not None:
            await stand.close()
    return list(outcomes.values())


def _together(one: Outcome, other: Outcome) -> Outcome:
    waits = [found.slowest_s for found in (one, other) if found.slowest_s is not None]
    return Outcome(
        one.name,
        one.tried + other.tried,
        (*one.problems, *other.problems),
        max(waits, default=None),
        tuple(dict.fromkeys((*one.figures, *other.figures))),
    )


async def cancellable(stand: Stand) -> None:
    """A completion that is asked for now has an answer in time once it is cancelled. Raises Failed."""
    stand.type()
    id, answer = stand.front.ask()
    await asyncio.sleep(0.05)
    stand.front.cancel(id)
    limit_s = after.LIMIT_S + 10 * stand.yardstick_s
    try:
        await asyncio.wait_for(answer, limit_s)
    except TimeoutError:
        raise Failed(f"A cancelled completion had no answer in {limit_s:.1f} s.") from None


# Killed


@fault()
async def daemon_killed_while_idle(stand: Stand, _: float) -> None:
    kill(await stand.daemon())


@fault()
async def daemon_killed_in_a_prefill(stand: Stand, _: float) -> None:
    kill(await stand.held("prefill"))


@fault()
async def daemon_killed_in_a_decode(stand: Stand, _: float) -> None:
    kill(await stand.held("decode"))


@fault()
async def daemon_killed_while_loading(stand: Stand, _: float) -> None:
    await _stop(stand)
    stand.type()
    stand.front.ask()
    pid = await stand.held("load")
    await cancellable(stand)
    kill(pid)
    await stand.until(lambda: stand.front.heard.messages, "the user hears that the daemon died")


@fault(messages=0)
async def front_killed_in_a_decode(stand: Stand, _: float) -> None:
    await stand.held("decode")
    kill(stand.front.pid)
    stand.recall("hold")
    await stand.new_front()


@fault(messages=0)
async def front_and_daemon_killed(stand: Stand, _: float) -> None:
    for process in (await stand.daemon(), stand.front.pid):
        kill(process)
    await stand.new_front()


@fault(messages=0)
async def editor_killed(stand: Stand, _: float) -> None:
    """It has the front's pipes, and they are closed when it dies."""
    front = await _front_of_an_editor(stand)
    assert front.process.stdin
    front.process.stdin.close()
    await _leaves(stand, front)


@fault(messages=0)
async def editor_killed_whose_pipes_stay_open(stand: Stand, _: float) -> None:
    """Some other child of it has them, too."""
    await _leaves(stand, await _front_of_an_editor(stand))


# Silent


@fault()
async def daemon_stopped_by_a_signal(stand: Stand, stopped_s: float) -> None:
    await stand.text()
    daemon, front = await stand.daemon(), psutil.Process(stand.front.pid)
    kill(daemon, signal.SIGSTOP)
    try:
        await cancellable(stand)
        stand.type()
        _, waiting = stand.front.ask()
        try:
            await asyncio.wait_for(waiting, SILENT_S + after.LIMIT_S + 10 * stand.yardstick_s)
        except TimeoutError:
            raise Failed("A request at a stopped daemon did not end after a moment.") from None
        if not any("does not answer" in one for one in stand.front.heard.messages):
            raise Failed(f"The user was told {stand.front.heard.messages}.")
        before = front.memory_info().rss
        until = time.monotonic() + stopped_s - SILENT_S
        while time.monotonic() < until:
            for _ in range(20):
                stand.type()
                stand.front.ask()
            await cancellable(stand)
            await asyncio.sleep(0.05)
        if front.memory_info().rss - before > GROWTH:
            raise Failed("A front grows while its daemon is stopped.")
    finally:
        kill(daemon, signal.SIGCONT)
    await stand.text()
    if (await stand.daemon()).pid != daemon.pid:
        raise Failed("A daemon that goes on was replaced.")


@fault()
async def front_comes_while_the_daemon_is_stopped(stand: Stand, _: float) -> None:
    daemon = await stand.daemon()
    kill(stand.front.pid)
    kill(daemon, signal.SIGSTOP)
    try:
        await stand.new_front()
        stand.type()
        _, answer = stand.front.ask()
        await cancellable(stand)
        await stand.until(lambda: stand.front.heard.messages, "the user hears of it")
        if not any("does not answer" in one for one in stand.front.heard.messages):
            raise Failed(f"The user was told {stand.front.heard.messages}.")
        await stand.until(answer.done, "a request without a daemon ends")
    finally:
        kill(daemon, signal.SIGCONT)


@fault(messages=0)
async def front_stopped_by_a_signal(stand: Stand, stopped_s: float) -> None:
    """The other windows do not notice, and what it had asked for is answered when it goes on."""
    stopped = stand.front
    other = await stand.add_front()
    answers = []
    for _ in range(5):
        stand.type()
        answers.append(stopped.ask()[1])
    kill(stopped.pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + stopped_s
        while time.monotonic() < until:
            other.type("value = ")
            await asyncio.wait_for(other.ask()[1], NO_ANSWER_S)
            await asyncio.sleep(0.05)
    finally:
        kill(stopped.pid, signal.SIGCONT)
    await stand.until(lambda: all(one.done() for one in answers), "a front that goes on answers")
    await other.stop()
    stand.fronts.remove(other)
    await stopped.call("completionLs/noSuchMethod", {})  # behind the one that waited for as long
    stopped.waits.longest_s = 0.0


@fault(messages=0)
async def step_that_takes_long(stand: Stand, _: float) -> None:
    """That is no daemon which hangs."""
    await stand.held("decode")
    _, answer = stand.front.ask()
    await cancellable(stand)
    await asyncio.sleep(SILENT_S + client.LOOK_S)
    await cancellable(stand)
    stand.recall("hold")
    await stand.until(answer.done, "a request behind a long step ends")


# Files


@fault(messages=0)
async def socket_removed(stand: Stand, _: float) -> None:
    daemon = await stand.daemon()
    stand.endpoint.socket_file.unlink()
    await stand.text()
    await stand.until(stand.endpoint.socket_file.exists, "the daemon listens again")
    if (await stand.daemon()).pid != daemon.pid:
        raise Failed("A daemon whose socket was removed was replaced.")


@fault(messages=0)
async def window_comes_when_the_socket_was_removed(stand: Stand, _: float) -> None:
    stand.endpoint.socket_file.unlink()
    await _window_comes_and_goes(stand)


@fault(messages=0)
async def runtime_folder_removed(stand: Stand, _: float) -> None:
    daemon = await stand.daemon()
    shutil.rmtree(stand.runtime)
    await stand.text()
    await stand.until(lambda: daemon.pid not in [one.pid for one in stand.daemons()], "it leaves")


@fault()
async def model_cut_off_and_replaced(stand: Stand, _: float) -> None:
    """Whoever runs goes on; who starts then says what is wrong."""
    daemon, model = await stand.daemon(), stand.model / "model.safetensors"
    good = model.read_bytes()
    try:
        for file in (weight_cache._cache_file(stand.model, "int8"), model):
            os.truncate(file, 64)
        for _ in range(4):
            await stand.text()
        model.write_bytes(b"\0" * len(good))
        await stand.text()
        if (await stand.daemon()).pid != daemon.pid:
            raise Failed("A daemon died of a file that was cut off.")
        await _stop(stand)
        stand.type()
        await stand.front.ask()[1]
        said = stand.front.heard.messages
    finally:
        model.write_bytes(good)
    if not said or str(stand.model) not in said[0]:
        raise Failed(f"Of a model that is cut off the user was told {said}.")


@fault(messages=0)
async def no_file_can_be_written(stand: Stand, _: float) -> None:
    """Log, counts, converted weights, compiled kernels, measured speed: all go without."""
    cache = tempfile.mkdtemp(prefix="cls-")
    async with _another(*NO_FILES, COMPLETION_LS_CACHE_DIR=cache) as full:
        await _accept(full)
        await full.text()
        await _clean(full, messages=0)
        written = [
            *full.folder.glob("state/*"),
            *full.folder.glob("log/*"),
            *Path(cache).rglob("*"),
        ]
        if any(one.is_file() and one.stat().st_size for one in written):
            raise Failed(f"Something was written: {written}.")
    shutil.rmtree(cache, ignore_errors=True)


@fault(messages=0)
async def disk_full(stand: Stand, _: float) -> None:
    """The same, where not even a file can be made (left out where nothing can be mounted)."""
    with _full_disk() as place:
        if place is None:
            return
        names = ("CACHE", "LOG", "STATE")
        there = {f"COMPLETION_LS_{name}_DIR": str(place / name) for name in names}
        async with _another(**there) as full:
            await _accept(full)
            await full.text()
            await _clean(full, messages=0)


@fault()
async def runtime_folder_full(stand: Stand, _: float) -> None:
    """Not even a lock can be made there (left out where nothing can be mounted)."""
    with _full_disk() as place:
        if place is None:
            return
        async with _another(text=False, COMPLETION_LS_RUNTIME_DIR=str(place)) as full:
            for _ in range(5):
                full.type()
                await full.front.ask()[1]
            _told(full, "Make room there")
            subprocess.run(["mount", "-o", "remount,nr_inodes=100", str(place)], check=True)
            await _clean(full, messages=1)


# Bytes


@fault(messages=0)
async def half_a_frame_then_silence(stand: Stand, _: float) -> None:
    with _raw(stand) as connection:
        connection.sendall(codec.encode(_a_job(1))[:20])
        await stand.text()
        await stand.text()


@fault(messages=0)
async def half_a_frame_then_the_end(stand: Stand, _: float) -> None:
    with _raw(stand) as connection:
        connection.sendall(codec.encode(_a_job(1)) + codec.encode(_a_job(2))[:20])


@fault(messages=0)
async def four_gigabytes_announced(stand: Stand, _: float) -> None:
    daemon = await stand.daemon()
    before = daemon.memory_info().rss
    with _raw(stand) as connection:
        connection.sendall(b"\xff\xff\xff\xff" + b"x" * 1000)
        await stand.text()
        said = b""
        while part := await asyncio.to_thread(connection.recv, 1 << 16):
            said += part
        if b"bad_frame" not in said:
            raise Failed("A frame of 4 GB was not refused.")
    if daemon.memory_info().rss - before > 64 * 2**20:
        raise Failed("A frame of 4 GB made the daemon grow.")


@fault(messages=0)
async def window_that_reads_a_byte_at_a_time(stand: Stand, _: float) -> None:
    with _raw(stand) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        for id in range(20):
            connection.sendall(codec.encode(_a_job(id)))
        for _ in range(50):
            await asyncio.to_thread(connection.recv, 1)
            await asyncio.sleep(0.01)
        await stand.text()


@fault(messages=0)
async def editor_that_does_not_read(stand: Stand, _: float) -> None:
    front = stand.front
    front.be_deaf()
    answers = [front.send("completionLs/noSuchMethod" + "x" * 200, {})[1] for _ in range(2000)]
    for _ in range(20):
        stand.type()
        answers.append(front.ask()[1])
        await asyncio.sleep(0.05)
    if front.process.returncode is not None:
        raise Failed("A front ended because its editor did not read.")
    front.listen_again()
    await stand.until(lambda: all(one.done() for one in answers), "all requests are answered")


@fault(messages=0)
async def a_hundred_cancels_a_second(stand: Stand, _: float) -> None:
    answers = []
    for _ in range(200):
        stand.type()
        id, answer = stand.front.ask()
        stand.front.cancel(id)
        answers.append(answer)
        await asyncio.sleep(0.01)
    await stand.until(lambda: all(one.done() for one in answers), "all requests are answered")


# Memory and errors


@fault()
async def step_without_memory(stand: Stand, _: float) -> None:
    for what in ("memory", "torch memory", "torch memory"):
        await _failing(stand, "fail_step", what)
    _told(stand, "out of memory", once=True)


@fault()
async def daemon_without_address_space(stand: Stand, _: float) -> None:
    daemon = await stand.daemon()
    before = daemon.rlimit(psutil.RLIMIT_AS)
    daemon.rlimit(psutil.RLIMIT_AS, (daemon.memory_info().vms, resource.RLIM_INFINITY))
    with _raw(stand) as connection, contextlib.suppress(OSError):
        for id in range(100):  # each wants its KV, and there is no room for all
            connection.sendall(codec.encode(_a_job(id).model_copy(update={"max_tokens": 4000})))
        connection.settimeout(2)
        while said := await asyncio.to_thread(connection.recv, 1 << 16):
            if b"out of memory" in said:
                break
    _, answer = stand.front.ask()
    await stand.until(answer.done, "a request of a daemon without memory ends")
    with contextlib.suppress(psutil.Error):  # it may have died of it
        daemon.rlimit(psutil.RLIMIT_AS, before)


@fault(messages=0)
async def daemon_without_descriptors(stand: Stand, _: float) -> None:
    """Nobody new can connect until there are some again; who is there is served."""
    daemon, logs = await stand.daemon(), list((stand.folder / "log").glob("*.log"))
    before = daemon.rlimit(psutil.RLIMIT_NOFILE)
    length = sum(log.stat().st_size for log in logs)
    daemon.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        with _raw(stand):
            for _ in range(20):
                await stand.text()
                await asyncio.sleep(0.1)
    finally:
        daemon.rlimit(psutil.RLIMIT_NOFILE, before)
    if sum(log.stat().st_size for log in logs) - length > 2000:
        raise Failed("A daemon without descriptors fills its log.")
    if (await stand.daemon()).pid != daemon.pid:
        raise Failed("A daemon without descriptors was replaced.")
    await _window_comes_and_goes(stand)


@fault()
async def step_that_raises(stand: Stand, _: float) -> None:
    for name in ("fail_step", "fail_decode"):  # without KV, and with it
        await _failing(stand, name, "an error of one job")
    _told(stand, "could not compute a completion", once=True)


@fault()
async def engine_that_breaks(stand: Stand, _: float) -> None:
    await _failing(stand, "break_engine", "an error outside of a job")
    _told(stand, "The engine failed")


@fault()
async def engine_thread_that_ends(stand: Stand, _: float) -> None:
    await _failing(stand, "break_engine", "end")
    _told(stand, "The engine ended")


# The clock


@fault(messages=0)
async def wall_clock_jumps(stand: Stand, _: float) -> None:
    for jump_s in (86_400.0, -10 * 365 * 86_400.0, 0.0):
        stand.order("wall_clock", str(jump_s))
        await stand.text()
        await cancellable(stand)
        figures = await stand.figures()
        if not 0 <= figures.get("uptime_s", 0.0) < 86_000:
            raise Failed(f"After a jump of the clock the daemon runs for {figures['uptime_s']} s.")


# Versions


@fault(messages=0)
async def two_versions_at_once(stand: Stand, _: float) -> None:
    mine = await stand.daemon()
    stand.order("version", "99.0")
    stand.order("protocol", str(PROTOCOL + 1))
    front = await stand.add_front()
    try:
        front.type("value = ")
        if not (await asyncio.wait_for(front.ask()[1], 60)).text:
            raise Failed(f"A front of another version was told {front.heard.messages}.")
        if len(stand.daemons()) != 2:
            raise Failed(f"Two versions have {len(stand.daemons())} daemons.")
        await stand.text()
    finally:
        await front.stop()
        stand.fronts.remove(front)
        for other in stand.daemons():
            if other.pid != mine.pid:
                kill(other, signal.SIGTERM)


@fault()
async def daemon_that_speaks_another_protocol(stand: Stand, _: float) -> None:
    await _stop(stand)
    stand.order("said_protocol", str(PROTOCOL + 1))
    for _ in range(3):
        stand.type()
        await stand.front.ask()[1]
        await asyncio.sleep(0.3)
    _told(stand, "Restart the older one")
    stand.recall("said_protocol")
    kill(await stand.daemon(), signal.SIGTERM)


# Parts of these


async def _window_comes_and_goes(stand: Stand) -> None:
    """One more, which has its answer."""
    front = await stand.add_front()
    front.type("value = ")
    await asyncio.wait_for(front.ask()[1], NO_ANSWER_S)
    await front.stop()
    stand.fronts.remove(front)


async def _front_of_an_editor(stand: Stand) -> Front:
    """A front whose editor has been killed."""
    front = await stand.add_front("sh", "-c", '"$@"; exit', "sh")
    stand.fronts.remove(front)
    kill(front.pid)
    return front


async def _leaves(stand: Stand, front: Front) -> None:
    try:
        await asyncio.wait_for(front.process.wait(), NO_ANSWER_S)
        await stand.until(lambda: len(stand.processes()) == 2, "the front of a dead editor leaves")
    finally:
        await front.kill()


@contextlib.contextmanager
def _full_disk() -> Iterator[Path | None]:
    """A folder in which nothing can be made; None where nothing can be mounted."""
    place = Path(tempfile.mkdtemp(prefix="cls-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=1,mode=700", "none", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)
        shutil.rmtree(place, ignore_errors=True)


async def _accept(stand: Stand) -> None:
    """Accept a suggestion, which is counted."""
    answer = await stand.text()
    await stand.front.call("workspace/executeCommand", answer.result["items"][0]["command"])
    await asyncio.sleep(counts.WRITE_S + 0.5)  # then its file is due


async def _stop(stand: Stand) -> None:
    """Stop the daemon as its command does."""
    await stop_daemon(stand.endpoint)
    await stand.until(lambda: not stand.daemons(), "a stopped daemon leaves")


async def _failing(stand: Stand, name: str, what: str) -> None:
    """Have a step of what the user asks for fail."""
    stand.order(name, what)
    deadline = time.monotonic() + NO_ANSWER_S
    while (stand.orders / name).exists():  # where nothing is wanted, there is no step
        if time.monotonic() > deadline:
            raise Failed(f"No step has come in {NO_ANSWER_S:.0f} s that could fail.")
        stand.type()
        _, answer = stand.front.ask()
        await stand.until(answer.done, "a request whose step fails ends")


def _told(stand: Stand, text: str, *, once: bool = False) -> None:
    """Raise Failed where the user was not told; `once` in the life of a front is enough."""
    heard = stand.front.heard
    if not any(text in one for one in heard.messages + heard.earlier * once):
        raise Failed(f"The user was told {stand.front.heard.messages}, and not: {text}.")


def _a_job(id: int) -> Complete:
    prefix = f"def number_{id}(value):\n    "
    return Complete(id=id, document="raw", prefix=prefix, suffix="\n", max_tokens=200)


@contextlib.contextmanager
def _raw(stand: Stand) -> Iterator[socket.socket]:
    """A connection without manners, behind its hello."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(stand.endpoint.socket_file))
        connection.sendall(codec.encode(Hello(protocol=PROTOCOL, version="9")))
        yield connection


@contextlib.asynccontextmanager
async def _another(*wrapper: str, text: bool = True, **settings: str) -> AsyncIterator[Stand]:
    """A stand of its own; `text` waits for its first text."""
    stand = Stand(**settings)
    try:
        await stand.start(*wrapper, text=text)
        yield stand
    finally:
        await stand.close()


async def _clean(stand: Stand, messages: int) -> None:
    """Raise Failed where a stand of its own has problems."""
    if found := await after.problems(stand, messages):
        raise Failed(" ".join(found))
