"""pygls's protocol with our own transport: what arrives is checked here before pygls sees it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
from typing import TYPE_CHECKING, Any

import attrs
from cattrs import Converter, transform_error
from lsprotocol import types
from pygls.exceptions import JsonRpcInternalError, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol, lsp_method
from pygls.uris import from_fs_path, to_fs_path

from completion_ls.lsp import messages
from completion_ls.lsp.channel import Channel, Malformed
from completion_ls.lsp.first_answer import ENCODINGS

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer

log = logging.getLogger(__name__)

_NO_TYPES = (None, None, None, None)


class Protocol(LanguageServerProtocol):
    """One connection with one editor window."""

    def __init__(self, server: CompletionServer, converter: Converter) -> None:
        super().__init__(server, converter)
        self._notices = server.notices
        self.exit_code: int | None = None
        self._channel: Channel | None = None
        self._answered: int | str | None = None

    async def run(self, channel: Channel, answered: int | str | None = None) -> int:
        """Serve this channel until `exit` or its end; returns the process's exit status.

        `answered` is the id of an `initialize` that has its answer already.
        """
        self._channel = channel
        self._answered = answered
        while self.exit_code is None:
            item = await channel.receive()
            if item is None:
                break
            if isinstance(item, Malformed):
                self._notices.show(str(item))
                continue
            self._receive(item)
            # Let the handler begin, with the document as it was when the request was sent.
            await asyncio.sleep(0)
        for _ in range(3):  # let what was cancelled by the shutdown say so
            await asyncio.sleep(0)
        channel.close()
        return 1 if self.exit_code is None else self.exit_code

    def get_message_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of a request or notification, ours included. (pygls's own keeps each connection, with
        its documents, in a cache of the whole process.)"""
        if method == messages.STREAM_INLINE_COMPLETION:
            return messages.StreamInlineCompletionRequest
        if method == messages.DID_SHOW_DOCUMENT:
            return messages.DidShowDocumentNotification
        if method == messages.DID_USE_SUGGESTION:
            return messages.DidUseSuggestionNotification
        if method == messages.ENGINE_REPORT:
            return messages.EngineReportRequest
        return types.METHOD_TO_TYPES.get(method, _NO_TYPES)[0]

    def get_result_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of the response to a request."""
        return types.METHOD_TO_TYPES.get(method, _NO_TYPES)[1]

    @lsp_method(types.EXIT)
    def lsp_exit(self, *_: object) -> None:  # type: ignore[override]
        """End this connection (other connections of the process go on)."""
        self.exit_code = 0 if self._shutdown else 1

    def _receive(self, body: bytes) -> None:
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse(None, types.ErrorCodes.ParseError, "The message is not JSON.")
            self._notices.show("A message that is not JSON was received; it is skipped.")
            return
        if not isinstance(raw, dict) or raw.get("jsonrpc") != "2.0":
            self._refuse(None, types.ErrorCodes.InvalidRequest, "The message is not JSON-RPC 2.0.")
            return
        id, method = raw.get("id"), raw.get("method")
        if method is not None and not isinstance(method, str):
            self._refuse(id, types.ErrorCodes.InvalidRequest, "`method` must be a string.")
            return
        is_request = method is not None and "id" in raw
        if is_request and not _is_id(id):
            self._refuse(
                None, types.ErrorCodes.InvalidRequest, "`id` must be a number or a string."
            )
            return
        if self._workspace is None and method not in ("initialize", "exit"):
            if is_request:
                text = "The first request must be initialize."
                self._refuse(id, types.ErrorCodes.ServerNotInitialized, text)
            return
        if self._workspace is not None and method == "initialize":
            text = "The server is initialized already."
            self._refuse(id, types.ErrorCodes.InvalidRequest, text)
            return
        if self._shutdown and is_request:
            text = "The server is shutting down."
            self._refuse(id, types.ErrorCodes.InvalidRequest, text)
            return
        kind = self.get_message_type(method) if method is not None else None
        if method is not None:
            raw.pop("error", None)  # with it pygls takes a request for a response
            if kind is None:
                raw.setdefault("params", None)  # an unknown message may have none
        if is_request and kind is not None and not _has_id(kind):
            self._refuse(id, types.ErrorCodes.InvalidRequest, f"{method} is a notification.")
            return
        if method is None and not self._is_awaited(id):
            return
        if method == types.CANCEL_REQUEST and not _is_id(_member(raw.get("params"), "id")):
            return
        if method == "initialize":
            raw["params"] = _without_odd_root(raw.get("params"))
        try:
            message = self.structure_message(raw)
        except (JsonRpcInvalidParams, JsonRpcInternalError) as error:
            # cattrs' explanation names fields and types, never values.
            cause = error.__cause__
            details = transform_error(cause) if isinstance(cause, Exception) else []
            text = f"The parameters of {method} are wrong: {'; '.join(details) or 'unreadable'}."
            if method == "initialize" and self._answered is not None:
                # It has its answer, so it must work: with what that answer was made from.
                log.warning("%s", text)
                message = self.structure_message({**raw, "params": _reduced(raw["params"])})
            else:
                if is_request:
                    self._refuse(id, types.ErrorCodes.InvalidParams, text)
                elif method is not None:
                    self._notices.show(text)
                return
        try:
            self.handle_message(message)
        except Exception:
            log.exception("a message could not be handled")  # the others must be
        # pygls keeps the future of each notification, too.
        for name in [name for name, future in self._request_futures.items() if future.done()]:
            del self._request_futures[name]

    def _is_awaited(self, id: Any) -> bool:
        """Whether a response answers a request of ours (ids of the client's live in the same dict)."""
        future = self._request_futures.get(id) if _is_id(id) else None
        return isinstance(future, concurrent.futures.Future) and not future.done()

    def _refuse(self, id: Any, code: types.ErrorCodes, text: str) -> None:
        if id is not None and id == self._answered:
            self._answered = None
        error = {"code": int(code), "message": text}
        self._send_text(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}))

    def _send_data(self, data: Any) -> None:
        if not data:
            return
        text = json.dumps(data, default=self._serialize_message)
        if self._answered is not None and getattr(data, "id", None) == self._answered:
            self._answered = None
            return
        self._send_text(text)

    def _send_text(self, text: str) -> None:
        if self._channel:
            self._channel.send(text.encode())


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _has_id(kind: type) -> bool:
    """Whether messages of a type are requests."""
    return attrs.has(kind) and any(field.name == "id" for field in attrs.fields(kind))


def _is_id(id: Any) -> bool:
    return isinstance(id, int | str) and not isinstance(id, bool)


def _without_odd_root(params: Any) -> Any:
    """Parameters of `initialize`, without a root that is no place at all: pygls fails on it, and a
    session is of use without."""
    uri, path = _member(params, "rootUri"), _member(params, "rootPath")
    try:
        if isinstance(uri, str):
            to_fs_path(uri)
        elif isinstance(path, str):
            to_fs_path(from_fs_path(path) or "")
    except ValueError:
        return {**params, "rootUri": None, "rootPath": None}
    return params


def _reduced(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `initialize` that cannot be wrong."""
    client = params["capabilities"]

    def claims(group: str, name: str) -> bool:
        return isinstance(client.get(group), dict) and client[group].get(name) is True

    encodings = (client.get("general") or {}).get("positionEncodings")
    return {
        "processId": None,
        "rootUri": None,
        "capabilities": {
            "general": {"positionEncodings": [n for n in encodings or [] if n in ENCODINGS]},
            "window": {"workDoneProgress": claims("window", "workDoneProgress")},
            "workspace": {"configuration": claims("workspace", "configuration")},
        },
        "initializationOptions": params.get("initializationOptions"),
    }
