"""A server that computes and cannot be reached, or fails once, behind the real language server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lsprotocol import types as t

from support.scripted_daemon import Script
from support.window import Window, until, window

pytestmark = pytest.mark.process

URI = "file:///area.py"
AREA = "def area(width, height):\n    "
BODY = "return width * height"
LOST = "The server 127.0.0.1:9 does not answer. Is it on, and remote.url right?"
REMOTE = {
    "COMPLETION_LS_ENGINE__KIND": "remote",
    "COMPLETION_LS_REMOTE__URL": "http://127.0.0.1:9",
}


@pytest.fixture
def script(tmp_path: Path) -> Script:
    found = Script.make(tmp_path / "script")
    found.say("    ", BODY)
    return found


async def opened(editor: Window) -> Window:
    wanted = {"completionLs": {"engineState": True}}
    options = {"completion": {"ahead": False}}
    await editor.initialize(experimental=wanted, initialization_options=options)
    editor.open(URI, AREA)
    return editor


def state(editor: Window) -> tuple[str, str]:
    """What the status bar shows."""
    return (editor.states[-1].state, editor.states[-1].text) if editor.states else ("", "")


@pytest.fixture
async def editor(script: Script, isolated: dict[str, str]) -> AsyncIterator[Window]:
    async with window({**isolated, **REMOTE}, program=script.program) as found:
        await opened(found)
        await until(lambda: state(found)[0] == "ready")
        yield found


async def asked(editor: Window, column: int = 4) -> list[str]:
    return [str(item.insert_text) for item in await editor.inline(URI, 1, column)]


async def by_hand(editor: Window) -> list[str]:
    items = await editor.inline(URI, 1, 4, trigger_kind=t.InlineCompletionTriggerKind.Invoked)
    return [str(item.insert_text) for item in items]


async def test_a_lost_server_is_one_message_and_its_return_none(
    script: Script, editor: Window
) -> None:
    script.reaches(LOST)
    await until(lambda: editor.shown)
    assert state(editor) == ("failed", LOST)
    for number in range(5):  # no message a key
        editor.insert(URI, 1, 4 + number, "x", version=2 + number)
        assert await asked(editor, 5 + number) == []
    assert editor.shown == [f"completion-ls: {LOST}"]
    editor.replace(URI, (1, 4), (1, 9), "", version=9)
    script.reaches()
    await until(lambda: state(editor)[0] == "ready")
    assert await asked(editor) == [BODY]
    assert len(editor.shown) == 1
    script.reaches(LOST)
    await until(lambda: len(editor.shown) == 2)  # it is news again


async def test_that_the_server_of_other_settings_is_lost_is_news(
    script: Script, editor: Window
) -> None:
    script.reaches(LOST)
    await until(lambda: len(editor.shown) == 1)
    settings = {"completion-ls": {"model": {"name": "owner/other"}}}
    editor.client.workspace_did_change_configuration(t.DidChangeConfigurationParams(settings))
    await until(lambda: len(editor.shown) == 2)


async def test_a_window_that_comes_later_hears_that_the_server_is_lost(
    script: Script, editor: Window
) -> None:
    script.reaches(LOST)
    await until(lambda: state(editor)[0] == "failed")
    async with window(editor.environment, program=script.program) as later:
        await opened(later)
        await until(lambda: later.shown)
        assert await asked(later) == []
        assert later.shown == [f"completion-ls: {LOST}"]
        assert state(later) == ("failed", LOST)
        assert [one.state for one in later.states].count("ready") == 0


async def test_a_server_that_is_away_from_the_start_is_waited_for(
    script: Script, isolated: dict[str, str]
) -> None:
    script.reaches(LOST)
    script.loads_for(600)  # as long as it is away
    async with window({**isolated, **REMOTE}, program=script.program) as editor:
        await opened(editor)
        await until(lambda: editor.shown)
        async with window(editor.environment, program=script.program) as later:
            await opened(later)
            await until(lambda: state(later) == ("failed", LOST))
            assert later.shown == editor.shown == [f"completion-ls: {LOST}"]
            assert [one.state for one in later.states] == ["failed"]


async def test_a_server_that_fails_once_tells_only_who_asks_by_hand(
    script: Script, editor: Window
) -> None:
    script.stumbles("The server 127.0.0.1:9 is busy (429).")
    assert await asked(editor) == []
    assert editor.shown == []
    assert state(editor)[0] == "ready"
    said = "completion-ls: The server 127.0.0.1:9 is busy (429)."
    assert await by_hand(editor) == []
    await until(lambda: editor.shown == [said])
    assert await by_hand(editor) == []
    await until(lambda: editor.shown == [said, said])
    script.stumbles("")
    assert await asked(editor) == [BODY]


async def test_a_server_that_comes_back_for_its_trial_alone_is_no_news(
    script: Script, editor: Window
) -> None:
    for _ in range(3):
        script.reaches(LOST)
        await until(lambda: state(editor)[0] == "failed")
        script.reaches()
        await until(lambda: state(editor)[0] == "ready")
    assert editor.shown == [f"completion-ls: {LOST}"]
