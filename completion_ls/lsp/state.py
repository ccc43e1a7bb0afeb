"""What an editor's status bar shows: whether the engine is there, and its figures."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from completion_ls.lsp import messages
from completion_ls.wire.client import EngineFailed

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer

log = logging.getLogger(__name__)

FIGURES_S = 1.0
"""Nobody waits longer for figures: the engine gives them between two steps."""


class EngineState:
    """The engine as this window sees it. Clients that asked for it are told of changes."""

    def __init__(self, server: CompletionServer) -> None:
        self._server = server
        self._now = messages.EngineStateParams("loading", "Starting", 0)

    def loading(self, text: str, fraction: float) -> None:
        """The model is fetched or loaded."""
        self._change(messages.EngineStateParams("loading", text, int(100 * fraction)))

    def ready(self, model: str) -> None:
        """It answers."""
        self._change(messages.EngineStateParams("ready", model, 100))

    def failed(self, text: str) -> None:
        """There is none; the text is a sentence."""
        self._change(messages.EngineStateParams("failed", text, 0))

    async def report(self) -> messages.EngineReport:
        """The state and, where the engine is ready and has the time, the figures that `completion-ls
        status` prints."""
        figures: dict[str, Any] = {}
        suggester = self._server.suggester
        if self._now.state == "ready" and suggester and suggester.engine.ready:
            try:
                async with asyncio.timeout(FIGURES_S):
                    figures = (await suggester.engine.status()).figures
                if counts := await self._server.counts.of(suggester.model):
                    figures["suggestions"] = counts
            except EngineFailed:
                log.info("the daemon has left meanwhile")
            except TimeoutError:
                log.info("the engine has no time for figures")
        return messages.EngineReport(self._now, figures)

    def _change(self, now: messages.EngineStateParams) -> None:
        if now == self._now:
            return
        self._now = now
        if self._server.client_says(messages.ENGINE_STATE):
            self._server.protocol.notify(messages.DID_CHANGE_ENGINE_STATE, now)
