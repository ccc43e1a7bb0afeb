"""A measured editor session: types into the real server and reads the real daemon's counters."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from completion_ls.bench.editor import Editor, EditorError, Progress, Request
from completion_ls.bench.figures import Keystroke
from completion_ls.config.sources import resolve_strict
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig


@dataclass(slots=True)
class Session:
    """One scripted editor with its measurements."""

    editor: Editor
    keystrokes: list[Keystroke] = field(default_factory=list)
    _engine: EngineClient | None = None
    _running: Request | None = None
    _counted: tuple[int, int, int] = (0, 0, 0)

    async def start(self, progress: Progress = lambda text, percent: None) -> None:
        """Start the server and wait until the model is loaded. Raises wire.client.EngineFailed."""
        await self.editor.start(progress)
        self._engine = EngineClient(DaemonConfig.of(resolve_strict()))
        while "passes" not in (await self._engine.status()).figures:
            await asyncio.sleep(0.1)
        self._counted = await self.counters()

    async def stop(self) -> None:
        """Shut the server down."""
        with contextlib.suppress(EditorError):  # Ctrl-C in a terminal reaches it before us
            await self.editor.stop()
        if self._engine:
            await self._engine.close()

    async def type(self, offset: int, deleted: int, inserted: str) -> Request:
        """One keystroke: edit, ask, and wait for the first text or an empty answer."""
        before = self._counted
        if self._running:
            self.editor.cancel(self._running)
        request = self.editor.ask(self.editor.edit(offset, deleted, inserted))
        self._running = request
        await self.editor.first(request)
        after = self._counted = await self.counters()
        reused, computed, jobs = (new - old for new, old in zip(after, before, strict=True))
        first, answer = request.first_text_s, request.first_s
        self.keystrokes.append(
            Keystroke(
                None if first is None else 1e3 * first, 1e3 * (answer or 0), reused, computed, jobs
            )
        )
        return request

    async def counters(self) -> tuple[int, int, int]:
        """The daemon's totals: prompt tokens reused, prompt tokens computed, jobs."""
        assert self._engine is not None
        figures = (await self._engine.status()).figures
        return (
            figures["prompt_tokens_reused"],
            figures["prompt_tokens_computed"],
            figures["jobs"],
        )
