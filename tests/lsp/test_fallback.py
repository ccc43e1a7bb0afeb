"""While the server that computes cannot be reached, a profile on this machine answers: the real language
server, with scripted daemons."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from completion_ls.config.profiles import settings_of
from completion_ls.config.settings import Settings
from completion_ls.lsp.fallback import in_place_of
from support.scripted_daemon import Script
from support.window import Window, until, window

pytestmark = pytest.mark.process

URI = "file:///area.py"
AREA = "def area(width, height):\n    "
BODY = "return width * height"
LOST = "The server 127.0.0.1:9 does not answer. Is it on, and remote.url right?"
FAR, NEAR = "owner/far", "smollm2-135m-instruct"
AWAY = f"{NEAR} (while 127.0.0.1:9 cannot be reached)"
REMOTE = {
    "COMPLETION_LS_ENGINE__KIND": "remote",
    "COMPLETION_LS_MODEL__NAME": FAR,
    "COMPLETION_LS_REMOTE__URL": "http://127.0.0.1:9",
    "COMPLETION_LS_REMOTE__FALLBACK": "cpu",
}


@pytest.fixture
def script(tmp_path: Path) -> Script:
    found = Script.make(tmp_path / "script")
    found.say("    ", BODY)
    found.settles_in(0.3)
    return found


@pytest.fixture
async def editor(script: Script, isolated: dict[str, str]) -> AsyncIterator[Window]:
    async with window({**isolated, **REMOTE}, program=script.program) as found:
        wanted = {"completionLs": {"engineState": True}}
        options = {"completion": {"ahead": False}}
        await found.initialize(experimental=wanted, initialization_options=options)
        found.open(URI, AREA)
        await until(lambda: state(found) == ("ready", FAR))
        yield found


def state(editor: Window) -> tuple[str, str]:
    """What the status bar shows."""
    return (editor.states[-1].state, editor.states[-1].text) if editor.states else ("", "")


def loaded(script: Script, model: str) -> list[int]:
    """The processes of the daemons that loaded a model, the first one first."""
    return [event["daemon"] for event in script.heard("load") if event["model"] == model]


def asked_of(script: Script) -> list[int]:
    """The daemon of each request."""
    return [event["daemon"] for event in script.heard("complete")]


def have_gone(daemons: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in daemons)


async def asked(editor: Window, column: int = 4) -> list[str]:
    return [str(item.insert_text) for item in await editor.inline(URI, 1, column)]


def test_the_profile_says_how_the_fallback_computes_and_the_user_the_rest() -> None:
    chosen = Settings.model_validate(
        {
            "engine": {"kind": "remote"},
            "remote": {"url": "http://127.0.0.1:9", "fallback": "nvidia-12gb"},
            "model": {"name": FAR},
            "prompt": {"max_tokens": 4096},
            "completion": {"max_tokens": 7},
        }
    )
    own, found = settings_of("nvidia-12gb"), in_place_of(chosen)
    assert found
    assert (found.model, found.engine, found.draft) == (own.model, own.engine, own.draft)
    assert found.prompt == own.prompt
    assert found.completion.max_tokens == 7
    without = chosen.remote.model_copy(update={"fallback": ""})
    assert in_place_of(chosen.model_copy(update={"remote": without})) is None
    assert in_place_of(chosen.model_copy(update={"engine": own.engine})) is None


async def test_the_profile_answers_until_the_server_is_back(script: Script, editor: Window) -> None:
    assert await asked(editor) == [BODY]
    assert loaded(script, NEAR) == []  # only when it is needed
    script.reaches(LOST)
    await until(lambda: state(editor) == ("ready", AWAY))
    assert await asked(editor) == [BODY]
    said = f"completion-ls: {LOST} Meanwhile the profile 'cpu' answers, on this machine."
    assert editor.shown == [said]
    assert "failed" not in [one.state for one in editor.states]
    script.reaches()
    await until(lambda: state(editor) == ("ready", FAR))
    assert await asked(editor) == [BODY]
    [far], [near] = loaded(script, FAR), loaded(script, NEAR)
    assert asked_of(script) == [far, near, far]
    await until(lambda: have_gone([near]))
    assert editor.shown == [said]


@pytest.mark.parametrize("told_last", [False, True])
async def test_a_request_that_the_server_took_along_is_begun_again(
    script: Script, editor: Window, told_last: bool
) -> None:
    script.clear()
    script.say("    ", "return", " width", " * height", pause_s=0.2)
    answer = editor.stream("s", URI, 1, 4)
    await until(lambda: editor.partials)
    script.reaches(LOST, told_last=told_last)
    [item] = (await answer).items
    assert item.insertText == BODY
    first, second = asked_of(script)
    assert [second] == loaded(script, NEAR) != [first]
    assert len(editor.shown) == 1


async def test_no_key_is_lost_while_the_server_goes_and_comes(
    script: Script, editor: Window
) -> None:
    for number, letter in enumerate(BODY[:-1]):
        if number == 6:
            script.reaches(LOST)
        if number == 12:
            await until(lambda: loaded(script, NEAR))
            script.reaches()
        assert await asked(editor, 4 + number) == [BODY[number:]]
        editor.insert(URI, 1, 4 + number, letter, version=2 + number)
    await until(lambda: state(editor) == ("ready", FAR))
    assert len(editor.shown) == 1


@pytest.mark.parametrize("settles_s", [0.0, 0.3])
async def test_a_server_that_comes_and_goes_leaves_no_daemons_behind(
    script: Script, isolated: dict[str, str], settles_s: float
) -> None:
    script.settles_in(settles_s)
    async with window({**isolated, **REMOTE}, program=script.program) as editor:
        wanted = {"completionLs": {"engineState": True}}
        await editor.initialize(experimental=wanted)
        await until(lambda: state(editor) == ("ready", FAR))
        for _ in range(8):
            script.reaches(LOST)
            await until(lambda: state(editor) != ("ready", FAR))
            script.reaches()
            await until(lambda: state(editor) == ("ready", FAR))
            assert len(editor.shown) == 1  # nobody has asked it anything meanwhile
        editor.open(URI, AREA)
        assert await asked(editor) == [BODY]
        [far] = loaded(script, FAR)
        assert asked_of(script)[-1] == far
        await until(lambda: loaded(script, NEAR) and have_gone(loaded(script, NEAR)))
        assert psutil.pid_exists(far)


async def test_the_way_back_is_found_where_the_daemon_of_the_server_has_died(
    script: Script, editor: Window
) -> None:
    script.reaches(LOST)
    await until(lambda: state(editor) == ("ready", AWAY))
    [far] = loaded(script, FAR)
    os.kill(far, signal.SIGKILL)
    script.reaches()
    await until(lambda: state(editor) == ("ready", FAR))
    assert await asked(editor) == [BODY]
    assert asked_of(script)[-1] == loaded(script, FAR)[-1] != far


async def test_a_window_that_is_closed_meanwhile_leaves_nothing_of_the_fallback_behind(
    script: Script, isolated: dict[str, str]
) -> None:
    script.settles_in(1000)
    async with window({**isolated, **REMOTE}, program=script.program) as editor:
        await editor.initialize(experimental={"completionLs": {"engineState": True}})
        script.reaches(LOST)
        await until(lambda: state(editor) == ("ready", AWAY))
        script.reaches()
        await until(lambda: state(editor) == ("ready", FAR))
        [near] = loaded(script, NEAR)
        assert psutil.pid_exists(near)
    await until(lambda: have_gone([near]))
