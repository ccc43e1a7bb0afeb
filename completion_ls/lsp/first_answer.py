"""Answer `initialize` before pygls is there.

Importing the protocol's types takes several hundred milliseconds, and an editor that waits for
`initialize` shows it. What we answer is known without them, so over stdio it is sent first; pygls
then gets the same message, and its own answer (a test holds that it is the same) is not sent again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from completion_ls import __version__
from completion_ls.config import sources
from completion_ls.lsp.channel import Channel, Malformed

SERVER_NAME = "completion-ls"
ENCODINGS = ("utf-8", "utf-16", "utf-32")
EDITOR_SOURCE = "initializationOptions"


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """What was done before pygls: the id of the `initialize` request that has its answer, if any."""

    id: int | str | None


def answer_initialize(channel: Channel) -> FirstAnswer:
    """Wait for the first message. An `initialize` in good order is answered; all else is left to pygls."""
    item = channel.peek_blocking()
    if item is None or isinstance(item, Malformed):
        return FirstAnswer(None)
    try:
        message = json.loads(item)
        id, params = message["id"], message["params"]
        if message["jsonrpc"] != "2.0" or message["method"] != "initialize":
            return FirstAnswer(None)
        if not isinstance(id, int | str) or isinstance(id, bool):
            return FirstAnswer(None)
        result = {
            "capabilities": capabilities(
                params.get("capabilities") or {},
                completion_items=wants_completion_items(params.get("initializationOptions")),
            ),
            "serverInfo": {"name": SERVER_NAME, "version": __version__},
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return FirstAnswer(None)
    channel.send(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())
    return FirstAnswer(id)


def wants_completion_items(initialization_options: object) -> bool:
    """Whether `textDocument/completion` is to be offered, from the unchecked settings."""
    found, _ = sources.collect([(EDITOR_SOURCE, initialization_options)])
    return sources.lookup(found, "server", "completion_items") is True


def capabilities(client: dict[str, Any], *, completion_items: bool) -> dict[str, Any]:
    """Our ServerCapabilities (as JSON) for a client of these ClientCapabilities."""
    offered = (client.get("general") or {}).get("positionEncodings") or []
    ours: dict[str, Any] = {
        "positionEncoding": next((name for name in offered if name in ENCODINGS), "utf-16"),
        "textDocumentSync": {"openClose": True, "change": 2, "save": False},
        # Static: Neovim and others do not register it dynamically.
        "inlineCompletionProvider": {},
        "workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}},
    }
    if client.get("notebookDocument") is not None:
        ours["notebookDocumentSync"] = {"notebookSelector": [{"notebook": "*"}]}
    if completion_items:
        ours["completionProvider"] = {}
    return ours
