"""What typing costs a server that many share: the same keys typed in four ways, and its own counts.

Each way has a llama.cpp server of its own. The keys come in the rhythm of the recording, since that
decides how much of an answer is computed before the next key ends it; as in `bench.replay`, none is typed
before the one before it has its first text or the answer that there is none. What happened from one key to
the next counts for the first of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer

from completion_ls.bench.editor import Editor
from completion_ls.bench.engine import code_tokens
from completion_ls.bench.llama_cpp import (
    CONTEXT,
    SLACK,
    Server,
    first_token,
    gguf_of,
    serving,
    threads_of,
    window,
)
from completion_ls.bench.own_daemon import own_daemon
from completion_ls.bench.replay import pause
from completion_ls.bench.session import Session
from completion_ls.bench.trace import Stretch, Transaction, apply
from completion_ls.bench.watched_server import Watched, Work, watched
from completion_ls.config.settings import Settings
from completion_ls.config.sources import resolve_strict
from completion_ls.lsp.generator import Generator
from completion_ls.lsp.situation import Situation
from completion_ls.lsp.situation import window as characters
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.models import local
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig

URI = "file:///typed/session.py"
LANGUAGE = "python"
TOKENS = 100
"""As many are decoded to see how many passes a second the server does, ..."""
BEHIND = 512
"""... behind so many of code."""
PATIENCE_S = "600"
"""A small machine reads a long prompt for longer than anybody would wait."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to type. `settings` are added to the environment."""

    name: str
    text: str
    settings: tuple[tuple[str, str], ...] = ()


PLUGIN = Arm("plugin", "every key asks anew, as plugins do")
NO_SESSION = Arm(
    "no session",
    "our prompts and rules, but every key asks anew, nothing ahead",
    (("COMPLETION__AHEAD", "false"),),
)
OURS = Arm("ours", "all of ours")
NOT_AHEAD = Arm(
    "not ahead", "all of ours, with completion.ahead off", (("COMPLETION__AHEAD", "false"),)
)
ARMS = (PLUGIN, NO_SESSION, OURS, NOT_AHEAD)


@dataclass(frozen=True, slots=True)
class Key:
    """What a key cost: the requests that began until the next key, those of them before its first text (or
    the answer that there is none), and what the server did. (It counts the tokens of an answer when that
    ends, the rest at once.)"""

    requests: int
    awaited: int
    work: Work


@dataclass(frozen=True, slots=True)
class Cost:
    """An arm that was typed. `unread` tokens were decoded after whoever had asked for them had gone."""

    arm: str
    keys: tuple[Key, ...]
    requests: int
    cancelled: int
    unread: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """Passes a second that the server did: for one answer, and for `slots` at once, each of which
    counts; and tokens of a prompt a second."""

    one: float
    slots: int
    all: float
    prompt: float


def measure(
    stretch: Stretch, arms: tuple[Arm, ...], slots: int, progress: Callable[[str, int], None]
) -> list[Cost]:
    """Type a stretch in each way, into a server with so many slots. `progress` hears the arm and the keys
    done. For the main thread. Raises PeerError, models.ModelError, SettingsError, EditorError and
    EngineFailed."""
    found = []
    for arm in arms:
        with own_daemon(), _environment(dict(arm.settings)):
            found.append(asyncio.run(_typed(arm, stretch, slots, progress)))
    return found


def capacity(settings: Settings, slots: int) -> Capacity:
    """How many passes a second the server of these settings does now. Raises PeerError and
    models.ModelError."""
    folder = local.tokenizer_folder(settings.model.name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return asyncio.run(_capacity(settings, code_tokens(tokenizer), slots))


async def _capacity(settings: Settings, code: tuple[int, ...], slots: int) -> Capacity:
    async def timings(server: Server, number: int) -> dict[str, float]:
        prompt = code[number * BEHIND : (number + 1) * BEHIND]
        found: dict[str, float] = (await server.generate(prompt, TOKENS))["timings"]
        return found

    async with _server(settings, slots) as server:
        await timings(server, 0)
        one = await timings(server, 0)
        several = await asyncio.gather(*(timings(server, number) for number in range(slots)))
    name = "predicted_per_second"
    together = sum(each[name] for each in several)
    return Capacity(one[name], slots, together, one["prompt_per_second"])


@asynccontextmanager
async def _server(settings: Settings, slots: int) -> AsyncIterator[Server]:
    most = settings.prompt.max_tokens + settings.completion.max_tokens + SLACK
    context = slots * max(CONTEXT, most)
    gguf, threads = gguf_of(settings.model.name), threads_of(settings)
    async with serving(gguf, context=context, threads=threads, slots=slots) as server:
        yield server


async def _typed(
    arm: Arm, stretch: Stretch, slots: int, progress: Callable[[str, int], None]
) -> Cost:
    settings = resolve_strict()
    async with _server(settings, slots) as server, watched(server) as seen:
        own = {"ENGINE__KIND": "remote", "REMOTE__URL": seen.url, "REMOTE__TIMEOUT_S": PATIENCE_S}
        with _environment(own):
            typist = _typist(arm, seen, stretch)
            try:
                await typist.start()
                return await _counted(arm, typist, seen, stretch, progress)
            finally:
                await typist.stop()


async def _counted(
    arm: Arm,
    typist: _Typist,
    seen: Watched,
    stretch: Stretch,
    progress: Callable[[str, int], None],
) -> Cost:
    keys = []
    begun = before = await _quiet(seen)
    asked = first = len(seen.requests)
    steps = zip(stretch.transactions, stretch.gaps_s, strict=True)
    for done, (transaction, gap_s) in enumerate(steps, start=1):
        sent = time.perf_counter()
        await typist.type(transaction)
        awaited = len(seen.requests) - asked
        progress(arm.name, done)
        await pause(sent, gap_s)
        after = await seen.work()
        keys.append(Key(len(seen.requests) - asked, awaited, after.since(before)))
        before, asked = after, len(seen.requests)
    requests = seen.requests[first:]
    await typist.stop()
    decoded = (await _quiet(seen)).since(begun).decoded
    return Cost(
        arm=arm.name,
        keys=tuple(keys),
        requests=len(requests),
        cancelled=sum(one.cancelled for one in requests),
        unread=decoded - sum(one.tokens for one in seen.requests[first:]),
    )


async def _quiet(seen: Watched) -> Work:
    """The server's count once it does nothing more."""
    before = None
    while True:
        now = None if await seen.is_busy() else await seen.work()
        if now is not None and now == before:
            return now
        before = now
        await asyncio.sleep(0.3)


class _Typist(Protocol):
    async def start(self) -> None:
        """Ask once where the typing begins."""

    async def type(self, transaction: Transaction) -> None:
        """One key; returns with its first text, or the answer that there is none."""

    async def stop(self) -> None:
        """Leave; harmless the second time."""


def _typist(arm: Arm, seen: Watched, stretch: Stretch) -> _Typist:
    settings = resolve_strict()
    if arm is PLUGIN:
        return _Plugin(seen.at, settings, stretch)
    if arm is NO_SESSION:
        return _NoSession(settings, stretch)
    return _Ours(stretch)


class _Plugin:
    """Asks llama.cpp as `bench.llama_cpp.replay` does."""

    def __init__(self, server: Server, settings: Settings, stretch: Stretch) -> None:
        folder = local.tokenizer_folder(settings.model.name)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

        @lru_cache(maxsize=1 << 16)
        def count(line: str) -> int:
            return len(tokenizer.encode(line, add_special_tokens=False).ids)

        self._count = count
        self._server, self._settings, self._text = server, settings, stretch.text
        self._cursor = stretch.cursor
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._ask()
        assert self._reading
        await self._reading

    async def type(self, transaction: Transaction) -> None:
        await self.stop()
        self._text = apply(self._text, transaction)
        self._cursor = transaction[-1].end if transaction else self._cursor
        await self._ask()

    async def stop(self) -> None:
        if self._reading:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _ask(self) -> None:
        wanted = self._settings.prompt
        prompt = window(
            self._text, self._cursor, wanted.max_tokens, wanted.suffix_share, self._count
        )
        came = asyncio.Event()
        self._reading = asyncio.create_task(self._read(prompt, came))
        waiting = asyncio.create_task(came.wait())
        await asyncio.wait({self._reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._reading.done():
            self._reading.result()

    async def _read(self, prompt: str, came: asyncio.Event) -> None:
        async with self._server.ask(prompt, self._settings.completion.max_tokens) as answer:
            await first_token(answer)
            came.set()
            await answer.read()


class _NoSession:
    """Asks our daemon anew with every key; the rules still say where a suggestion ends."""

    def __init__(self, settings: Settings, stretch: Stretch) -> None:
        self._settings, self._text = settings, stretch.text
        self._cursor = stretch.cursor
        self._engine = EngineClient(DaemonConfig.of(settings))
        self._generator = Generator(self._engine, settings)
        self._suggestion: Suggestion | None = None

    async def start(self) -> None:
        await self._ask()
        assert self._suggestion and self._suggestion.pump
        await self._suggestion.pump

    async def type(self, transaction: Transaction) -> None:
        assert self._suggestion
        self._generator.end(self._suggestion)
        self._text = apply(self._text, transaction)
        self._cursor = transaction[-1].end if transaction else self._cursor
        await self._ask()

    async def stop(self) -> None:
        await self._engine.close()

    async def _ask(self) -> None:
        before, after = self._text[: self._cursor], self._text[self._cursor :]
        limit = characters(self._settings.prompt.max_tokens)
        line = before.count("\n")
        column = len(before) - before.rfind("\n") - 1
        here = Situation(
            URI, line, column, before[-limit:], after[:limit], limit, language=LANGUAGE
        )
        found = self._suggestion = self._generator.begin(here, "key")
        while not found.raw and not found.finished:
            if found.failure:
                raise found.failure
            await found.progress()


class _Ours:
    """The whole product, as `bench.replay` types into it."""

    def __init__(self, stretch: Stretch) -> None:
        self._session = Session(Editor(URI, LANGUAGE, stretch.text))
        self._cursor = stretch.cursor
        self._stopped = False

    async def start(self) -> None:
        await self._session.start()
        await self._session.warm_up(self._cursor)

    async def type(self, transaction: Transaction) -> None:
        await self._session.type(*transaction)
        self._session.check()

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self._session.stop()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Settings for this process and its children, by their names without the beginning."""
    ours = {f"COMPLETION_LS_{name}": value for name, value in values.items()}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
