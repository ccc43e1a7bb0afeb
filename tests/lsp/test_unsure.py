"""A model that is not sure, behind the real server: what editors see by themselves, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.scripted_daemon import Script
from support.window import Window, window

pytestmark = pytest.mark.process

URI = "file:///area.py"
AREA = "def area(width, height):\n    "
BODY = "return width * height"
LIKELY, UNLIKELY = -0.1, -3.0


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script.make(tmp_path / "script")


@pytest.fixture
async def editor(script: Script, isolated: dict[str, str]) -> AsyncIterator[Window]:
    environment = {**isolated, "COMPLETION_LS_COMPLETION__SHOW_ABOVE": "0.4"}
    async with window(environment, program=script.program) as found:
        await found.initialize(initialization_options={"completion": {"ahead": False}})
        found.open(URI, AREA)
        yield found


async def test_what_is_improbable_is_shown_by_hand_only(script: Script, editor: Window) -> None:
    script.say("    ", BODY, logprob=UNLIKELY)
    assert (await editor.stream("a", URI, 1, 4)).items == []
    by_hand = await editor.stream("b", URI, 1, 4, kind=1)
    assert by_hand.items[0].insertText == BODY
    assert len(script.heard("complete")) > 1


async def test_what_is_probable_is_shown(script: Script, editor: Window) -> None:
    script.say("    ", BODY, logprob=LIKELY)
    [item] = (await editor.stream("a", URI, 1, 4)).items
    assert item.insertText == BODY


async def test_text_ends_where_all_of_it_has_become_improbable(
    script: Script, editor: Window
) -> None:
    words = ["return", " width", " *", " height"]
    script.say("    ", *words, pause_s=0.05, logprob=-0.3)
    [item] = (await editor.stream("a", URI, 1, 4)).items
    assert item.insertText == "return width"
    texts = [part.items[0].insertText for part in editor.partials if part.items]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    [item, *_] = (await editor.stream("b", URI, 1, 4, kind=1)).items
    assert item.insertText == BODY
