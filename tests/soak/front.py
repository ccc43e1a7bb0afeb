"""An editor of few words for one real front: it may be deaf, be killed, and writes down how long it waits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from completion_ls.lsp.channel import frame

PULSE_S = 0.1
CHEAP = (
    ("completionLs/engineReport", {}),
    ("textDocument/completion", {"position": {"line": 0, "character": 0}}),
    ("completionLs/noSuchMethod", {}),
)
"""Requests that the model has no part in."""
URI = "file:///soak/work.py"


class Gone(Exception):
    """The front has ended."""


@dataclass(slots=True)
class Answer:
    """What came of a request: a result, or an error (a sentence)."""

    result: Any = None
    error: str = ""

    @property
    def text(self) -> str:
        """The first item's text."""
        items = (self.result or {}).get("items") or []
        return str(items[0]["insertText"]) if items else ""


@dataclass(slots=True)
class Waits:
    """How long cheap requests waited, at most, in seconds."""

    longest_s: float = 0.0
    under_way: float | None = None

    @property
    def now_s(self) -> float:
        """With the one that waits still."""
        waiting = 0.0 if self.under_way is None else time.perf_counter() - self.under_way
        return max(self.longest_s, waiting)


@dataclass(slots=True)
class Heard:
    """What the front said of itself."""

    messages: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    """Before the present trial."""
    edits: int = 0


class Front:
    """A process `completion-ls --stdio` with one document."""

    def __init__(
        self, environment: dict[str, str], log: Path, wrapper: tuple[str, ...] = ()
    ) -> None:
        """`wrapper` is a program that runs it, as an editor does; `log` is for its stderr."""
        self.environment = environment
        self.log = log
        self.wrapper = wrapper
        self.heard = Heard()
        self.waits = Waits()
        self.text = ""
        self._version = 0
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._reads = asyncio.Event()
        self._reads.set()

    async def start(self) -> None:
        """Start it, and begin to feel its pulse."""
        own = (sys.executable, "-P", "-m", "completion_ls", "--stdio")
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.wrapper,
                *own,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=1 << 16,
                env=self.environment,
            )
        self._listening = asyncio.create_task(self._listen())
        capabilities = {"general": {"positionEncodings": ["utf-32"]}}
        editor = self.pid if self.wrapper else None
        params = {"processId": editor, "capabilities": capabilities}
        await self.call("initialize", params)
        self.notify("initialized", {})
        document = {"uri": URI, "languageId": "python", "version": 0, "text": self.text}
        self.notify("textDocument/didOpen", {"textDocument": document})
        await self.call("completionLs/noSuchMethod", {})  # it has imported all that it needs
        self._pulse = asyncio.create_task(self._feel())

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid

    async def stop(self) -> None:
        """Shut it down; kill it where it does not end."""
        self._pulse.cancel()
        self.listen_again()
        with contextlib.suppress(Gone, TimeoutError):
            async with asyncio.timeout(20):
                await self.call("shutdown", None)
                self.notify("exit", None)
                await self.process.wait()
        await self.end()

    async def kill(self) -> None:
        """End it at once."""
        self._pulse.cancel()
        await self.end()

    async def end(self) -> None:
        """Kill the process that was started, and wait until the front has gone."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.process.wait()
        self.listen_again()
        self._listening.cancel()
        await asyncio.gather(self._listening, self._pulse, return_exceptions=True)

    def be_deaf(self) -> None:
        """Read nothing of what it says."""
        self._reads.clear()

    def listen_again(self) -> None:
        """Read it."""
        self._reads.set()

    def type(self, text: str) -> None:
        """Append to the document."""
        lines = self.text.split("\n")
        end = {"line": len(lines) - 1, "character": len(lines[-1])}
        self.text += text
        self._version += 1
        changes = [{"range": {"start": end, "end": end}, "text": text}]
        document = {"uri": URI, "version": self._version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    def ask(self, *, by_hand: bool = False) -> tuple[int, asyncio.Future[Answer]]:
        """Ask for a completion at the document's end."""
        lines = self.text.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        return self.send(
            "textDocument/inlineCompletion",
            {"position": position, "context": {"triggerKind": 1 if by_hand else 2}},
        )

    def cancel(self, id: int) -> None:
        """Cancel a request."""
        self.notify("$/cancelRequest", {"id": id})

    def send(self, method: str, params: Any) -> tuple[int, asyncio.Future[Answer]]:
        """Send a request about the document; its id, and its answer to come (it may raise Gone)."""
        id = next(self._ids)
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        if isinstance(params, dict) and method != "initialize":
            params = {"textDocument": {"uri": URI}, **params}
        self._write({"id": id, "method": method, "params": params})
        return id, answer

    async def call(self, method: str, params: Any) -> Answer:
        """Send a request and wait for its answer. Raises Gone."""
        return await self.send(method, params)[1]

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._write({"method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    async def _feel(self) -> None:
        for number in itertools.count():
            method, params = CHEAP[number % len(CHEAP)]
            deaf = not self._reads.is_set()
            self.waits.under_way = None if deaf else time.perf_counter()
            try:
                began = time.perf_counter()
                await self.call(method, params)
                if not deaf and self._reads.is_set():
                    waited_s = time.perf_counter() - began
                    self.waits.longest_s = max(self.waits.longest_s, waited_s)
            except (Gone, ConnectionError):
                return
            finally:
                self.waits.under_way = None
            await asyncio.sleep(PULSE_S)

    async def _listen(self) -> None:
        reader = self.process.stdout
        assert reader is not None
        try:
            while True:
                await self._reads.wait()
                header = await reader.readuntil(b"\r\n\r\n")
                length = int(header.split(b":")[1].split(b"\r\n")[0])
                self._take(json.loads(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            waiting, self._waiting = self._waiting, {}
            for answer in waiting.values():
                if not answer.done():
                    answer.set_exception(Gone())
                    answer.exception()  # nobody may be waiting

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method == "window/showMessage":
            self.heard.messages.append(message["params"]["message"])
        elif method == "workspace/applyEdit":
            self.heard.edits += 1
        if method is not None and "id" in message:
            self._write({"id": message["id"], "result": None})
        elif method is None and (answer := self._waiting.pop(message["id"], None)):
            error = message.get("error")
            if not answer.done():
                answer.set_result(Answer(message.get("result"), error["message"] if error else ""))
