"""Long use: hours of typing without the pauses, many keystrokes, many documents, a large file."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable

from completion_ls.bench.editor import Editor, EditorError
from completion_ls.bench.trace import read_trace, recorded_gaps
from completion_ls.config.sources import resolve_strict
from completion_ls.daemon.statistics import percentile
from completion_ls.wire.client import EngineClient
from completion_ls.wire.connection import NoDaemon
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.stop import stop_daemon
from soak.memory import Memory, resident, traced, tracing
from soak.outcome import Outcome
from soak.typists import LONGEST_GAP_S, RECORDED, Typist

FASTEST = 1e9
HANG_S = 2.0
SAMPLES = 60
MOST_WAITING = 100
"""So many keys are typed before the front must have taken them."""
KV_MEMORY = "COMPLETION_LS_ENGINE__KV_MEMORY_MB"
"""Small where memory is looked at: until the KV cache is full, memory grows."""


@contextlib.asynccontextmanager
async def daemon() -> AsyncIterator[EngineClient]:
    """The daemon that the fronts use."""
    engine = EngineClient(DaemonConfig.of(resolve_strict()))
    try:
        yield engine
    finally:
        await engine.close()


async def hours(wanted: float, say: Callable[[str], None]) -> Outcome:
    """So many hours of typing, as recorded but without the pauses: each key waits for its first text."""
    trace = read_trace(RECORDED)
    keys_an_hour = 3600 * len(trace.times) / sum(recorded_gaps(trace.times, most_s=LONGEST_GAP_S))
    keys = round(wanted * keys_an_hour)
    return await _typed(
        f"{wanted:g} hours of typing", keys, Typist.at(3, start=20, pace=FASTEST, patient=True), say
    )


async def keystrokes(keys: int, say: Callable[[str], None]) -> Outcome:
    """So many keystrokes as fast as the front takes them: each request is cancelled by the next."""
    return await _typed(f"{keys} keystrokes", keys, Typist.at(4, start=20, pace=FASTEST), say)


async def traced_keys(keys: int, say: Callable[[str], None]) -> Outcome:
    """So many keystrokes in processes of their own whose allocations are counted one by one, which
    makes them slow."""
    typist = Typist.at(5, start=20, pace=FASTEST, patient=True)
    endpoint = Endpoint.of(DaemonConfig.of(resolve_strict()))
    with contextlib.suppress(NoDaemon):
        await stop_daemon(endpoint)  # the next one is traced
    with tracing():
        found = await _typed(f"{keys} keystrokes, traced", keys, typist, say, traced)
        await stop_daemon(endpoint)
    return found


async def _typed(
    name: str,
    keys: int,
    typist: Typist,
    say: Callable[[str], None],
    read: Callable[[int], int] = resident,
) -> Outcome:
    part = min(MOST_WAITING, max(1, keys // SAMPLES))
    began, slowest, typed = time.perf_counter(), 0.0, 0
    problems: list[str] = []
    async with daemon() as engine:
        await typist.begin()
        status = (await engine.status()).figures
        memory = Memory({"front": typist.editor.pid, "daemon": status["pid"]}, read)
        while typed < keys:
            try:
                await typist.type(keys=min(part, keys - typed))
            except EditorError as error:
                problems.append(f"{error} That was after {typed} keys or more.")
                break
            typed += min(part, keys - typed)
            slowest = max(slowest, await answers(typist.editor))
            memory.sample()
            say(f"{typed} of {keys} keys")
        seconds = time.perf_counter() - began
        figures = (await engine.status()).figures
        await typist.stop()
        active = await settled(engine)
    problems += [*memory.problems(), *sorted(set(typist.errors)), *typist.editor.messages]
    problems += hung_or_left(slowest, active)
    return Outcome(
        name,
        keys,
        tuple(problems),
        slowest,
        (
            ("keys a second", f"{keys / seconds:.1f}"),
            ("keys with text", f"{typist.with_text}"),
            *(
                []
                if not typist.patient
                else [("first text p95", f"{1e3 * percentile(typist.waits_s, 95):.1f} ms")]
            ),
            (
                "engine seconds",
                f"{figures['engine_seconds'] - status.get('engine_seconds', 0.0):.0f}",
            ),
            *memory.figures(),
        ),
    )


async def documents(count: int, say: Callable[[str], None]) -> Outcome:
    """So many documents are opened, asked in, changed and closed in one window."""
    os.environ[KV_MEMORY] = "16"
    editor = Editor("file:///soak/first.py", "python", "value = 1\n")
    slowest = 0.0
    async with daemon() as engine:
        await editor.start()
        status = (await engine.status()).figures
        memory = Memory({"front": editor.pid, "daemon": status["pid"]})
        for number in range(count):
            uri = f"file:///soak/{number}.py"
            text = f"def number_{number}(value):\n    return value + {number}\n" * 20
            document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
            editor.notify("textDocument/didOpen", {"textDocument": document})
            where = {"textDocument": {"uri": uri}, "position": {"line": 2 * 20, "character": 0}}
            params = {**where, "context": {"triggerKind": 2}}
            asked = asyncio.ensure_future(editor.call("textDocument/inlineCompletion", params))
            await asyncio.sleep(0)  # it is written
            start = {"line": 0, "character": 0}
            change = {"range": {"start": start, "end": start}, "text": "# changed\n"}
            editor.notify(
                "textDocument/didChange",
                {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [change]},
            )
            if number % 100 == 0:
                slowest = max(slowest, await answers(editor))
                memory.sample()
                say(f"{number} of {count} documents")
            editor.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
            with contextlib.suppress(EditorError):  # the change has ended it
                await asked
        memory.sample()
        await editor.stop()
        active = await settled(engine)
    problems = [*memory.problems(), *editor.messages, *hung_or_left(slowest, active)]
    return Outcome(f"{count} documents", count, tuple(problems), slowest, tuple(memory.figures()))


async def large_file(size: int, keys: int, say: Callable[[str], None]) -> Outcome:
    """A file of so many bytes is opened and typed in, at its start, its middle and its end."""
    lines = (
        f"    row_{n} = compute(row_{n - 1}, {n})  # {n * 7919 % 1000}\n" for n in itertools.count()
    )
    text, wanted = "def table():\n", []
    while size > 0:
        wanted.append(next(lines))
        size -= len(wanted[-1])
    text += "".join(wanted)
    os.environ[KV_MEMORY] = "256"
    editor = Editor("file:///soak/large.py", "python", text)
    slowest, shown = 0.0, 0
    async with daemon() as engine:
        await editor.start()
        slowest = max(slowest, await answers(editor))
        status = (await engine.status()).figures
        memory = Memory({"front": editor.pid, "daemon": status["pid"]})
        for place in (len("def table():\n"), text.index("\n", len(text) // 2) + 1, len(text)):
            say(f"typing at character {place}")
            cursor = place
            for key in ("    total = sum(row_" * (keys // 20 + 1))[: keys // 3]:
                cursor = editor.edit(cursor, 0, key)
                request = editor.ask(cursor)
                with contextlib.suppress(EditorError):
                    await editor.first(request)
                shown += bool(request.text)
                editor.cancel(request)
            slowest = max(slowest, await answers(editor))
            memory.sample()
        await editor.stop()
        active = await settled(engine)
    problems = [*hung_or_left(slowest, active), *editor.messages]
    name = f"a file of {len(text) / 1e6:.1f} MB"
    figures = [("keys with text", f"{shown} of {keys // 3 * 3}"), *memory.figures()]
    return Outcome(name, keys // 3 * 3, tuple(problems), slowest, tuple(figures))


def hung_or_left(slowest: float, active: int) -> list[str]:
    """What is wrong, from the seconds of the slowest answer and the jobs that are there in the end."""
    found = []
    if slowest > HANG_S:
        found.append(f"The front did not answer for {slowest:.1f} s.")
    if active:
        found.append(f"{active} jobs are left without a front.")
    return found


async def answers(editor: Editor) -> float:
    """Seconds until the front answers what needs no engine."""
    began = time.perf_counter()
    with contextlib.suppress(EditorError):
        await editor.call("soak/areYouThere", None)  # refused, since there is no such method
    return time.perf_counter() - began


async def settled(engine: EngineClient) -> int:
    """Jobs that are still there a moment after all fronts have gone."""
    for _ in range(50):
        active = int((await engine.status()).figures["jobs_active"])
        if not active:
            break
        await asyncio.sleep(0.1)
    return active
