"""One keystroke: the engine daemon is asked as an editor asks it, and must answer with text.

A daemon that was started for this is stopped again, so that the machine is left as it was found: a
model would stay in memory for as long as `daemon.idle_exit_s` otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from completion_ls.config import paths
from completion_ls.doctor.lines import Notes
from completion_ls.wire.client import EngineClient, EngineFailed, Watcher
from completion_ls.wire.connection import Connection, NoDaemon, Refused
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import Complete, Ready
from completion_ls.wire.stop import Stuck, stop_daemon

KEY, SUFFIX = "u", "\n"
"""What is typed, and what stands behind the cursor."""
TOKENS = 16
SILENCE_S = 120.0
"""Without any news of loading or of text for so long, it hangs."""
LONGEST_S = 900.0
END_S = 25.0
STARTING_S = 5.0

T = TypeVar("T")
Progress = Callable[[str, float], None]


@dataclass(slots=True)
class _News:
    """When something was last heard of the daemon, and what."""

    tell: Progress
    last: str = "nothing"
    at: float = field(default_factory=time.monotonic)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It is loaded, or there will be none."""

    def loading(self, text: str, fraction: float) -> None:
        self.last, self.at = text, time.monotonic()
        self.tell(text, fraction)

    def ready(self, ready: Ready) -> None:
        self.last, self.at = f"{ready.model} is loaded", time.monotonic()
        self.settled.set()

    def failed(self, text: str) -> None:
        self.settled.set()  # the next request says why


@dataclass(frozen=True, slots=True)
class _Text:
    """What came of one key."""

    characters: int
    first_s: float
    total_s: float
    tokens: int


class _Silent(Exception):
    """Nothing is heard any more."""


def look(notes: Notes, config: DaemonConfig, progress: Progress) -> dict[str, Any]:
    """Ask, write what came, and give the daemon's figures; none where it failed. For the main
    thread, so that Ctrl-C leaves no daemon behind."""
    return asyncio.run(_look(notes, config, progress))


async def _look(notes: Notes, config: DaemonConfig, progress: Progress) -> dict[str, Any]:
    endpoint = Endpoint.of(config)
    was_running = await _answers(endpoint)
    news = _News(progress)
    client = EngineClient(config, Watcher(news.loading, news.ready, news.failed))
    log = f"The daemon's log is {paths.log_dir() / endpoint.name}.log."
    figures: dict[str, Any] = {}
    failure, interrupted = "", True
    try:
        loading_s, texts = await _heard(_type(client, news), news)
        figures = (await asyncio.wait_for(client.status(), END_S)).figures
        interrupted = False
    except EngineFailed as error:
        failure, interrupted = f"{error} {log}", False
    except (_Silent, TimeoutError):
        failure = (
            f"The engine daemon does not go on; the last that was heard of it: {news.last}. Run "
            f"`completion-ls daemon stop`, then the doctor again. {log}"
        )
    finally:
        alone = figures.get("fronts", 1) == 1
        await client.close()
        after = ""
        if not was_running:
            wait_s = STARTING_S if interrupted else 0.0
            came = " and runs on for the editor that came"
            after = await _stopped(endpoint, wait_s) if alone else came
    if failure:
        notes.failed("first text", failure)
        return {}
    _say(notes, texts, loading_s, was_running=was_running, after=after, log=log)
    return figures


async def _answers(endpoint: Endpoint) -> bool:
    """Whether a daemon runs before we come."""
    with contextlib.suppress(NoDaemon, Refused, TimeoutError):
        (await asyncio.wait_for(Connection.open(endpoint), END_S)).close()
        return True
    return False


async def _heard(work: Coroutine[None, None, T], news: _News) -> T:
    """The result of `work`, as long as there is news. Raises _Silent."""
    task, began = asyncio.create_task(work), time.monotonic()
    try:
        while not task.done():
            await asyncio.wait([task], timeout=0.2)
            now = time.monotonic()
            if now - news.at > SILENCE_S or now - began > LONGEST_S:
                raise _Silent
        return task.result()
    finally:
        task.cancel()


async def _type(client: EngineClient, news: _News) -> tuple[float, list[_Text]]:
    """How long it took until the model was loaded, and what comes where the cursor stands, and after
    one key more."""
    began = time.monotonic()
    client.warm_up()
    await news.settled.wait()
    loading_s = time.monotonic() - began
    prefix = a_prefix()
    return loading_s, [await _press(client, news, text) for text in (prefix, prefix + KEY)]


def a_prefix() -> str:
    """What stands before the cursor: new each time, as a daemon has the KV of what it was asked before."""
    number = secrets.randbelow(10**6)
    return f"def add(a{number}, b{number}):\n    ret"


async def _press(client: EngineClient, news: _News, prefix: str) -> _Text:
    began = time.perf_counter()
    answer = await client.complete(
        Complete(
            id=0, document="doctor", prefix=prefix, suffix=SUFFIX, lane="key", max_tokens=TOKENS
        )
    )
    characters, first = 0, 0.0
    async for chunk in answer:
        news.at = time.monotonic()
        if chunk.text and not first:
            first = time.perf_counter() - began
        characters += len(chunk.text)
    tokens = answer.done.generated if answer.done else 0
    return _Text(characters, first, time.perf_counter() - began, tokens)


async def _stopped(endpoint: Endpoint, wait_s: float) -> str:
    """Stop the daemon that was started for us, which may take so long until it can be told; what
    there is to say of that."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and not await _answers(endpoint):
        await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(stop_daemon(endpoint), END_S)
    except NoDaemon:
        return ""
    except (Refused, Stuck, TimeoutError) as error:
        return f"; it could not be stopped again ({error}): `completion-ls daemon stop` tries once more"
    return " and has been stopped again"


def _say(
    notes: Notes,
    texts: list[_Text],
    loading_s: float,
    *,
    was_running: bool,
    after: str,
    log: str,
) -> None:
    first, again = texts
    if not first.characters:
        notes.failed(
            "first text",
            "The engine answered without any text. Its model may be damaged, or model.format may not "
            f"suit it: try 'plain' there, or another model. {log}",
        )
        return
    notes.ok(
        "first text",
        f"after {1000 * first.first_s:.0f} ms, and {1000 * again.first_s:.0f} ms after one more key",
    )
    rate = first.tokens / first.total_s
    notes.ok(
        "text",
        f"{first.characters} characters, {first.tokens} tokens in {1000 * first.total_s:.0f} ms "
        f"({rate:.0f} a second, with the first)",
    )
    if was_running:
        notes.ok("daemon", "the one that was running answered; it runs on")
    else:
        notes.ok("daemon", f"it was started for this, was ready after {loading_s:.1f} s{after}")
