"""`$/progress` while the model is fetched and loaded."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer


class LoadingProgress:
    """One work-done progress, begun at the first report and ended with the last."""

    def __init__(self, server: CompletionServer) -> None:
        self._server = server
        self._token: str | None = None
        self._last = ("", -1)

    def report(self, text: str, fraction: float) -> None:
        """Show how far loading has come; repeated figures are not sent again."""
        now = (text, int(100 * fraction))
        if now == self._last or not self._supported():
            return
        self._last = now
        if self._token is None:
            self._token = str(uuid.uuid4())
            self._server.run_task(self._begin(self._token))
        elif self._token in self._server.work_done_progress.tokens:
            self._server.work_done_progress.report(
                self._token, types.WorkDoneProgressReport(message=text, percentage=now[1])
            )

    def end(self, text: str) -> None:
        """Take the progress away."""
        token, self._token, self._last = self._token, None, ("", -1)
        if token and token in self._server.work_done_progress.tokens:
            self._server.work_done_progress.end(token, types.WorkDoneProgressEnd(message=text))

    async def _begin(self, token: str) -> None:
        await self._server.work_done_progress.create_async(token)
        if token != self._token:  # loaded before the editor had answered
            return
        text, percentage = self._last
        self._server.work_done_progress.begin(
            token,
            types.WorkDoneProgressBegin(
                title="completion-ls", message=text, percentage=percentage, cancellable=False
            ),
        )

    def _supported(self) -> bool:
        window = self._server.client_capabilities.window
        return bool(window and window.work_done_progress)
