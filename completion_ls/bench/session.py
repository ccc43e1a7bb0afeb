"""A measured editor session: types into the real server and reads the real daemon's counters."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from completion_ls.bench.editor import Editor, EditorError, Progress, Request
from completion_ls.bench.figures import EngineTime, Keystroke
from completion_ls.bench.flicker import flickers
from completion_ls.bench.trace import Patch
from completion_ls.config.sources import resolve_strict
from completion_ls.wire.client import EngineClient, EngineFailed
from completion_ls.wire.endpoint import DaemonConfig


@dataclass(frozen=True, slots=True)
class Counters:
    """The daemon's totals at one time."""

    reused: int
    computed: int
    jobs: int
    jobs_without_pass: int
    engine: EngineTime
    memory_bytes: int

    @classmethod
    def of(cls, figures: dict[str, Any]) -> Counters:
        """Read them off a status."""
        return cls(
            figures["prompt_tokens_reused"] - figures["prompt_tokens_reused_background"],
            figures["prompt_tokens_computed"] - figures["prompt_tokens_computed_background"],
            figures["jobs_awaited"],
            figures["jobs_awaited_without_pass"],
            EngineTime(
                figures["engine_seconds"],
                figures["engine_seconds_wasted"],
                figures["engine_seconds_background"],
            ),
            figures["memory_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Screen:
    """The document after a keystroke, its cursor, and the ghost text when the next one was typed."""

    text: str
    cursor: int
    ghost: str


@dataclass(slots=True)
class Session:
    """One scripted editor with its measurements."""

    editor: Editor
    keystrokes: list[Keystroke] = field(default_factory=list)
    screens: list[Screen] = field(default_factory=list)
    """One a keystroke, once the next one is typed."""
    model: str = ""
    _engine: EngineClient | None = None
    _pid: int = 0
    """The daemon that counts."""
    _front: psutil.Process | None = None
    _request: Request | None = None
    _cursor: int = 0
    _before: str | None = None
    """The ghost text that must stay: what was shown when the last key agreed with it."""
    _typed: str = ""
    _begun: Counters | None = None
    _counted: Counters | None = None

    async def start(self, progress: Progress = lambda text, percent: None) -> None:
        """Start the server and wait until the model is loaded. Raises wire.client.EngineFailed."""
        await self.editor.start(progress)
        self._front = psutil.Process(self.editor.pid)
        self._engine = EngineClient(DaemonConfig.of(resolve_strict()))
        while "passes" not in (figures := (await self._engine.status()).figures):
            await asyncio.sleep(0.1)
        self.model, self._pid = figures["model"], figures["pid"]
        self._begun = self._counted = Counters.of(figures)

    async def warm_up(self, cursor: int) -> None:
        """Ask once, so that the text is in the KV cache, and count from here on."""
        self._cursor = cursor
        self._request = self.editor.ask(cursor)
        await self.editor.answered(self._request)
        self._begun = self._counted = await self._counters()

    async def type(self, *patches: Patch) -> Request:
        """One keystroke: edit, ask, and wait for the first text or an empty answer. Raises
        EditorError where the answer is an error, and EngineFailed."""
        self._leave(patches)
        for patch in patches:
            self._cursor = self.editor.edit(patch.position, patch.deleted, patch.inserted)
        self._request = request = self.editor.ask(self._cursor)
        await self.editor.first(request)
        # The counters are read only now: what answers a key must not wait for a status.
        assert self._counted is not None and self._front is not None
        before, after = self._counted, await self._counters()
        self._counted = after
        self.keystrokes.append(
            Keystroke(
                first_ms=1e3 * (request.first_s or 0.0),
                with_text=request.first_text_s is not None,
                reused=after.reused - before.reused,
                computed=after.computed - before.computed,
                jobs=after.jobs - before.jobs,
                jobs_without_pass=after.jobs_without_pass - before.jobs_without_pass,
                daemon_bytes=after.memory_bytes,
                front_bytes=self._front.memory_info().rss,
            )
        )
        return request

    def check(self) -> None:
        """Raise EngineFailed with what the user was told of something that does not work."""
        if self.editor.messages:
            raise EngineFailed(self.editor.messages[-1])

    async def finish(self) -> None:
        """Wait for the last answer and count it."""
        if self._request:
            await self.editor.answered(self._request)
        self._leave(())
        self._counted = await self._counters()

    async def stop(self) -> None:
        """Shut the server down."""
        with contextlib.suppress(EditorError):  # Ctrl-C in a terminal reaches it before us
            await self.editor.stop()
        if self._engine:
            await self._engine.close()

    @property
    def engine_time(self) -> EngineTime:
        """What the engine has spent since the count began."""
        if self._begun is None or self._counted is None:
            return EngineTime(0.0, 0.0, 0.0)
        begun, now = self._begun.engine, self._counted.engine
        return EngineTime(
            now.total_s - begun.total_s,
            now.wasted_s - begun.wasted_s,
            now.background_s - begun.background_s,
        )

    def _leave(self, patches: tuple[Patch, ...]) -> None:
        """The next key is typed: the request of the last one is over, with what it has shown."""
        request = self._request
        if request is None:
            return
        # Before the change is sent: the server cannot know yet whether it will agree.
        self.editor.cancel(request)
        if len(self.screens) < len(self.keystrokes):
            self.screens.append(Screen(self.editor.text, self._cursor, request.text))
        final = None if request.answered_s is None else request.text
        if self._before is not None and flickers(self._before, self._typed, request.texts, final):
            self.keystrokes[-1] = replace(self.keystrokes[-1], flickered=True)
        self._before = None
        if len(patches) == 1:
            (patch,) = patches
            if patch.position == self._cursor and not patch.deleted:
                self._before, self._typed = request.text, patch.inserted

    async def _counters(self) -> Counters:
        """Raises EngineFailed where it is not the same daemon any more."""
        assert self._engine is not None
        figures = (await self._engine.status()).figures
        if figures["pid"] != self._pid:
            raise EngineFailed(
                "The engine daemon was stopped meanwhile and another one was started, so what was "
                "counted is lost. Try again."
            )
        return Counters.of(figures)
