"""The language server: thin feature functions; what they do lies in the modules beside."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from lsprotocol import types
from pygls.exceptions import FeatureRequestError, JsonRpcException
from pygls.lsp.server import LanguageServer

from completion_ls import __version__
from completion_ls.config.settings import Settings
from completion_ls.config.sources import resolve
from completion_ls.context.surroundings import Surroundings
from completion_ls.lsp import messages
from completion_ls.lsp.counts import Counts
from completion_ls.lsp.documents import Document, DocumentWorkspace, Place, clean, key_of
from completion_ls.lsp.fallback import Fallback
from completion_ls.lsp.first_answer import EDITOR_SOURCE, SERVER_NAME
from completion_ls.lsp.items import completion_items, inline_items, stream_items
from completion_ls.lsp.notices import Notices
from completion_ls.lsp.occasion import has_enough_text
from completion_ls.lsp.offers import Offers
from completion_ls.lsp.others import Others
from completion_ls.lsp.progress import LoadingProgress
from completion_ls.lsp.protocol import Protocol
from completion_ls.lsp.situation import MOST_CLOSERS, Situation, window
from completion_ls.lsp.state import EngineState
from completion_ls.lsp.suggester import Suggester
from completion_ls.wire.client import EngineClient, Watcher
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Reach, Ready

log = logging.getLogger(__name__)

CONFIGURATION_SECTION = "completion-ls"
CONFIGURATION_SOURCE = "workspace/didChangeConfiguration"
SWITCH_S = 1.0
UNREACHABLE = "unreachable"
"""Of the sentences on a server that cannot be reached, one is shown until it has answered again."""
CLOSERS = ")]}>\"'`"


class CompletionServer(LanguageServer):
    """One editor window's server."""

    protocol: Protocol

    def __init__(self) -> None:
        self.notices = Notices(self)  # the protocol, made by pygls, needs it
        super().__init__(
            SERVER_NAME,
            __version__,
            notebook_document_sync=types.NotebookDocumentSyncOptions(
                notebook_selector=[types.NotebookDocumentFilterWithNotebook(notebook="*")]
            ),
            protocol_cls=Protocol,
        )
        self.loading = LoadingProgress(self)
        self.state = EngineState(self)
        self.counts = Counts()
        self.offers = Offers(self.counts)
        self.settings = Settings()
        self.others = Others(
            workspace=lambda: self.workspace,
            resting_place=lambda document: resting_place(document, self.window),
            warm=self.warm_up_with,
            settled=self.warm_up,
            tell=lambda text: self.notices.show(text, types.MessageType.Error),
        )
        self.suggester: Suggester | None = None
        self.first: EngineClient | None = None
        """The engine that the settings name; requests go to another while its server cannot be reached."""
        self.fallback = Fallback(self)
        self._trouble = ""
        """Why the first engine does not answer; empty where it does."""
        self.editor_settings: dict[str, object] = {}
        self._in_view = ""
        self._switching: asyncio.TimerHandle | None = None
        self._running: dict[tuple[str, str], asyncio.Task[object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, params: types.InitializeParams) -> None:
        """Take over pygls's workspace; settings and engine wait for `initialized`."""
        workspace = self.protocol.workspace
        folders = params.workspace_folders
        if folders is None and workspace.root_uri:
            # An older client; one that removes its last folder is to have none.
            folders = [types.WorkspaceFolder(workspace.root_uri, "")]
        self.protocol._workspace = DocumentWorkspace(
            workspace.root_uri,
            self._text_document_sync_kind,
            folders or [],
            workspace.position_encoding,
        )
        self.editor_settings[EDITOR_SOURCE] = params.initialization_options
        self.offers.is_told = self.client_says(messages.SUGGESTION_USE)

    def configure(self) -> None:
        """Read all settings again, and attach to another daemon where they ask for one."""
        before = self.settings
        self.settings, problems = resolve(list(self.editor_settings.items()))
        for problem in problems:
            self.notices.show(str(problem), types.MessageType.Error)
        logging.getLogger("completion_ls").setLevel(self.settings.server.log_level.upper())
        if self.suggester is None or self.first is None:
            self.others.configure(self.settings)
            self.first = self._new_engine(DaemonConfig.of(self.settings))
            self.suggester = Suggester(self.first, self.settings, self.others.files)
            self.first.warm_up()
        elif self.settings != before:
            if not self.fallback.settle(self._trouble):
                self.use(self.first, self.settings)
            if self._switching:
                self._switching.cancel()
            # A moment later: a settings page may send each key of a number that is being typed.
            self._switching = asyncio.get_running_loop().call_later(SWITCH_S, self._switch_engine)

    def _switch_engine(self) -> None:
        """Attach to another daemon, where the settings ask for one."""
        assert self.first is not None
        old, config = self.first, DaemonConfig.of(self.settings)
        if not old.config.shares_daemon_with(config):
            self.first, self._trouble = self._new_engine(config), ""
            self.notices.forget(UNREACHABLE)
            self.fallback.settle(self._trouble)
            self.use(self.first, self.settings)
            self.first.warm_up()
            self.run_task(old.leave())

    def use(self, engine: EngineClient, settings: Settings) -> None:
        """Have requests go to an engine from now on, with these settings."""
        assert self.suggester is not None
        self.others.configure(settings)
        self.suggester.change(engine=engine, settings=settings)

    def client_says(self, capability: str) -> bool:
        """Whether the client has one of our own capabilities."""
        experimental = self.client_capabilities.experimental
        own = experimental.get(messages.CAPABILITIES) if isinstance(experimental, dict) else None
        return isinstance(own, dict) and own.get(capability) is True

    def configured(self) -> Suggester:
        """The suggester; made now for a client that never sends `initialized`."""
        if self.suggester is None:
            self.configure()
        assert self.suggester is not None
        return self.suggester

    def run_task(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine beside the messages, and keep it from being collected."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("a task failed: %s", type(error).__name__)

    def report_server_error(self, error: Exception, source: object) -> None:
        """Where pygls would show each error in a window of its own, ours goes to the log. (Those of
        requests are in their responses.)"""
        if source is not FeatureRequestError:
            log.warning("a message could not be handled: %s", type(error).__name__)

    async def close(self) -> None:
        """Hang up on the daemon, and write what was counted."""
        if self._switching:
            self._switching.cancel()
        self.others.close()
        self.offers.close()
        await self.counts.close()
        if self.suggester:
            self.suggester.end_all()
        await self.fallback.close()
        if self.first:
            await self.first.close()

    def supersede(self, kind: str, uri: str) -> None:
        """Make the running handler the only one of its kind for a document; an older one is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        older = self._running.get((kind, uri))
        self._running[kind, uri] = task
        task.add_done_callback(lambda done: self._forget(kind, uri, done))
        if older and older is not task:
            older.cancel()

    def document(self, uri: str) -> Document | None:
        """An open document; the user hears of it where an editor asks about another one."""
        found = self.workspace.text_documents.get(unquote(uri))
        if isinstance(found, Document):
            return found
        text = f"The editor asked about a document that it has not opened: {_name(uri)}"
        self.notices.show(text, once="not opened")
        return None

    def is_current(self, document: Document, edits: int) -> bool:
        """Whether a document is still open and as it was after so many edits."""
        now = self.workspace.text_documents.get(unquote(document.uri))
        return now is document and document.edits == edits

    def situation(
        self,
        document: Document,
        start: Place,
        end: Place,
        *,
        head: str = "",
        manual: bool = False,
    ) -> Situation:
        """The text before `start` and after `end` (the cursor, twice, as a rule), as if `head`
        had been typed between them."""
        limit = self.window
        before = clean(document.before(start, limit)) + head
        cursor = start.behind(head)
        return Situation(
            uri=key_of(document.uri),
            line=cursor.line,
            column=cursor.column,
            before=before[-limit:],
            after=clean(document.after(end, limit)),
            limit=limit,
            context=clean(self._cells_above(document.uri, limit)),
            head=head,
            language=document.language_id or "",
            manual=manual,
        )

    def in_view(self, uri: str, position: types.Position | None) -> None:
        """The user looks at a document now, at a position where the editor knows it."""
        self._in_view = unquote(uri)
        document = self.workspace.text_documents.get(self._in_view)
        if position and isinstance(document, Document):
            document.cursor = document.locate(position)
        if isinstance(document, Document) and not self.others.shown(document):
            self.warm_up(document)

    def warm_up(self, document: Document) -> None:
        """Have the prompt computed for the place in a document where the next key probably comes.
        Without an engine that is ready this does nothing, and is called again when it is."""
        if self.suggester is None:
            return
        place = resting_place(document, self.window)
        situation = self.situation(document, place, place)
        if has_enough_text(situation):
            self.suggester.warm_up(situation)

    def warm_up_with(
        self, document: Document, others: Surroundings, done: Callable[[], None]
    ) -> bool:
        """Have the prompt of a document computed with other files than it has now; `done` is called
        when it is. False where nothing is worked on ahead."""
        if self.suggester is None:
            return False
        place = resting_place(document, self.window)
        return self.suggester.warm_up_with(self.situation(document, place, place), others, done)

    @property
    def window(self) -> int:
        """Most characters of the text on each side of a cursor."""
        settings = self.fallback.settings or self.settings
        return window(settings.prompt.max_tokens)

    def _cells_above(self, uri: str, limit: int) -> str:
        """The code cells above a notebook cell, or nothing for a plain document."""
        notebook = self.workspace.get_notebook_document(cell_uri=uri)
        if notebook is None:
            return ""
        above: list[str] = []
        for cell in notebook.cells:
            if unquote(cell.document) == unquote(uri):
                break
            text = self.workspace.text_documents.get(unquote(cell.document))
            if cell.kind == types.NotebookCellKind.Code and text is not None:
                above.append(text.source.rstrip("\r\n") + "\n\n")
        return "".join(above)[-limit:]

    def _new_engine(self, config: DaemonConfig) -> EngineClient:
        troubles: set[str] = set()

        def loading(text: str, fraction: float) -> None:
            # It may be waiting for its server; then that is said already.
            if not client.unreachable and self.fallback.settings is None:
                self.loading.report(text, fraction)
                self.state.loading(text, fraction)

        def ready(_: Ready) -> None:
            while troubles:
                self.notices.forget(troubles.pop())
            self._settle(client, client.unreachable)  # it is loaded also where its server is away

        completed = -1

        def reach(reach: Reach) -> None:
            nonlocal completed
            if not reach.ok:
                # One that is there for a trial, and fails at what the user asks for, is no news.
                if client.completed > completed:
                    self.notices.forget(UNREACHABLE)
                completed = client.completed
                name = self.settings.remote.fallback
                own = f" Meanwhile the profile {name!r} answers, on this machine." if name else ""
                self.notices.show(f"{reach.text}{own}", once=UNREACHABLE)
                self._settle(client, reach.text)
            elif client.ready:
                self._settle(client, "")

        def failed(text: str) -> None:
            troubles.add(text)
            self.notices.show(text, types.MessageType.Error)
            self._settle(client, text)

        client = EngineClient(config, Watcher(loading, ready, failed, reach))
        return client

    def _settle(self, engine: EngineClient, trouble: str) -> None:
        """The first engine answers, or it does not, for this reason: who is asked, and what is shown."""
        self._trouble = trouble
        if self.fallback.settle(trouble):
            return
        self.loading.end("failed" if trouble else "ready")
        if trouble:
            self.state.failed(trouble)
        elif engine.ready:
            self.state.ready(engine.ready.model)
            self.warm_up_view()

    def warm_up_view(self) -> None:
        """The engine answers (again): have it read the document that the user looks at."""
        document = self.workspace.text_documents.get(self._in_view)
        if isinstance(document, Document):
            self.warm_up(document)

    def _forget(self, kind: str, uri: str, task: asyncio.Task[object]) -> None:
        if self._running.get((kind, uri)) is task:
            del self._running[kind, uri]


def create_server() -> CompletionServer:
    """A server with all its features."""
    server = CompletionServer()

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.begin(params)

    @server.feature(types.INITIALIZED)
    def initialized(_: types.InitializedParams) -> None:
        server.configure()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def configuration_changed(params: types.DidChangeConfigurationParams) -> None:
        await change_configuration(server, params)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def folders_changed(_: types.DidChangeWorkspaceFoldersParams) -> None:
        server.others.start_anew()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.in_view(params.text_document.uri, None)

    @server.feature(messages.DID_SHOW_DOCUMENT)
    def came_into_view(params: messages.DidShowDocumentParams) -> None:
        if server.suggester:
            server.suggester.engine.came_into_view()
        server.in_view(params.textDocument.uri, params.position)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        follow_change(server, params.text_document.uri, params.content_changes)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        forget(server, params.text_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_changed(params: types.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        for change in (cells and cells.text_content) or []:
            follow_change(server, change.document.uri, change.changes)
        for closed_cell in (cells and cells.structure and cells.structure.did_close) or []:
            forget(server, closed_cell.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(params: types.DidCloseNotebookDocumentParams) -> None:
        for cell in params.cell_text_documents:
            forget(server, cell.uri)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def inline_completion(
        params: types.InlineCompletionParams,
    ) -> types.InlineCompletionList | None:
        items = await inline_items(
            server, params.text_document.uri, params.position, params.context
        )
        return types.InlineCompletionList(items=items)

    @server.feature(messages.STREAM_INLINE_COMPLETION)
    async def stream(params: messages.StreamInlineCompletionParams) -> object:
        return await stream_items(server, params)

    @server.feature(messages.ENGINE_REPORT)
    async def engine_report(_: messages.EngineReportParams | None) -> messages.EngineReport:
        return await server.state.report()

    @server.feature(messages.DID_USE_SUGGESTION)
    def used(params: messages.DidUseSuggestionParams) -> None:
        server.offers.used(params.suggestion, params.action, params.characters)

    @server.command(messages.ACCEPTED)
    def accepted(*given: str) -> None:  # or anything else; pygls takes an `object` for the server
        server.offers.used(given[0] if given else None, "accept", None)

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions())
    async def completion(params: types.CompletionParams) -> types.CompletionList | None:
        return await completion_items(server, params)

    return server


async def change_configuration(
    server: CompletionServer, params: types.DidChangeConfigurationParams
) -> None:
    """Take the settings that came with the notification, or ask for them where none came."""
    settings = params.settings
    workspace = server.client_capabilities.workspace
    if not settings and workspace and workspace.configuration:
        asked = types.ConfigurationParams([types.ConfigurationItem(section=CONFIGURATION_SECTION)])
        try:
            answer = await server.workspace_configuration_async(asked)
        except JsonRpcException as error:
            # Not the text of the error, which is the editor's.
            log.warning("the editor does not tell its settings: %s", type(error).__name__)
            return
        settings = answer[0] if answer else None
    if server.client_says(messages.WHOLE_SETTINGS):
        server.editor_settings.clear()
    server.editor_settings[CONFIGURATION_SOURCE] = settings
    server.configure()


def follow_change(
    server: CompletionServer,
    uri: str,
    changes: Sequence[types.TextDocumentContentChangeEvent],
) -> None:
    """End a suggestion that a change disagrees with. The cursor is taken to be behind the change, or
    before closers at its end: editors insert "()" at once and stay between the two."""
    document = server.workspace.text_documents.get(unquote(uri))
    if isinstance(document, Document):
        server.others.used(document)
    if server.suggester is None or not isinstance(document, Document) or not changes:
        return
    partial = [one for one in changes if isinstance(one, types.TextDocumentContentChangePartial)]
    if len(partial) < len(changes):
        server.suggester.forget(key_of(uri))
        return
    change = partial[-1]  # Neovim gathers what is typed fast
    text = re.sub("\r\n?", "\n", change.text)
    begin = document.locate(change.range.start)
    document.cursor = end = begin.behind(text)
    closers = min(MOST_CLOSERS, len(text) - len(text.rstrip(CLOSERS)))
    places = [Place(end.line, end.column - back) for back in range(closers + 1)]
    server.offers.changed(document, begin, places, len(text))
    if not server.suggester.follows(key_of(uri)):
        return  # nothing to end: spare the windows of text
    situations = [server.situation(document, place, place) for place in places]
    server.suggester.changed(situations, len(text))


def forget(server: CompletionServer, uri: str) -> None:
    """A document was closed."""
    server.others.closed(uri)
    server.offers.forget(uri)
    if server.suggester:
        server.suggester.close(key_of(uri))


def resting_place(document: Document, window: int) -> Place:
    """Where the next key of a document comes that was left, or just opened: where the last change
    or request was, else at the end of a short text and at the start of a long one."""
    if document.cursor:
        return document.cursor
    end = document.end
    return end if len(document.before(end, window)) < window else Place(0, 0)


def _name(uri: str) -> str:
    return PurePosixPath(unquote(uri)).name
