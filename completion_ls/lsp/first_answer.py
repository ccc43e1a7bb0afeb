"""Answer `initialize` before pygls is there.

Importing the protocol's types takes several hundred milliseconds, and an editor that waits for
`initialize` shows it. What we answer is known without them, so over stdio it is sent first; pygls
then gets the same message, and its own answer (a test holds that it is the same) is not sent again.
"""

from __future__ import annotations

import json
from typing import Any

from completion_ls import __version__
from completion_ls.config import sources
from completion_ls.lsp.channel import Channel, Malformed

SERVER_NAME = "completion-ls"
ENCODINGS = ("utf-8", "utf-16", "utf-32")
EDITOR_SOURCE = "initializationOptions"
ACCEPTED_COMMAND = "completionLs.accepted"
"""What an editor runs when it has accepted an item (messages.py)."""


def answer_initialize(item: bytes | Malformed | None, channel: Channel) -> int | str | None:
    """Answer the first message that was received, if it is an `initialize` in good order; all else
    is left to pygls. Returns the id of the request that has its answer now."""
    if item is None or isinstance(item, Malformed):
        return None
    try:
        message = json.loads(item)
        id, params = message["id"], message["params"]
        if message["jsonrpc"] != "2.0" or message["method"] != "initialize":
            return None
        if not isinstance(id, int | str) or isinstance(id, bool):
            return None
        result = {
            "capabilities": capabilities(
                params["capabilities"],
                completion_items=wants_completion_items(params.get("initializationOptions")),
            ),
            "serverInfo": {"name": SERVER_NAME, "version": __version__},
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    channel.send(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())
    found: int | str = id
    return found


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
        "executeCommandProvider": {"commands": [ACCEPTED_COMMAND]},
        "workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}},
    }
    if client.get("notebookDocument") is not None:
        ours["notebookDocumentSync"] = {"notebookSelector": [{"notebook": "*"}]}
    if completion_items:
        ours["completionProvider"] = {}
    return ours
