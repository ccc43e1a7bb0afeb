"""Messages to the user: each one once, not at every key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer


class Notices:
    """`window/showMessage`, without repeating itself."""

    def __init__(self, server: CompletionServer) -> None:
        self._server = server
        self._shown: set[str] = set()

    def show(
        self,
        text: str,
        kind: types.MessageType = types.MessageType.Warning,
        *,
        once: str = "",
        again: bool = False,
    ) -> None:
        """Show a sentence, unless it has been shown since the last `forget`, or one with the same
        `once`, where that is given: of many that differ in a name only, the first is enough. With
        `again` it is shown in any case."""
        if (once or text) in self._shown and not again:
            return
        self._shown.add(once or text)
        self._server.window_show_message(types.ShowMessageParams(kind, f"completion-ls: {text}"))

    def forget(self, text: str) -> None:
        """The trouble is over; should it come back, it is news."""
        self._shown.discard(text)
