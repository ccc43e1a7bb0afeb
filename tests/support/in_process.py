"""A window and the engine's daemon in one process and one thread: no sockets, and no race.

Everything but the transports is the real thing. The daemon moves when it is told to, one turn of
its loop at a time, so that a history of calls always goes the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lsprotocol import types
from pygls.exceptions import JsonRpcRequestCancelled
from tokenizers import Tokenizer

from completion_ls.config.settings import EngineSettings, Settings
from completion_ls.daemon.load import Loaded, end_of_text_ids
from completion_ls.daemon.worker import Outgoing, Published, Worker
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Event, Job
from completion_ls.engines.llama import Llama
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.lsp import server as lsp
from completion_ls.lsp.documents import DocumentWorkspace
from completion_ls.lsp.items import inline_items
from completion_ls.lsp.situation import Situation
from completion_ls.lsp.suggester import Suggester
from completion_ls.lsp.suggestion import Line
from completion_ls.prompt.build import PromptBuilder
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import (
    AnsweredWithoutPass,
    Cancel,
    Complete,
    Message,
    Ping,
    Pong,
    Promote,
    Ready,
)

KV_MB = 1
"""Room for two or three sequences of the trained model, so that some are dropped."""
CHUNK = 32
MOST_TURNS = 5000


@dataclass(frozen=True)
class Model:
    """A model's folder, its weights, and how prompts are made for it."""

    folder: Path
    weights: Llama
    format: str

    @classmethod
    def read(cls, folder: Path, format: str) -> Model:
        """Load it once; engines are made around the weights."""
        torch.set_num_threads(1)
        return cls(folder, Llama.read(folder), format)

    def tokenizer(self) -> Tokenizer:
        """A new one."""
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))


@dataclass
class Output:
    """What an engine produced for a job; the first `first` tokens came with the prefill."""

    job: Job
    tokens: list[int]
    first: int = 0


class NotedEngine(TorchCpuEngine):
    """The engine, with a note of all that it produced. `turned` is called behind every step."""

    def __init__(self, model: Model, context: int) -> None:
        # Less memory than the settings allow, for a model as small as this.
        settings = EngineSettings.model_construct(kv_memory_mb=KV_MB, prefill_chunk=CHUNK)
        super().__init__(model.weights, settings, context, Vocabulary(model.tokenizer()))
        self.outputs: dict[int, Output] = {}
        self.turned: Callable[[], None] = lambda: None

    def add(self, job: Job) -> None:
        super().add(job)
        self.outputs[job.id] = Output(job, [])

    def step(self) -> list[Event]:
        try:
            events = super().step()
        finally:
            self.turned()
        for event in events:
            output = self.outputs[event.job_id]
            output.first = output.first or len(event.tokens)
            output.tokens += event.tokens
        return events


class Daemon:
    """The worker without its thread."""

    def __init__(self, model: Model, settings: Settings, context: int = 1024) -> None:
        self.engine = NotedEngine(model, context)
        ends = end_of_text_ids(model.folder)
        prompts = PromptBuilder(model.tokenizer(), model.format, ends)
        self._loaded = Loaded("trained", self.engine, model.tokenizer(), prompts)
        self.worker = Worker(DaemonConfig.of(settings), self._publish)
        self.engine.turned = self.worker.close
        self._peers: dict[Hashable, Callable[[Message], None]] = {}

    def attach(self, name: Hashable, receive: Callable[[Message], None]) -> None:
        """Tell a peer what is for it."""
        self._peers[name] = receive
        receive(Ready(model="trained", max_context=self.engine.max_context))

    def turn(self) -> bool:
        """One turn of the worker's loop: look into the inbox, and one step of the engine. False
        where there was nothing to do."""
        if not self.worker._inbox and not self.worker._jobs and not self.engine.stats().jobs_active:
            return False
        self.worker._closing = False
        self.worker._serve(self._loaded)
        return True

    def _publish(self, published: Published) -> None:
        assert isinstance(published, Outgoing), published
        if published.peer in self._peers:
            self._peers[published.peer](published.message)


class Link:
    """A connection of a front with the daemon, as `EngineClient` uses one."""

    def __init__(self, daemon: Daemon, name: Hashable) -> None:
        self._worker = daemon.worker
        self._name = name
        self._arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        daemon.attach(name, self._arrived.put_nowait)

    def send(self, message: Message) -> None:
        match message:
            case Complete():
                self._worker.submit(self._name, message)
            case Cancel():
                self._worker.cancel(self._name, message.id, complete=message.complete)
            case Promote():
                self._worker.promote(self._name, message.id)
            case AnsweredWithoutPass():
                self._worker.answered_without_pass(self._name)
            case Ping():  # where the machine is slow
                self._arrived.put_nowait(Pong())
            case _:
                raise AssertionError(f"the front sent {message.type}")

    async def receive(self) -> Message | None:
        return await self._arrived.get()

    def close(self) -> None:
        self._worker.cancel_all(self._name)


class LinkedClient(EngineClient):
    """The client of a daemon in this process."""

    def __init__(self, daemon: Daemon, settings: Settings) -> None:
        super().__init__(DaemonConfig.of(settings))
        self._link = Link(daemon, "front")

    async def _attach(self) -> None:
        self._connection: Any = self._link
        self._receiving = asyncio.create_task(self._receive(self._connection))
        self._attaching = None

    @property
    def waits(self) -> bool:
        """Whether an answer has not ended."""
        return bool(self._answers)


@dataclass(frozen=True)
class Ghost:
    """Text with LF line ends that takes the place of `replaced` code units right of the cursor."""

    text: str
    replaced: int


class Request:
    """An inline completion that was asked for, and what came of it."""

    def __init__(self, front: Front, uri: str, position: types.Position, manual: bool) -> None:
        self.partials: list[Ghost] = []
        self._most = 3 if manual else 1
        kind = types.InlineCompletionTriggerKind
        context = types.InlineCompletionContext(kind.Invoked if manual else kind.Automatic)

        def grown(item: types.InlineCompletionItem) -> None:
            self.partials.append(_ghost(item))

        work = inline_items(front.server, uri, position, context, grown)
        self._task = front.loop.create_task(work)

    def cancel(self) -> None:
        """$/cancelRequest"""
        self._task.cancel()

    @property
    def ended(self) -> bool:
        """Whether it has its one reply."""
        return self._task.done()

    @property
    def answered(self) -> bool:
        """Whether that is a result: what was cancelled, or has no longer its document, has none."""
        if self._task.cancelled():
            return False
        error = self._task.exception()
        if isinstance(error, JsonRpcRequestCancelled):
            return False
        if error:
            raise error
        return True

    @property
    def ghost(self) -> Ghost | None:
        """The result; alternatives to it are not looked at."""
        items = self._task.result()
        assert len(items) <= self._most
        assert len({str(item.insert_text) for item in items}) == len(items)
        return _ghost(items[0]) if items else None


class Front:
    """A window's server, without pygls's transport."""

    def __init__(self, daemon: Daemon, settings: Settings) -> None:
        self.loop = asyncio.new_event_loop()
        self.daemon = daemon
        self.server = lsp.CompletionServer()
        self.server.protocol._workspace = DocumentWorkspace(
            None, position_encoding=types.PositionEncodingKind.Utf16
        )
        self.server.settings = settings
        self.server.notices = _Notices()  # type: ignore[assignment]
        self.loop.run_until_complete(self._attach(settings))

    async def _attach(self, settings: Settings) -> None:
        self.server.first = self.client = LinkedClient(self.daemon, settings)
        self.server.suggester = Suggester(self.client, settings)
        await self.client._attached()
        await asyncio.sleep(0)

    def weigh_nothing(self) -> None:
        """Answer who asks by hand as others."""

        async def none(place: Situation) -> list[Line]:
            return []

        assert self.server.suggester
        self.server.suggester._generator.ways = none  # type: ignore[method-assign]

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run a handler of the server on its loop."""

        async def run() -> None:
            function(self.server, *arguments)

        self.loop.run_until_complete(run())

    def open(self, uri: str, language: str, text: str) -> None:
        """textDocument/didOpen"""

        def handle(server: lsp.CompletionServer) -> None:
            server.workspace.put_text_document(types.TextDocumentItem(uri, language, 1, text))
            server.in_view(uri, None)

        self.call(handle)

    def change(self, uri: str, start: types.Position, end: types.Position, text: str) -> None:
        """textDocument/didChange"""
        change = types.TextDocumentContentChangePartial(types.Range(start, end), text)

        def handle(server: lsp.CompletionServer) -> None:
            name = types.VersionedTextDocumentIdentifier(2, uri)
            server.workspace.update_text_document(name, change)
            lsp.follow_change(server, uri, [change])

        self.call(handle)

    def close(self, uri: str) -> None:
        """textDocument/didClose"""

        def handle(server: lsp.CompletionServer) -> None:
            server.workspace.remove_text_document(uri)
            lsp.forget(server, uri)

        self.call(handle)

    def show(self, uri: str, position: types.Position) -> None:
        """completionLs/didShowDocument"""
        self.call(lambda server: server.in_view(uri, position))

    def settle(self) -> None:
        """Let everything happen in the front that can happen now."""
        self.loop.run_until_complete(self._settle())

    async def _settle(self) -> None:
        await asyncio.sleep(0)
        while self.loop._ready:  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    def work(self, turns: int = MOST_TURNS, until: Callable[[], bool] = lambda: False) -> None:
        """Have the daemon work, and the front hear of it, for so many turns, or until nothing is
        left to do."""
        self.settle()
        for _ in range(turns):
            if until() or not self.daemon.turn():
                return
            self.settle()
        assert turns < MOST_TURNS, "the daemon works for ever"

    def end(self) -> None:
        """Hang up."""
        self.loop.run_until_complete(self.server.close())
        self.loop.run_until_complete(self._settle())
        self.loop.close()


class _Notices:
    def show(self, text: str, type: object = None) -> None:
        raise AssertionError(f"the user was told: {text}")

    def forget(self, text: str) -> None:
        pass


def _ghost(item: types.InlineCompletionItem) -> Ghost:
    assert isinstance(item.insert_text, str) and item.range
    assert item.range.start.line == item.range.end.line
    replaced = item.range.end.character - item.range.start.character
    return Ghost(item.insert_text.replace("\r\n", "\n"), replaced)
