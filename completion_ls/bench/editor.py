"""A scripted editor: speaks LSP to a real `completion-ls --stdio`, for the demo and measurements."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from completion_ls.config import api_key
from completion_ls.lsp.channel import frame

Progress = Callable[[str, int], None]


class EditorError(Exception):
    """The server answered with an error or has gone; the message is its sentence."""


@dataclass(slots=True)
class Request:
    """One streaming request under way. Times are seconds since it was sent; None until it happened.
    `texts` are all that were shown, `text` is the last; `error` is that of the answer, if it is one."""

    id: int
    sent: float
    text: str = ""
    texts: list[str] = field(default_factory=list)
    first_text_s: float | None = None
    answered_s: float | None = None
    error: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, items: list[dict[str, Any]]) -> None:
        """Take the items of a notification or of the response."""
        self.text = items[0]["insertText"] if items else ""
        self.texts.append(self.text)
        if self.text and self.first_text_s is None:
            self.first_text_s = time.perf_counter() - self.sent
        self.changed.set()

    @property
    def first_s(self) -> float | None:
        """When the first text was there, or the answer that there is none."""
        return self.first_text_s if self.first_text_s is not None else self.answered_s


class Editor:
    """One document in one server process. Offsets are in code points."""

    def __init__(self, uri: str, language: str, text: str) -> None:
        self.uri, self.language, self.text = uri, language, text
        self.messages: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._state = tempfile.TemporaryDirectory(prefix="cls-", ignore_cleanup_errors=True)
        self._gone = False
        self._version = 0
        self._ids = itertools.count(1)
        self._responses: dict[int, asyncio.Future[Any]] = {}
        self._requests: dict[int, Request] = {}
        self._progress: Progress = lambda text, percent: None

    async def start(self, progress: Progress = lambda text, percent: None) -> None:
        """Start the server, initialize it and open the document."""
        self._progress = progress
        environment = api_key.environment(with_key=True)  # the daemon is started from there
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: the files of the folder it is started in are no modules of ours.
            *("-P", "-m", "completion_ls", "--stdio"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
            # Nobody accepts anything here: that is not to be among the user's counts.
            env=environment | {"COMPLETION_LS_STATE_DIR": self._state.name},
        )
        self._listening = asyncio.create_task(self._listen())
        capabilities = {
            "general": {"positionEncodings": ["utf-32"]},
            "window": {"workDoneProgress": True},
        }
        await self.call("initialize", {"processId": None, "capabilities": capabilities})
        self.notify("initialized", {})
        document = {"uri": self.uri, "languageId": self.language, "version": 0, "text": self.text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_gone(self) -> bool:
        """Whether the server has ended."""
        return self._gone

    async def stop(self) -> None:
        """Shut the server down, if it was started (the daemon stays)."""
        if self._process is None:
            return
        await self.call("shutdown", None)
        self.notify("exit", None)
        await self._process.wait()
        self._state.cleanup()
        self._listening.cancel()

    def edit(self, offset: int, deleted: int, inserted: str) -> int:
        """Change the document; returns the offset behind the insertion, where the cursor is."""
        start, end = self._position(offset), self._position(offset + deleted)
        self.text = self.text[:offset] + inserted + self.text[offset + deleted :]
        self._version += 1
        change = {"range": {"start": start, "end": end}, "text": inserted}
        identifier = {"uri": self.uri, "version": self._version}
        self.notify(
            "textDocument/didChange", {"textDocument": identifier, "contentChanges": [change]}
        )
        return offset + len(inserted)

    def ask(self, offset: int) -> Request:
        """Ask for the completion at an offset, streamed."""
        id = next(self._ids)
        request = self._requests[id] = Request(id, time.perf_counter())
        self._write(
            {
                "id": id,
                "method": "completionLs/streamInlineCompletion",
                "params": {
                    "streamId": id,
                    "textDocument": {"uri": self.uri},
                    "position": self._position(offset),
                    "context": {"triggerKind": 2},
                },
            }
        )
        return request

    def cancel(self, request: Request) -> None:
        """Cancel a request that has no answer yet."""
        if request.answered_s is None:
            self.notify("$/cancelRequest", {"id": request.id})

    async def first(self, request: Request) -> None:
        """Wait until the first text is there, or the answer that there is none. Raises EditorError
        where the answer is an error."""
        while request.first_s is None:
            request.changed.clear()
            await request.changed.wait()
        if request.error:
            raise EditorError(request.error)

    async def answered(self, request: Request) -> None:
        """Wait for the response. Raises EditorError where it is an error."""
        while request.answered_s is None:
            request.changed.clear()
            await request.changed.wait()
        if request.error:
            raise EditorError(request.error)

    async def call(self, method: str, params: object) -> Any:
        """Send a request and wait for its result. Raises EditorError."""
        if self._gone:
            raise EditorError("The language server has ended.")
        id = next(self._ids)
        self._responses[id] = asyncio.get_running_loop().create_future()
        self._write({"id": id, "method": method, "params": params})
        return await self._responses[id]

    def notify(self, method: str, params: object) -> None:
        """Send a notification."""
        self._write({"method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(frame(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def _position(self, offset: int) -> dict[str, int]:
        line = self.text.count("\n", 0, offset)
        return {"line": line, "character": offset - self.text.rfind("\n", 0, offset) - 1}

    async def _listen(self) -> None:
        assert self._process is not None
        reader = self._process.stdout
        assert reader is not None
        try:
            while True:
                header = await reader.readuntil(b"\r\n\r\n")
                length = int(header.split(b":")[1].split(b"\r\n")[0])
                self._take(json.loads(await reader.readexactly(length)))
        except asyncio.IncompleteReadError:
            pass
        finally:
            self._gone = True
            error = EditorError("The language server has ended.")
            for waiting in self._responses.values():
                if not waiting.done():
                    waiting.set_exception(error)
            for request in self._requests.values():
                request.answered_s = time.perf_counter() - request.sent
                request.error = str(error)
                request.changed.set()

    def _take(self, message: dict[str, Any]) -> None:
        method: str | None = message.get("method")
        params: Any = message.get("params")
        if method == "completionLs/partialInlineCompletion":
            if request := self._requests.get(params["streamId"]):
                request.note(params["items"])
        elif method == "$/progress":
            value = params["value"]
            self._progress(value.get("message") or "", value.get("percentage") or 0)
        elif method == "window/showMessage":
            self.messages.append(params["message"])
        elif method is not None and "id" in message:
            self._write({"id": message["id"], "result": None})
        elif request := self._requests.pop(message.get("id", -1), None):
            request.answered_s = time.perf_counter() - request.sent
            if "error" in message:
                request.error = message["error"]["message"]
            else:
                request.note((message["result"] or {"items": []})["items"])
            request.changed.set()
        elif waiting := self._responses.pop(message.get("id", -1), None):
            if "error" in message:
                waiting.set_exception(EditorError(message["error"]["message"]))
            else:
                waiting.set_result(message.get("result"))
