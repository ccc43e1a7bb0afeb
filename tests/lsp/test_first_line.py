"""The first whole line goes out while the others are still generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lsprotocol import types as t

from support.scripted_daemon import Script
from support.window import Window, until, window

pytestmark = pytest.mark.process

URI = "file:///area.py"
DEF = "def area(width, height):"
FIRST, SECOND = "\n    size = width * height", "\n    return size"


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """The second line comes when the test lets it: it is said after a pause that nobody waits for."""
    found = Script.make(tmp_path / "script")
    found.say(DEF, FIRST + "\n", SECOND[1:], pause_s=3600)
    return found


@pytest.fixture
async def editor(isolated: dict[str, str], script: Script) -> AsyncIterator[Window]:
    async with window(isolated, program=script.program) as found:
        await found.initialize(initialization_options={"completion": {"ahead": False}})
        found.open(URI, DEF)
        yield found


async def test_it_is_streamed_while_the_rest_is_generated(editor: Window, script: Script) -> None:
    request = editor.stream("s", URI, 0, len(DEF))
    await until(lambda: editor.partials)
    assert editor.partials[0].items[0].insertText == FIRST
    assert not request.done()
    assert script.heard("done") == []


async def test_a_plain_request_is_answered_with_it(editor: Window, script: Script) -> None:
    [item] = await asyncio.wait_for(editor.inline(URI, 0, len(DEF)), 60)
    assert item.insert_text == FIRST
    assert script.heard("done") == script.heard("cancel") == []


async def test_by_hand_one_gets_the_whole(editor: Window, script: Script) -> None:
    script.clear()
    script.say(DEF, FIRST + "\n", SECOND[1:], pause_s=1)
    manual = t.InlineCompletionTriggerKind.Invoked
    items = await asyncio.wait_for(editor.inline(URI, 0, len(DEF), trigger_kind=manual), 60)
    assert items[0].insert_text == FIRST + SECOND
