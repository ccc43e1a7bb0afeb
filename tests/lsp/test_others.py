"""Context from other files, as it goes to the engine: what arrives, what never does, and when it changes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lsprotocol import types as t
from pygls.workspace import Workspace

from completion_ls.config.settings import CompletionSettings, ContextSettings, Settings
from completion_ls.context.library import Library
from completion_ls.lsp import ahead, others, suggester
from completion_ls.lsp import server as lsp
from completion_ls.lsp.documents import DocumentWorkspace
from completion_ls.lsp.items import inline_items
from completion_ls.prompt.build import FILES_SHARE
from completion_ls.wire.messages import Complete
from support.scripted_daemon import Script
from support.session import ScriptedEngine, settle
from support.window import Window, until, window

SHAPES = '''\
def perimeter(width, height):
    """The length of all sides."""
    return 2 * (width + height)
'''
COLOURS = '''\
def mixed(first, second):
    """The colour between two colours."""
    return (first + second) / 2
'''
MAIN = "from shapes import perimeter\n\n\ndef total(room):\n    return "
OTHER = "\n" * 40 + "from colours import mixed\n\n\ndef blend(one, two):\n    return mixed("


class Editor:
    """A window's server, without a transport, on an engine that a test speaks for."""

    def __init__(self, folders: list[Path], settings: Settings) -> None:
        self.engine = ScriptedEngine()
        self.server = lsp.CompletionServer()
        self.server.protocol._workspace = DocumentWorkspace(
            None,
            workspace_folders=[t.WorkspaceFolder(one.as_uri(), one.name) for one in folders],
            position_encoding=t.PositionEncodingKind.Utf16,
        )
        self.server.settings = settings
        self.server.others.configure(settings)
        self.server.suggester = suggester.Suggester(self.engine, settings, self.server.others.files)

    def open(self, file: Path | str, text: str, language: str = "python") -> str:
        uri = file if isinstance(file, str) else file.as_uri()
        self.server.workspace.put_text_document(t.TextDocumentItem(uri, language, 1, text))
        self.server.in_view(uri, None)
        return uri

    def type(self, uri: str, text: str) -> None:
        """At the end of a document."""
        document = self.server.workspace.text_documents[uri]
        assert isinstance(document, lsp.Document)
        end = document.position(document.end)
        change = t.TextDocumentContentChangePartial(t.Range(end, end), text)
        name = t.VersionedTextDocumentIdentifier(2, uri)
        self.server.workspace.update_text_document(name, change)
        lsp.follow_change(self.server, uri, [change])

    async def ask(self, uri: str) -> Complete:
        """The request of a key at the end of a document, which is answered with nothing."""
        document = self.server.workspace.text_documents[uri]
        assert isinstance(document, lsp.Document)
        context = t.InlineCompletionContext(t.InlineCompletionTriggerKind.Automatic)
        end = document.position(document.end)
        work = asyncio.create_task(inline_items(self.server, uri, end, context))
        job = len(self.engine.requests)
        await until(lambda: self.keys(job))
        [number] = self.keys(job)
        self.engine.finish(number)
        await work
        return self.engine.requests[number]

    def keys(self, since: int = 0) -> list[int]:
        """The numbers of the requests that are no work ahead."""
        lanes = enumerate(self.engine.lanes[since:], since)
        return [number for number, lane in lanes if lane != "background"]

    async def looked(self) -> None:
        """Wait until nothing is being looked for, nor waits for it."""
        found = self.server.others
        await until(lambda: not (found._looking or found._timer or found._again))
        await settle()

    @property
    def last(self) -> Complete:
        return self.engine.requests[-1]


def paths(request: Complete) -> list[str]:
    return [file.path for file in request.files]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "PAUSE_S", 0.02)
    monkeypatch.setattr(ahead, "QUIET_S", 1000.0)
    monkeypatch.setattr(suggester, "LINGER_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "shapes.py").write_text(SHAPES)
    (made / "colours.py").write_text(COLOURS)
    return made


def settings(*, ahead: bool = True, tokens: int = 2048, **context: object) -> Settings:
    chosen = Settings(
        context=ContextSettings.model_validate(context), completion=CompletionSettings(ahead=ahead)
    )
    prompt = chosen.prompt.model_copy(update={"max_tokens": tokens})
    return chosen.model_copy(update={"prompt": prompt})


ONE_CHUNK = 180
"""Tokens of a prompt in which one of the two definitions has room."""


@pytest.fixture
async def editor(folder: Path) -> AsyncIterator[Editor]:
    found = Editor([folder], settings(tokens=ONE_CHUNK))
    yield found
    await found.server.close()


async def test_the_first_choice_is_there_before_the_warm_up(editor: Editor, folder: Path) -> None:
    editor.open(folder / "main.py", MAIN)
    await until(lambda: editor.engine.requests)
    [request] = editor.engine.requests
    assert request.lane == "background"
    assert (request.repository, request.path) == ("work", "main.py")
    assert [(file.path, file.text) for file in request.files] == [("shapes.py", SHAPES)]


async def test_keys_have_the_same_files_as_the_warm_up(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "main.py", MAIN)
    await until(lambda: editor.engine.requests)
    warm = editor.last
    for key in "perimeter(room":
        editor.type(uri, key)
        request = await editor.ask(uri)
        assert (request.repository, request.path) == ("work", "main.py")
        assert request.files == warm.files
        await editor.looked()


async def test_a_key_takes_what_is_there(editor: Editor, folder: Path) -> None:
    go_on = threading.Event()
    editor.server.others._thread = ThreadPoolExecutor(1)
    editor.server.others._thread.submit(go_on.wait)
    uri = editor.open(folder / "main.py", MAIN)
    assert paths(await editor.ask(uri)) == []
    go_on.set()
    await editor.looked()
    # It had a request without: the prompt with the files is computed first.
    assert paths(editor.last) == ["shapes.py"]
    assert editor.last.lane == "background"


async def test_a_change_waits_until_its_prompt_is_computed(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    editor.type(uri, OTHER)
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    await editor.looked()
    assert (editor.last.lane, paths(editor.last)) == ("background", ["colours.py"])
    # A key comes before it is: the old files, and the work ahead is given up.
    given_up = len(editor.engine.requests) - 1
    editor.type(uri, "o")
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    assert (given_up, False) in editor.engine.cancels
    await editor.looked()
    # The user has paused again.
    assert (editor.last.lane, paths(editor.last)) == ("background", ["colours.py"])
    editor.engine.finish(len(editor.engine.requests) - 1)
    await settle()
    editor.type(uri, "n")
    assert paths(await editor.ask(uri)) == ["colours.py"]


async def test_without_work_ahead_it_changes_when_the_user_pauses(folder: Path) -> None:
    editor = Editor([folder], settings(ahead=False, tokens=ONE_CHUNK))
    uri = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    editor.type(uri, OTHER)
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    await editor.looked()
    editor.type(uri, "o")
    assert paths(await editor.ask(uri)) == ["colours.py"]
    assert "background" not in editor.engine.lanes
    await editor.server.close()


async def test_what_a_setting_excludes_is_gone_at_once(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    editor.type(uri, "p")
    editor.server.others.configure(settings(tokens=ONE_CHUNK, exclude=["shapes.py"]))
    assert paths(await editor.ask(uri)) == []
    await editor.looked()
    assert not any("perimeter(width" in file.text for file in editor.last.files)


async def test_patterns_that_come_while_the_old_ones_are_read(
    editor: Editor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_thread, go_on = threading.Event(), threading.Event()

    class Slow(Library):
        def __init__(self, folders: Sequence[Path], exclude: Sequence[str]) -> None:
            in_thread.set()
            assert go_on.wait(60)
            super().__init__(folders, exclude)

    monkeypatch.setattr("completion_ls.context.library.Library", Slow)
    uri = editor.open(folder / "main.py", MAIN)
    await asyncio.to_thread(in_thread.wait, 60)
    editor.server.others.configure(settings(tokens=ONE_CHUNK, exclude=["shapes.py"]))
    go_on.set()
    await editor.looked()
    assert not any("shapes.py" in paths(one) for one in editor.engine.requests)
    assert "shapes.py" not in paths(await editor.ask(uri))


async def test_what_is_chosen_late_warms_up_the_document_that_is_edited_now(
    editor: Editor, folder: Path
) -> None:
    go_on = threading.Event()
    edited = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    editor.open(folder / "shapes.py", SHAPES)
    await editor.looked()
    editor.server.others._held.clear()
    assert editor.server.others._thread
    editor.server.others._thread.submit(go_on.wait)
    editor.type(edited, "p")  # the client does not say that the user has come back
    before = len(editor.engine.requests)
    go_on.set()
    await editor.looked()
    assert [one.document for one in editor.engine.requests[before:]] == [edited]


async def test_a_document_that_was_left_waits_for_its_new_files(
    editor: Editor, folder: Path
) -> None:
    uri = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    await editor.looked()
    go_on = threading.Event()
    assert editor.server.others._thread
    editor.server.others._thread.submit(go_on.wait)
    editor.type(uri, OTHER)
    await until(lambda: editor.server.others._looking)
    editor.open(folder / "shapes.py", SHAPES)  # the user has left meanwhile
    before = len(editor.engine.requests)
    go_on.set()
    await editor.looked()
    assert uri not in [one.document for one in editor.engine.requests[before:]]
    editor.server.in_view(uri, None)
    await editor.looked()
    assert (editor.last.document, paths(editor.last)) == (uri, ["colours.py"])


async def test_nothing_is_looked_for_behind_the_end(editor: Editor, folder: Path) -> None:
    go_on = threading.Event()
    editor.server.others._thread = ThreadPoolExecutor(1)
    uri = editor.open(folder / "main.py", MAIN)
    editor.server.others._thread.submit(go_on.wait)
    editor.server.in_view(uri, None)  # while it is looked around already
    troubles: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
    await editor.server.close()
    go_on.set()
    await until(lambda: not editor.server.others._looking)
    await settle()
    assert troubles == []


async def test_an_open_document_is_read_as_it_stands_in_the_editor(folder: Path) -> None:
    editor = Editor([folder], settings())
    changed = SHAPES.replace("width", "breadth").replace("\n", "\r\n").replace("sides", "\ud800")
    editor.open(folder / "shapes.py", changed)
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    text = SHAPES.replace("width", "breadth").replace("sides", "\ufffd")
    assert [file.text for file in editor.last.files] == [text]
    await editor.server.close()


NO_SOURCES = [
    "untitled:Untitled-1",
    "vscode-notebook-cell:/project/a.ipynb#a",
    "git:/project/shapes.py",
]


@pytest.mark.parametrize("uri", NO_SOURCES)
async def test_what_has_no_file_is_no_source_and_gets_none(
    editor: Editor, folder: Path, uri: str
) -> None:
    (folder / "shapes.py").unlink()
    editor.open(uri, SHAPES)
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(editor.last) == []
    assert paths(await editor.ask(uri)) == []
    await editor.looked()
    assert paths(editor.last) == []


async def test_cells_of_a_notebook_with_file_names(editor: Editor, folder: Path) -> None:
    cell = (folder / "book.ipynb").as_uri() + "#cell-1"
    (folder / "shapes.py").unlink()
    editor.server.workspace.put_notebook_document(
        t.DidOpenNotebookDocumentParams(
            notebook_document=t.NotebookDocument(
                (folder / "book.ipynb").as_uri(),
                "jupyter-notebook",
                1,
                [t.NotebookCell(t.NotebookCellKind.Code, cell)],
            ),
            cell_text_documents=[t.TextDocumentItem(cell, "python", 1, SHAPES)],
        )
    )
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(editor.last) == []


@pytest.mark.parametrize("folders", [0, 1])
async def test_without_a_folder_there_is_nothing(folder: Path, folders: int) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    editor = Editor([elsewhere][:folders], settings())
    editor.open(folder / "shapes.py", SHAPES)
    uri = editor.open(folder / "main.py", MAIN)
    assert paths(await editor.ask(uri)) == []
    await editor.looked()
    assert all(request.files == [] for request in editor.engine.requests)
    await editor.server.close()


async def test_a_setting_turns_it_off(folder: Path) -> None:
    editor = Editor([folder], settings(files=False))
    uri = editor.open(folder / "main.py", MAIN)
    assert paths(await editor.ask(uri)) == []
    assert editor.server.others._thread is None
    await editor.server.close()


async def test_folders_that_come_and_go(folder: Path) -> None:
    editor = Editor([], settings())
    uri = editor.open(folder / "main.py", MAIN)
    workspace = editor.server.workspace
    workspace.add_folder(t.WorkspaceFolder(folder.as_uri(), "work"))
    editor.server.in_view(uri, None)
    await editor.looked()
    assert paths(editor.last) == ["shapes.py"]
    workspace.remove_folder(folder.as_uri())
    editor.server.others.start_anew()
    assert paths(await editor.ask(uri)) == []


async def test_patterns_that_come_while_the_first_look_is_under_way(
    editor: Editor, folder: Path
) -> None:
    go_on = threading.Event()
    editor.server.others._thread = ThreadPoolExecutor(1)
    editor.server.others._thread.submit(go_on.wait)
    uri = editor.open(folder / "main.py", MAIN)
    editor.server.others.configure(settings(tokens=ONE_CHUNK, exclude=["shapes.py"]))
    go_on.set()
    await editor.looked()
    editor.type(uri, "p")
    await editor.looked()
    assert not any("shapes.py" in paths(request) for request in editor.engine.requests)


@pytest.mark.parametrize(
    "junk",
    ["file:///tmp/a\ud800.py", "file:///tmp/a%00.py", "file:///" + "a" * 5000 + ".py", "file:"],
)
async def test_a_document_of_an_impossible_name_costs_nothing_else(
    editor: Editor, folder: Path, junk: str
) -> None:
    editor.server.workspace.add_folder(t.WorkspaceFolder(junk, "junk"))
    editor.open(junk, SHAPES)
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert paths(editor.last) == ["shapes.py"]


async def test_a_client_without_folders_has_its_root(folder: Path) -> None:
    for folders, expected in ((None, [folder]), ([], [])):
        server = lsp.CompletionServer()
        params = t.InitializeParams(
            t.ClientCapabilities(), root_uri=folder.as_uri(), workspace_folders=folders
        )
        server.protocol._workspace = Workspace(folder.as_uri(), workspace_folders=folders)
        server.protocol.client_capabilities = params.capabilities
        server.begin(params)
        assert server.others._folders() == expected
        server.workspace.remove_folder(folder.as_uri())
        assert server.others._folders() == []


async def test_a_pattern_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    editor = Editor([folder], settings(exclude=["shapes.py", "!"]))
    monkeypatch.setattr(editor.server.notices, "show", lambda text, _: told.append(text))
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    # Nothing rather than what the user did not want.
    assert paths(editor.last) == []
    assert "'context.exclude': '!'" in told[0]
    editor.server.others.configure(settings(exclude=["other.py"]))
    await editor.looked()
    assert paths(editor.last) == ["shapes.py"]
    await editor.server.close()


async def test_a_file_that_comes_to_be_ignored_is_gone_with_the_next_look(
    editor: Editor, folder: Path
) -> None:
    uri = editor.open(folder / "main.py", MAIN)
    editor.open(folder / "shapes.py", SHAPES)
    editor.server.in_view(uri, None)
    await editor.looked()
    assert paths(await editor.ask(uri)) == ["shapes.py"]
    (folder / ".gitignore").write_text("shapes.py\n")
    editor.type(uri, "p")
    await editor.looked()
    # No prompt without it has been computed.
    assert paths(await editor.ask(uri)) == []


async def test_closing_keeps_nothing_of_the_editors_text(editor: Editor, folder: Path) -> None:
    unsaved = editor.open(folder / "shapes.py", SHAPES.replace("sides", "unsaved sides"))
    uri = editor.open(folder / "main.py", MAIN)
    await editor.looked()
    editor.server.workspace.remove_text_document(unsaved)
    lsp.forget(editor.server, unsaved)
    editor.server.workspace.remove_text_document(uri)
    lsp.forget(editor.server, uri)
    editor.open(folder / "main.py", MAIN)
    await editor.looked()
    assert [file.text for file in editor.last.files] == [SHAPES]


def test_the_share_is_that_of_the_prompt() -> None:
    assert others.FILES_SHARE == FILES_SHARE


# The whole server as a process, and all that it sends to the daemon.

MARK = "hush"


@pytest.fixture
async def scripted(
    tmp_path: Path, isolated: dict[str, str]
) -> AsyncIterator[tuple[Window, Script, Path]]:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    script = Script.make(tmp_path / "script")
    async with window(isolated, program=script.program) as editor:
        await editor.initialize(
            workspace_folders=[t.WorkspaceFolder(folder.as_uri(), "project")],
            initialization_options={"context": {"exclude": ["generated/"]}},
        )
        yield editor, script, folder


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.process
async def test_a_definition_arrives_and_nothing_that_is_not_permitted(
    scripted: tuple[Window, Script, Path],
) -> None:
    editor, script, folder = scripted
    write(folder / ".gitignore", "ignored.py\n")
    hidden = [
        write(folder / name, SHAPES.replace("length", MARK))
        for name in (".env", "ignored.py", "generated/shapes.py", "../outside.py", "id_rsa.py")
    ]
    (folder / "linked.py").symlink_to(folder / ".." / "outside.py")
    editor.open((folder / "shapes.py").as_uri(), SHAPES)
    for file in [*hidden, folder / "linked.py"]:
        editor.open(file.as_uri(), file.read_text())
    text = MAIN
    for module in ("ignored", "generated.shapes", "linked", "id_rsa"):
        text = f"import {module}\n" + text
    uri = (folder / "main.py").as_uri()
    editor.open(uri, text)
    await until(lambda: any(one["path"] == "main.py" for one in script.heard("complete")))
    line = text.count("\n")
    sent = []
    for count, key in enumerate("perimeter(", 11):
        editor.insert(uri, line, count, key, version=count)
        await editor.inline(uri, line, count + 1)
        sent.append(script.heard("complete")[-1])
    of_main = [one for one in script.heard("complete") if one["path"] == "main.py"]
    assert of_main[0]["files"] == [["shapes.py", SHAPES]]
    # From key to key it is the same.
    assert all(one["files"] == of_main[0]["files"] for one in sent)
    assert all(MARK not in str(one["files"]) for one in script.heard("complete"))
    assert MARK in (folder / ".env").read_text()


@pytest.mark.process
async def test_another_choice_warms_the_prompt_up(scripted: tuple[Window, Script, Path]) -> None:
    editor, script, folder = scripted
    uri = (folder / "main.py").as_uri()
    other = (folder / "shapes.py").as_uri()
    editor.open(uri, MAIN)
    await editor.inline(uri, 4, 11)
    assert all(one["files"] == [] for one in script.heard("complete"))
    editor.open(other, SHAPES)
    await editor.inline(other, 0, 3)
    before = len(script.heard("complete"))
    position = {"line": 4, "character": 11}
    editor.client.protocol.notify(
        "completionLs/didShowDocument", {"textDocument": {"uri": uri}, "position": position}
    )

    def warmed() -> bool:
        heard = script.heard("complete")[before:]
        return any(one["files"] and one["lane"] == "background" for one in heard)

    await until(warmed)
    await until(lambda: script.heard("done")[-1]["id"] == script.heard("complete")[-1]["id"])
    editor.insert(uri, 4, 11, "p")
    await editor.inline(uri, 4, 12)
    assert script.heard("complete")[-1]["lane"] == "key"
    assert script.heard("complete")[-1]["files"] == [["shapes.py", SHAPES]]


@pytest.mark.process
async def test_folders_that_the_editor_removes(scripted: tuple[Window, Script, Path]) -> None:
    editor, script, folder = scripted
    write(folder / "shapes.py", SHAPES)
    uri = (folder / "main.py").as_uri()
    editor.open(uri, MAIN)
    await until(lambda: any(one["files"] for one in script.heard("complete")))
    gone = t.WorkspaceFoldersChangeEvent(
        added=[], removed=[t.WorkspaceFolder(folder.as_uri(), "project")]
    )
    editor.client.workspace_did_change_workspace_folders(
        t.DidChangeWorkspaceFoldersParams(event=gone)
    )
    await editor.inline(uri, 4, 11)
    assert script.heard("complete")[-1]["lane"] == "key"
    assert script.heard("complete")[-1]["files"] == []
    assert os.fspath(folder) not in str(script.heard("complete"))
