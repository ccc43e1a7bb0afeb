"""The language server as editors see it: a real process, the real daemon, the real model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as t
from pygls.exceptions import JsonRpcException, JsonRpcRequestCancelled

from completion_ls.config.sources import resolve
from completion_ls.lsp import messages
from completion_ls.wire.attach import attach
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig
from support.window import Window, until, window

pytestmark = [pytest.mark.model, pytest.mark.process]

AREA = "def area(width, height):\n    "
LONG = "def read_lines(path):\n    "
STORY = "Once upon a time, there was a village by the sea, and in this village "
"""What the model makes of it is one long line."""


async def figures(environment: dict[str, str]) -> dict[str, Any]:
    """The daemon's counters."""
    saved = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        client = EngineClient(DaemonConfig.of(resolve()[0]))
        while "passes" not in (await client.status()).figures:
            await asyncio.sleep(0.1)
        found = (await client.status()).figures
        await client.close()
    finally:
        for name, value in saved.items():
            if value is not None:
                os.environ[name] = value
    return found


async def quiet(environment: dict[str, str]) -> dict[str, Any]:
    """The counters once no job is active."""
    while (found := await figures(environment))["jobs_active"]:
        await asyncio.sleep(0.05)
    return found


async def test_an_answer_has_text_and_a_range(editor: Window) -> None:
    editor.open("file:///area.py", AREA)
    [item] = await editor.inline("file:///area.py", 1, 4)
    assert item.insert_text == "return width * height"
    assert item.range == t.Range(t.Position(1, 4), t.Position(1, 4))
    assert editor.shown == []


async def test_the_model_is_loaded_with_progress(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        await editor.initialize()
        editor.open("file:///area.py", AREA)
        # Sent while the model may still be loading: it waits, and is answered.
        assert await editor.inline("file:///area.py", 1, 4)
        for reports in editor.client.progress_reports.values():
            assert isinstance(reports[0], t.WorkDoneProgressBegin)
            assert isinstance(reports[-1], t.WorkDoneProgressEnd)


async def test_a_fresh_daemon_reports_its_loading(isolated: dict[str, str]) -> None:
    async with window(isolated) as editor:
        await editor.initialize()
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4)
        [reports] = editor.client.progress_reports.values()
        assert isinstance(reports[0], t.WorkDoneProgressBegin)
        assert isinstance(reports[-1], t.WorkDoneProgressEnd)


@pytest.mark.parametrize("encoding", list(t.PositionEncodingKind))
async def test_every_encoding_gives_the_same_text_at_its_own_range(
    shared: dict[str, str], encoding: t.PositionEncodingKind
) -> None:
    line = '    print("🥸 hello " + '
    text = f'def greet(name):\n    """🥸"""\n{line}'
    units = {"utf-8": len(line.encode()), "utf-16": len(line) + 1, "utf-32": len(line)}
    character = units[encoding.value]
    async with window(shared) as editor:
        result = await editor.initialize(encodings=[encoding])
        assert result.capabilities.position_encoding == encoding
        editor.open("file:///emoji.py", text)
        [item] = await editor.inline("file:///emoji.py", 2, character)
        assert item.range == t.Range(t.Position(2, character), t.Position(2, character))
        assert str(item.insert_text).strip() == "name)"


async def test_crlf_gets_the_same_suggestion_with_crlf(editor: Window) -> None:
    text = "import os\n\ndef count_words(path):\n    with open(path) as f:\n"
    answers = []
    for name, content in [("lf", text), ("crlf", text.replace("\n", "\r\n"))]:
        editor.open(f"file:///{name}.py", content)
        answers.append(await editor.whole(f"file:///{name}.py", 4, 0))
    assert answers[1] == answers[0].replace("\n", "\r\n")


async def test_parts_grow_to_the_final_text(editor: Window) -> None:
    editor.open("file:///long.py", LONG)
    result = await editor.stream("s-1", "file:///long.py", 1, 4)
    parts = [part.items[0].insertText for part in editor.partials if part.items]
    assert [part.streamId for part in editor.partials] == ["s-1"] * len(editor.partials)
    assert [part.seq for part in editor.partials] == list(range(len(editor.partials)))
    assert [part.done for part in editor.partials][-1] is True
    assert len(parts) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(parts))
    assert result.items[0].insertText == parts[-1]
    # The plain request gives the same text, from the same job.
    before = (await quiet_of(editor))["jobs"]
    [item] = await editor.inline("file:///long.py", 1, 4)
    assert item.insert_text == parts[-1]
    assert (await quiet_of(editor))["jobs"] == before


async def quiet_of(editor: Window) -> dict[str, Any]:
    return await quiet(editor.environment)


async def test_typing_along_needs_no_engine(editor: Window) -> None:
    uri = "file:///along.py"
    editor.open(uri, AREA)
    [item] = await editor.inline(uri, 1, 4)
    before = await quiet_of(editor)
    text = str(item.insert_text)
    for count in range(1, len(text)):
        editor.insert(uri, 1, 3 + count, text[count - 1], version=count + 1)
        [item] = await editor.inline(uri, 1, 4 + count)
        assert item.insert_text == text[count:]
        assert item.range == t.Range(t.Position(1, 4 + count), t.Position(1, 4 + count))
    after = await quiet_of(editor)
    assert after["passes"] == before["passes"]
    assert after["answered_without_pass"] == before["answered_without_pass"] + len(text) - 1


async def test_typing_along_does_not_stop_a_running_generation(editor: Window) -> None:
    uri = "file:///running.py"
    editor.open(uri, LONG)
    before = await quiet_of(editor)
    first = editor.stream("first", uri, 1, 4, msg_id="first")
    await until(lambda: editor.partials)
    text = editor.partials[-1].items[0].insertText
    # As VS Code does it: the change, then the cancellation of the old request, then the new one.
    editor.insert(uri, 1, 4, text[0])
    editor.client.cancel_request(t.CancelParams(id="first"))
    second = await editor.stream("second", uri, 1, 5)
    with contextlib.suppress(JsonRpcRequestCancelled, asyncio.CancelledError):
        whole = await first  # it ended before it was cancelled
        assert whole.items[0].insertText == text[0] + second.items[0].insertText
    assert (text[0] + second.items[0].insertText).startswith(text)
    after = await quiet_of(editor)
    assert after["jobs"] == before["jobs"] + 1


async def test_keys_in_one_notification_do_not_stop_it_either(editor: Window) -> None:
    """Neovim gathers those that come fast."""
    uri = "file:///gathered.py"
    editor.open(uri, LONG)
    before = await quiet_of(editor)
    first = editor.stream("first", uri, 1, 4, msg_id="first")
    await until(lambda: editor.partials)
    text = editor.partials[-1].items[0].insertText
    changes: list[t.TextDocumentContentChangeEvent] = [
        t.TextDocumentContentChangePartial(
            t.Range(t.Position(1, column), t.Position(1, column)), character
        )
        for column, character in enumerate(text[:2], 4)
    ]
    name = t.VersionedTextDocumentIdentifier(2, uri)
    editor.client.text_document_did_change(t.DidChangeTextDocumentParams(name, changes))
    second = await editor.stream("second", uri, 1, 6)
    with pytest.raises(JsonRpcRequestCancelled):
        await first
    assert (text[:2] + second.items[0].insertText).startswith(text)
    assert (await quiet_of(editor))["jobs"] == before["jobs"] + 1


async def test_a_pair_that_the_editor_closes_is_typed_along(editor: Window) -> None:
    uri = "file:///pair.py"
    editor.open(uri, "files = os.listdir")
    [item] = await editor.inline(uri, 0, 18)
    text = str(item.insert_text)
    assert text[0] == "("
    assert ")" in text
    jobs = (await quiet_of(editor))["jobs"]
    editor.insert(uri, 0, 18, "()", version=2)  # one change, and the cursor stays inside
    [item] = await editor.inline(uri, 0, 19)
    assert (await quiet_of(editor))["jobs"] == jobs
    assert item.insert_text == text[1:]
    assert item.range == t.Range(t.Position(0, 19), t.Position(0, 20))


async def test_settings_that_change_nothing_lose_no_request(editor: Window) -> None:
    uri = "file:///config.py"
    editor.open(uri, LONG)
    future = editor.stream("s", uri, 1, 4)
    await until(lambda: editor.partials)
    editor.client.workspace_did_change_configuration(t.DidChangeConfigurationParams({}))
    whole = await future
    editor.client.workspace_did_change_configuration(
        t.DidChangeConfigurationParams({"completion": {"max_lines": 1}})
    )
    editor.partials.clear()
    editor.insert(uri, 0, 0, "import os\n", version=2)
    future = editor.stream("t", uri, 2, 4)
    await until(lambda: editor.partials)
    # Settings that do matter: the request begins again and is answered with them.
    editor.client.workspace_did_change_configuration(
        t.DidChangeConfigurationParams({"completion": {"max_lines": 12}})
    )
    again = await future
    assert "\n" in whole.items[0].insertText
    assert "\n" in again.items[0].insertText


async def test_the_menu_and_ghost_text_do_not_cancel_each_other(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        await editor.initialize(initialization_options={"server": {"completion_items": True}})
        editor.open("file:///both.py", AREA)
        position = t.Position(1, 4)
        menu = editor.client.text_document_completion_async(
            t.CompletionParams(t.TextDocumentIdentifier("file:///both.py"), position)
        )
        [item], listed = await asyncio.gather(editor.inline("file:///both.py", 1, 4), menu)
        assert isinstance(listed, t.CompletionList)
        assert item.insert_text == listed.items[0].label == "return width * height"


async def test_backspace_and_typing_elsewhere_end_the_session(editor: Window) -> None:
    uri = "file:///elsewhere.py"
    editor.open(uri, AREA)
    await editor.inline(uri, 1, 4)
    jobs = (await quiet_of(editor))["jobs"]
    editor.insert(uri, 1, 4, "re", version=2)
    await editor.inline(uri, 1, 6)
    assert (await quiet_of(editor))["jobs"] == jobs
    editor.replace(uri, (1, 5), (1, 6), "", version=3)
    # The session is over, but what it generated fits here, too.
    await editor.inline(uri, 1, 5)
    assert (await quiet_of(editor))["jobs"] == jobs
    editor.insert(uri, 0, 0, "import os\n", version=4)
    await editor.inline(uri, 2, 5)
    assert (await quiet_of(editor))["jobs"] == jobs + 1


async def test_text_below_that_changed_gets_no_old_answer(editor: Window) -> None:
    uri = "file:///below.py"
    editor.open(uri, AREA + "\n\nprint(area(1, 2))\n")
    await editor.inline(uri, 1, 4)
    jobs = (await quiet_of(editor))["jobs"]
    editor.insert(uri, 3, 0, "# ", version=2)
    await editor.inline(uri, 1, 4)
    assert (await quiet_of(editor))["jobs"] == jobs + 1


async def test_a_cancelled_request_gets_the_standard_error_and_stops_the_engine(
    editor: Window,
) -> None:
    uri = "file:///cancel.py"
    editor.open(uri, STORY, "plaintext")
    before = await quiet_of(editor)
    future = editor.stream("gone", uri, 0, len(STORY), msg_id="gone")
    await until(lambda: editor.partials)
    editor.client.cancel_request(t.CancelParams(id="gone"))
    with pytest.raises(JsonRpcRequestCancelled) as error:
        await future
    assert error.value.code == -32800
    after = await quiet_of(editor)
    assert after["jobs_cancelled"] == before["jobs_cancelled"] + 1
    assert after["tokens_generated"] - before["tokens_generated"] < 64


async def test_a_newer_request_cancels_the_older_one(editor: Window) -> None:
    uri = "file:///newer.py"
    text = STORY.replace("village", "town")
    editor.open(uri, text, "plaintext")
    older = editor.stream("older", uri, 0, len(text))
    await until(lambda: editor.partials)
    editor.insert(uri, 0, len(text), "zzz = ")
    newer = editor.stream("newer", uri, 0, len(text) + 6)
    with pytest.raises(JsonRpcException) as error:
        await older
    assert error.value.code == -32800
    await newer


async def test_two_hundred_cancels_each_get_one_reply(editor: Window) -> None:
    uri = "file:///many.py"
    editor.open(uri, LONG)
    futures = []
    for number in range(200):
        name = f"r-{number}"
        futures.append(editor.stream(name, uri, 1, 4, msg_id=name))
        if number % 3 == 0:
            await asyncio.sleep(0.01)
        editor.client.cancel_request(t.CancelParams(id=name))
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert len(results) == 200
    # Some may have been answered before their cancel was read; none fails otherwise, or twice.
    cancelled = [isinstance(result, JsonRpcRequestCancelled) for result in results]
    assert sum(cancelled) > 100
    for result, was_cancelled in zip(results, cancelled, strict=True):
        assert was_cancelled or not isinstance(result, BaseException)
    assert (await editor.inline(uri, 1, 4))[0].insert_text
    assert (await quiet_of(editor))["jobs_active"] == 0


async def test_the_selected_item_of_the_menu_is_continued(editor: Window) -> None:
    uri = "file:///menu.py"
    editor.open(uri, "import os\n\nfiles = os.li")
    chosen = t.SelectedCompletionInfo(
        range=t.Range(t.Position(2, 11), t.Position(2, 13)), text="listdir"
    )
    items = await editor.inline(uri, 2, 13, selected_completion_info=chosen)
    [item] = items
    assert str(item.insert_text).startswith("listdir(")
    assert item.range
    assert item.range.start == t.Position(2, 11)


async def test_a_document_that_was_never_opened(editor: Window) -> None:
    assert await editor.inline("file:///nowhere.py", 3, 4) == []
    assert await editor.inline("file:///nowhere.py", 3, 5) == []
    assert len(editor.shown) == 1
    assert "nowhere.py" in editor.shown[0]


@pytest.mark.parametrize("place", [(0, 99), (99, 0), (2**31 - 1, 2**31 - 1)])
async def test_a_position_beyond_the_text(editor: Window, place: tuple[int, int]) -> None:
    editor.open("file:///short.py", AREA)
    for item in await editor.inline("file:///short.py", *place):
        assert item.range
        assert item.range.start.line <= 1
    editor.client.text_document_did_close(
        t.DidCloseTextDocumentParams(t.TextDocumentIdentifier("file:///short.py"))
    )


async def test_a_large_file_a_minified_file_and_half_characters(editor: Window) -> None:
    line = "value = compute(value, 17)  # a line like many others\n"
    large = line * (20_000_000 // len(line))
    count = large.count("\n")
    editor.open("file:///large.py", large)
    editor.insert("file:///large.py", count, 0, AREA)
    [item] = await editor.inline("file:///large.py", count + 1, 4)
    assert item.insert_text
    editor.open("file:///min.js", "function a(b){return b+1};" * 40_000, "javascript")
    await editor.inline("file:///min.js", 0, 26 * 40_000)
    editor.open("file:///half.py", "# \ud83d half\n" + AREA)
    [item] = await editor.inline("file:///half.py", 2, 4)
    assert item.insert_text
    assert editor.shown == []


async def test_a_workspace_on_an_unusual_path(shared: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "my project – größe 日本"
    folder.mkdir()
    other = tmp_path / "second root"
    other.mkdir()
    async with window(shared) as editor:
        await editor.initialize(
            root_uri=folder.as_uri(),
            workspace_folders=[
                t.WorkspaceFolder(path.as_uri(), path.name) for path in (folder, other)
            ],
        )
        uri = (folder / "zähler 1.py").as_uri()
        editor.open(uri, AREA)
        [item] = await editor.inline(uri, 1, 4)
        assert item.insert_text == "return width * height"
        assert editor.shown == []


async def test_cells_above_are_context(editor: Window) -> None:
    cells = ["def add(a, b):\n    return a + b", "Some *text*.", AREA]
    kinds = [t.NotebookCellKind.Code, t.NotebookCellKind.Markup, t.NotebookCellKind.Code]
    uris = [f"vscode-notebook-cell:/book.ipynb#c{number}" for number in range(3)]
    documents = [
        t.TextDocumentItem(uri, "python", 1, text) for uri, text in zip(uris, cells, strict=True)
    ]
    book = t.NotebookDocument(
        "file:///book.ipynb",
        "jupyter-notebook",
        1,
        [t.NotebookCell(kind, uri) for kind, uri in zip(kinds, uris, strict=True)],
    )
    editor.client.notebook_document_did_open(t.DidOpenNotebookDocumentParams(book, documents))
    before = await quiet_of(editor)
    [item] = await editor.inline(uris[2], 1, 4)
    assert item.insert_text == "return width * height"
    alone = await quiet_of(editor)

    def prompt(of: dict[str, Any]) -> int:
        return int(of["prompt_tokens_reused"] + of["prompt_tokens_computed"])

    # The same text as a plain document has a shorter prompt, by the code cell above.
    editor.open("file:///alone.py", cells[2])
    await editor.inline("file:///alone.py", 1, 4)
    assert prompt(alone) - prompt(before) > 1.5 * (prompt(await quiet_of(editor)) - prompt(alone))
    # A change in a cell reaches us as a change of the notebook.
    change = t.TextDocumentContentChangePartial(
        text="ret", range=t.Range(t.Position(1, 4), t.Position(1, 4))
    )
    text_content = t.NotebookDocumentCellContentChanges(
        t.VersionedTextDocumentIdentifier(2, uris[2]), [change]
    )
    editor.client.notebook_document_did_change(
        t.DidChangeNotebookDocumentParams(
            t.VersionedNotebookDocumentIdentifier(2, "file:///book.ipynb"),
            t.NotebookDocumentChangeEvent(
                cells=t.NotebookDocumentCellChanges(text_content=[text_content])
            ),
        )
    )
    [item] = await editor.inline(uris[2], 1, 7)
    assert item.insert_text == "urn width * height"


async def test_completion_items_are_off_unless_asked_for(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        result = await editor.initialize()
        assert result.capabilities.completion_provider is None
    async with window(shared) as editor:
        result = await editor.initialize(
            initialization_options={"server": {"completion_items": True}}
        )
        assert result.capabilities.completion_provider is not None
        editor.open("file:///area.py", AREA)
        answer = await editor.client.text_document_completion_async(
            t.CompletionParams(t.TextDocumentIdentifier("file:///area.py"), t.Position(1, 4))
        )
        assert isinstance(answer, t.CompletionList)
        [item] = answer.items
        assert item.text_edit
        assert item.text_edit.new_text == item.label == "return width * height"


async def test_a_completion_item_replaces_the_word_left_of_it(shared: dict[str, str]) -> None:
    """eglot and Kate put an item in the place of that word, whatever its range says."""
    async with window(shared) as editor:
        await editor.initialize(initialization_options={"server": {"completion_items": True}})
        uri = "file:///word.py"
        editor.open(uri, "def area(width, height):\n    x = '😀'; ret")
        end = t.Position(1, len("    x = '😀'; ret") + 1)  # UTF-16: the client names no encoding
        answer = await editor.client.text_document_completion_async(
            t.CompletionParams(t.TextDocumentIdentifier(uri), end)
        )
        assert isinstance(answer, t.CompletionList)
        [item] = answer.items
        assert isinstance(item.text_edit, t.TextEdit)
        assert item.text_edit.range == t.Range(t.Position(1, end.character - 3), end)
        assert item.label == item.filter_text == item.text_edit.new_text
        assert item.label.startswith("return ")


async def test_wrong_settings_are_shown_once_and_the_server_works(shared: dict[str, str]) -> None:
    options = {"completion": {"max_token": 3}, "server": {"log_level": "loud"}}
    async with window(shared) as editor:
        await editor.initialize(initialization_options=options)
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4)
        assert await editor.inline("file:///area.py", 1, 4)
        wrong = [text for text in editor.shown if "initializationOptions" in text]
        assert len(wrong) == len(editor.shown) == 2
        assert any("completion.max_tokens" in text for text in wrong)


async def test_settings_can_change_while_it_runs(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        await editor.initialize()
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4)
        editor.client.workspace_did_change_configuration(
            t.DidChangeConfigurationParams({"server": {"disabled_languages": ["python"]}})
        )
        assert await editor.inline("file:///area.py", 1, 4) == []
        # Asked for by hand, it tries all the same.
        manual = t.InlineCompletionTriggerKind.Invoked
        assert await editor.inline("file:///area.py", 1, 4, trigger_kind=manual)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_setting_may_be_taken_back(shared: dict[str, str], whole: bool) -> None:
    """By a client that tells all of its settings each time; another one's first settings stay."""
    options = {"server": {"disabled_languages": ["python"]}}
    async with window(shared) as editor:
        capabilities = {"completionLs": {"wholeSettings": whole}}
        await editor.initialize(experimental=capabilities, initialization_options=options)
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4) == []
        editor.client.workspace_did_change_configuration(
            t.DidChangeConfigurationParams({"completion-ls": {}})
        )
        assert bool(await editor.inline("file:///area.py", 1, 4)) is whole


async def test_by_hand_there_are_alternatives(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        await editor.initialize(initialization_options={"completion": {"ahead": False}})
        uri = "file:///alternatives.py"
        editor.open(uri, AREA)
        (usual,) = await editor.inline(uri, 1, 4)
        manual = t.InlineCompletionTriggerKind.Invoked
        items = await editor.inline(uri, 1, 4, trigger_kind=manual)
        texts = [str(item.insert_text) for item in items]
        assert texts[0] == usual.insert_text
        assert 2 <= len(texts) == len(set(texts)) <= 3
        assert all(item.range == usual.range for item in items)
        assert await editor.inline(uri, 1, 4, trigger_kind=manual) == items
        future = editor.stream("s", uri, 1, 4, kind=1)
        assert [item.insertText for item in (await future).items] == texts
        assert [item.insertText for item in editor.partials[-1].items] == texts


async def test_a_killed_daemon_is_one_message_and_the_next_key_works(
    isolated: dict[str, str],
) -> None:
    async with window(isolated) as editor:
        await editor.initialize()
        editor.open("file:///long.py", LONG)
        future = editor.stream("s", "file:///long.py", 1, 4)
        await until(lambda: editor.partials)
        connection = await attach(DaemonConfig.of(resolve()[0]))
        os.kill(connection.welcome.pid, signal.SIGKILL)
        connection.close()
        await future
        assert len(editor.shown) == 1
        assert "stopped" in editor.shown[0]
        assert await editor.inline("file:///long.py", 1, 4)
        assert len(editor.shown) == 1


async def test_a_status_bar_hears_of_the_engine(isolated: dict[str, str]) -> None:
    async with window(isolated) as editor:
        wanted = {"completionLs": {"engineState": True}}
        await editor.initialize(experimental=wanted)
        await until(lambda: editor.states and editor.states[-1].state == "ready")
        *loading, ready = editor.states
        assert ready.text == "smollm2-135m-instruct"
        assert {one.state for one in loading} == {"loading"}
        assert all(0 <= one.percentage <= 100 and one.text for one in loading)
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4)
        report = await editor.client.protocol.send_request_async(messages.ENGINE_REPORT, {})
        assert (report.state.state, report.state.text) == ("ready", "smollm2-135m-instruct")
        assert report.figures.jobs_awaited == 1
        assert report.figures.tokens_per_second > 0
        os.kill(report.figures.pid, signal.SIGKILL)
        await until(lambda: [one.state for one in editor.states[-1:]] == ["failed"])
        report = await editor.client.protocol.send_request_async(messages.ENGINE_REPORT, {})
        assert report.state.state != "ready"
        await until(lambda: editor.states[-1].state == "ready")  # it is brought back


async def test_who_did_not_ask_hears_nothing_of_it(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        await editor.initialize()
        editor.open("file:///area.py", AREA)
        assert await editor.inline("file:///area.py", 1, 4)
        assert editor.states == []
        report = await editor.client.protocol.send_request_async(messages.ENGINE_REPORT, None)
        assert report.state.state == "ready"


async def test_a_request_is_about_the_document_as_it_was_when_it_was_sent(editor: Window) -> None:
    uri = "file:///stale.py"
    editor.open(uri, AREA + "\n")
    older = editor.stream("older", uri, 1, 4)
    editor.insert(uri, 0, 0, "def mul(a, b):\n    r\n\n")  # in the same breath
    with pytest.raises(JsonRpcException) as error:
        await older
    assert error.value.code == -32800


async def test_a_request_that_is_pending_at_the_shutdown_is_answered(
    shared: dict[str, str],
) -> None:
    async with window(shared) as editor:
        await editor.initialize()
        editor.open("file:///long.py", LONG)
        pending = editor.stream("s", "file:///long.py", 1, 4)
        await until(lambda: editor.partials)
        stopped = editor.client.protocol.send_request("shutdown")
        editor.client.protocol.notify("exit")
        with pytest.raises(JsonRpcException) as error:
            await pending
        assert error.value.code == -32800
        await asyncio.wrap_future(stopped)


async def test_the_document_is_never_changed(editor: Window) -> None:
    edits: list[Any] = []

    @editor.client.feature(t.WORKSPACE_APPLY_EDIT)
    def _(params: t.ApplyWorkspaceEditParams) -> t.ApplyWorkspaceEditResult:
        edits.append(params)
        return t.ApplyWorkspaceEditResult(applied=False)

    editor.open("file:///area.py", AREA)
    await editor.inline("file:///area.py", 1, 4)
    assert edits == []


async def after_jobs(editor: Window, jobs: int) -> dict[str, Any]:
    """The counters once so many jobs have come, and none is active."""
    while (found := await quiet_of(editor))["jobs"] < jobs:
        await asyncio.sleep(0.05)
    return found


def plain(items: list[t.InlineCompletionItem]) -> list[tuple[str, t.Range | None]]:
    """What is offered, and where; not as which offer, of which there may be several of the same."""
    return [(str(item.insert_text), item.range) for item in items]


async def test_undoing_a_key_that_disagreed_needs_no_engine(editor: Window) -> None:
    uri = "file:///undo.py"
    editor.open(uri, AREA)
    [item] = await editor.inline(uri, 1, 4)
    editor.insert(uri, 1, 4, "x", version=2)
    await editor.inline(uri, 1, 5)
    before = await quiet_of(editor)
    editor.replace(uri, (1, 4), (1, 5), "", version=3)
    assert plain(await editor.inline(uri, 1, 4)) == plain([item])
    after = await quiet_of(editor)
    assert after["jobs"] == before["jobs"]
    assert after["passes"] == before["passes"]
    assert after["answered_without_pass"] == before["answered_without_pass"] + 1


async def test_a_closed_document_leaves_nothing_known(editor: Window) -> None:
    uri = "file:///closed.py"
    editor.open(uri, AREA)
    await editor.inline(uri, 1, 4)
    jobs = (await quiet_of(editor))["jobs"]
    editor.client.text_document_did_close(
        t.DidCloseTextDocumentParams(t.TextDocumentIdentifier(uri))
    )
    editor.open(uri, AREA)
    await editor.inline(uri, 1, 4)
    assert (await quiet_of(editor))["jobs"] == jobs + 1


async def test_accepting_is_answered_without_a_pass(eager: Window, editor: Window) -> None:
    uri = "file:///accept.py"
    jobs = (await quiet_of(eager))["jobs"]
    eager.open(uri, "width = 3\nheight = 4\narea = width *")
    await after_jobs(eager, jobs + 1)  # the document that came into view
    [item] = await eager.inline(uri, 2, 14)
    before = await after_jobs(eager, jobs + 3)  # the answer, and what comes after it
    text = str(item.insert_text)
    eager.insert(uri, 2, 14, text)
    end = 14 + len(text)
    items = await eager.inline(uri, 2, end)
    after = await quiet_of(eager)
    assert after["answered_without_pass"] == before["answered_without_pass"] + 1
    # It is what somebody gets who did not work ahead.
    editor.open("file:///plain.py", "width = 3\nheight = 4\narea = width *" + text)
    assert plain(await editor.inline("file:///plain.py", 2, end)) == plain(items)


async def test_accepting_the_first_line_shows_the_rest(eager: Window) -> None:
    uri = "file:///first_line.py"
    eager.open(uri, LONG)
    first, rest = (await eager.whole(uri, 1, 4)).split("\n", 1)
    before = await quiet_of(eager)
    eager.insert(uri, 1, 4, first)
    [item] = await eager.inline(uri, 1, 4 + len(first))
    assert item.insert_text == "\n" + rest
    after = await quiet_of(eager)
    assert after["answered_without_pass"] == before["answered_without_pass"] + 1


@pytest.mark.parametrize("place", [t.Position(13, 5), None])
async def test_a_document_that_comes_into_view_is_warmed_up(
    eager: Window, place: t.Position | None
) -> None:
    """At the position that the editor names; else where its last change was."""
    uri = f"file:///view_{place is None}.py"
    lines = "".join(f"{name} = compute_{name}(17)\n" for name in "abcdefghij")
    jobs = (await quiet_of(eager))["jobs"]
    eager.open(uri, lines + AREA + "\n\n" + lines)
    await after_jobs(eager, jobs + 1)
    eager.insert(uri, 0, 0, f"view = {place}\n" * 2)
    eager.insert(uri, 13, 4, "r")
    before = await quiet_of(eager)
    params = messages.DidShowDocumentParams(t.TextDocumentIdentifier(uri), place)
    eager.client.protocol.notify(messages.DID_SHOW_DOCUMENT, params)
    warmed = await after_jobs(eager, before["jobs"] + 1)
    assert warmed["prompt_tokens_computed"] - before["prompt_tokens_computed"] > 50
    assert await eager.inline(uri, 13, 5)
    after = await quiet_of(eager)
    # The key's prompt, and that of what is prepared for after it.
    assert after["prompt_tokens_computed"] - warmed["prompt_tokens_computed"] < 30


async def test_documents_that_nobody_opened_or_that_are_disabled_stay_cold(
    shared: dict[str, str],
) -> None:
    async with window(shared) as editor:
        await editor.initialize(
            initialization_options={"server": {"disabled_languages": ["python"]}}
        )
        jobs = (await quiet_of(editor))["jobs"]
        for uri in ("file:///disabled.py", "file:///nowhere.py"):
            if "disabled" in uri:
                editor.open(uri, AREA)
            params = messages.DidShowDocumentParams(t.TextDocumentIdentifier(uri))
            editor.client.protocol.notify(messages.DID_SHOW_DOCUMENT, params)
        editor.open("file:///warm.go", AREA, "go")  # what came before has been handled
        assert (await after_jobs(editor, jobs + 1))["jobs"] == jobs + 1
        assert editor.shown == []


async def test_new_text_is_held_back_for_as_long_as_wanted(shared: dict[str, str]) -> None:
    async with window(shared) as editor:
        options = {"completion": {"ahead": False, "debounce_ms": 1500}}
        await editor.initialize(initialization_options=options)
        uri = "file:///debounce.py"
        editor.open(uri, AREA)
        manual = t.InlineCompletionTriggerKind.Invoked
        assert await editor.inline(uri, 1, 4, trigger_kind=manual)
        editor.insert(uri, 0, 0, "# another text\n")
        begun = time.monotonic()
        future = editor.stream("s", uri, 2, 4)
        await until(lambda: editor.partials)
        assert time.monotonic() >= begun + 1.5
        assert (await future).items[0].insertText
