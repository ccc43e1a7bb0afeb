"""A profile whose engine, on this machine, answers while the server that computes cannot (`remote.fallback`).

The first engine's daemon stays connected, to say when the server is back. The second one is started only when
it is needed, and left a while after that, so that a server that comes and goes has no model loaded each time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lsprotocol import types

from completion_ls.config.profiles import settings_of
from completion_ls.config.settings import Settings
from completion_ls.wire.client import EngineClient, Watcher
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Ready

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer

SETTLED_S = 10.0
"""The second engine is left when the server has been back for so long."""
RETRY_S = 15.0
"""So often the first engine's daemon is looked for, should it have gone: no request asks for it meanwhile."""
COMES_S = 0.5
"""Who has lost a request waits no longer than this for the news that the server was lost."""
CLOSING_S = 2.0


def in_place_of(settings: Settings) -> Settings | None:
    """With what the profile answers: its model, engine, drafts and prompt, and the user's settings for the
    rest. None where no server computes, or no profile is named."""
    if settings.engine.kind != "remote" or not settings.remote.fallback:
        return None
    profile = settings_of(settings.remote.fallback)
    own = {name: getattr(profile, name) for name in ("model", "engine", "draft", "prompt")}
    return settings.model_copy(update=own)


class Fallback:
    """The second engine of one window."""

    def __init__(self, server: CompletionServer) -> None:
        self.settings: Settings | None = None
        """Those in force while it answers; None while the first engine does."""
        self._server = server
        self._engine: EngineClient | None = None
        self._troubles: set[str] = set()
        self._takes_over = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None
        self._next_try: asyncio.TimerHandle | None = None

    def settle(self, trouble: str) -> bool:
        """Answer where the first engine does not, for this reason (empty: it does), by the settings as they
        are now. Whether it is the second engine that answers."""
        wanted = in_place_of(self._server.settings) if trouble else None
        if wanted is None:
            self._go_back()
        else:
            self._take_over(wanted)
        return wanted is not None

    async def comes(self) -> bool:
        """A request failed at the server: whether the second engine answers, or is about to, as that is
        heard after it."""
        if in_place_of(self._server.settings) is None:
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._takes_over.wait(), COMES_S)
        return self.settings is not None

    async def close(self) -> None:
        """Hang up. A daemon that was about to be left is left now."""
        for timer in (self._leaving, self._next_try):
            if timer:
                timer.cancel()
        if self._engine and self.settings:
            await self._engine.close()
        elif self._engine:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._engine.leave(), CLOSING_S)

    def _take_over(self, wanted: Settings) -> None:
        if self._leaving:
            self._leaving.cancel()
            self._leaving = None
        config = DaemonConfig.of(wanted)
        if self._engine and not self._engine.config.shares_daemon_with(config):
            self._leave()
        if self._engine is None:
            self._engine, self.settings = self._begin(config), None
            self._engine.warm_up()
        if self.settings != wanted:
            self.settings = wanted
            self._server.use(self._engine, wanted)
            self._takes_over.set()
            self._show()
        if self._next_try is None:
            self._try_later()

    def _go_back(self) -> None:
        if self.settings is None:
            return
        self.settings = None
        self._takes_over.clear()
        if self._next_try:
            self._next_try.cancel()
            self._next_try = None
        assert self._server.first
        self._server.use(self._server.first, self._server.settings)
        self._leaving = asyncio.get_running_loop().call_later(SETTLED_S, self._leave)

    def _leave(self) -> None:
        engine, self._engine, self._leaving = self._engine, None, None
        if engine:
            self._server.run_task(engine.leave())

    def _try_later(self) -> None:
        self._next_try = asyncio.get_running_loop().call_later(RETRY_S, self._try)

    def _try(self) -> None:
        assert self._server.first
        self._server.first.warm_up()
        self._try_later()

    def _begin(self, config: DaemonConfig) -> EngineClient:
        def loading(text: str, fraction: float) -> None:
            if self.settings:
                self._server.loading.report(text, fraction)
                self._server.state.loading(text, fraction)

        def ready(_: Ready) -> None:
            while self._troubles:
                self._server.notices.forget(self._troubles.pop())
            if self.settings:
                self._show()

        def failed(text: str) -> None:
            if self.settings:
                self._server.loading.end("failed")
                self._server.state.failed(text)
                self._troubles.add(text)
                self._server.notices.show(text, types.MessageType.Error)

        return EngineClient(config, Watcher(loading, ready, failed))

    def _show(self) -> None:
        """The state of the window while this engine answers."""
        assert self._engine
        if ready := self._engine.ready:
            self._server.loading.end("ready")
            away = urlsplit(self._server.settings.remote.url).netloc
            self._server.state.ready(f"{ready.model} (while {away} cannot be reached)")
            self._server.warm_up_view()
        else:
            self._server.state.loading("Starting", 0)
