"""A real language server process under a real LSP client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types as t
from pytest_lsp import LanguageClient, client_capabilities, make_test_lsp_client

from completion_ls.lsp import messages


class Window:
    """One editor window: a client, what the server told it, and short calls."""

    def __init__(self, client: LanguageClient, environment: dict[str, str]) -> None:
        self.client = client
        self.environment = environment
        self.partials: list[Any] = []
        self.states: list[Any] = []

        @client.feature(messages.PARTIAL_INLINE_COMPLETION)
        def _(params: Any) -> None:
            self.partials.append(params)

        @client.feature(messages.DID_CHANGE_ENGINE_STATE)
        def _(params: Any) -> None:
            self.states.append(params)

    @property
    def shown(self) -> list[str]:
        """The texts of window/showMessage."""
        return [message.message for message in self.client.messages]

    async def initialize(self, **options: Any) -> t.InitializeResult:
        """Initialize as VS Code does, with inline completion."""
        encodings = options.pop("encodings", None)
        experimental = options.pop("experimental", None)
        capabilities = client_capabilities("visual-studio-code")
        assert capabilities.text_document
        capabilities.text_document.inline_completion = t.InlineCompletionClientCapabilities()
        capabilities.experimental = experimental
        if encodings:
            assert capabilities.general
            capabilities.general.position_encodings = encodings
        params = t.InitializeParams(capabilities=capabilities, process_id=os.getpid(), **options)
        return await self.client.initialize_session(params)

    def open(self, uri: str, text: str, language: str = "python") -> None:
        """textDocument/didOpen."""
        item = t.TextDocumentItem(uri, language, 1, text)
        self.client.text_document_did_open(t.DidOpenTextDocumentParams(item))

    def insert(self, uri: str, line: int, character: int, text: str, version: int = 2) -> None:
        """Type a text at a position."""
        self.replace(uri, (line, character), (line, character), text, version)

    def replace(
        self, uri: str, start: tuple[int, int], end: tuple[int, int], text: str, version: int = 2
    ) -> None:
        """Replace a range."""
        change = t.TextDocumentContentChangePartial(
            text=text, range=t.Range(t.Position(*start), t.Position(*end))
        )
        self.client.text_document_did_change(
            t.DidChangeTextDocumentParams(t.VersionedTextDocumentIdentifier(version, uri), [change])
        )

    async def inline(
        self, uri: str, line: int, character: int, **context: Any
    ) -> list[t.InlineCompletionItem]:
        """textDocument/inlineCompletion."""
        params = self.inline_params(uri, line, character, **context)
        answer = await self.client.text_document_inline_completion_async(params)
        return list(getattr(answer, "items", answer) or [])

    async def whole(self, uri: str, line: int, character: int) -> str:
        """The text of a suggestion up to its end, however long that takes."""
        [item] = (await self.stream("whole", uri, line, character)).items
        return str(item.insertText)

    def inline_params(
        self, uri: str, line: int, character: int, **context: Any
    ) -> t.InlineCompletionParams:
        """Parameters of an automatic request, or another where the context says so."""
        context.setdefault("trigger_kind", t.InlineCompletionTriggerKind.Automatic)
        return t.InlineCompletionParams(
            text_document=t.TextDocumentIdentifier(uri),
            position=t.Position(line, character),
            context=t.InlineCompletionContext(**context),
        )

    def stream(
        self, stream_id: str, uri: str, line: int, character: int, kind: int = 2, **more: Any
    ) -> Any:
        """completionLs/streamInlineCompletion; sent at once, returns a future. `kind` 1: by hand."""
        future = self.client.protocol.send_request(
            messages.STREAM_INLINE_COMPLETION,
            {
                "streamId": stream_id,
                "textDocument": {"uri": uri},
                "position": {"line": line, "character": character},
                "context": {"triggerKind": kind},
            },
            **more,
        )
        return asyncio.wrap_future(future)


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait for a condition; the time is generous, since it only bounds a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def window(
    environment: dict[str, str],
    *arguments: str,
    program: Path | None = None,
) -> AsyncIterator[Window]:
    """A client with a server process of its own (that of a program), not yet initialized."""
    own = (sys.executable, "-m", "completion_ls")
    client = make_test_lsp_client()
    found = Window(client, environment)
    await client.start_io(
        *((str(program),) if program else own),
        "--stdio",
        *arguments,
        # What the default model writes in a test is seldom what it is sure of.
        env={**os.environ, "COMPLETION_LS_COMPLETION__SHOW_ABOVE": "0", **environment},
    )
    try:
        yield found
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.shutdown_session(), 10)
        await client.stop()
