"""The server's life as Neovim's user sees it: its start, its end, settings, status and health."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.nvim import Neovim, until, until_equal
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

Another = Callable[[], tuple[Neovim, Script]]
DEF = "def area(radius):\n"
LINE = "def area(radius):", "    return 3 * radius"


def say(script: Script) -> None:
    """One line in two parts."""
    script.say("    ret", "urn 3", " * radius\n", pause_s=1)


def state(editor: Neovim) -> str:
    """What the plugin takes the engine for."""
    found: str = editor.lua("return require('completion_ls.client').state.state")
    return found


def test_a_server_that_is_killed_is_started_again(another: Another) -> None:
    editor, script = another()
    say(script)
    editor.setup(wait=False)
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    [server] = editor.servers()
    server.kill()
    editor.wait_for_message("The server was killed by signal 9. It is started again in 0.5 s.")
    assert editor.lines == ["def area(radius):", "    ret"]
    editor.wait_until_ready()
    editor.keys("<BS>t")
    editor.wait_for_ghost("urn 3 * radius")
    editor.keys("<Tab>")
    editor.wait_for_lines(*LINE)
    assert len(editor.servers()) == 1


def test_a_daemon_that_is_killed_is_started_again(another: Another) -> None:
    editor, script = another()
    say(script)
    editor.setup(wait=False)
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    psutil.Process(script.heard("load")[-1]["daemon"]).kill()
    until_equal(lambda: len(script.heard("load")), 2)
    editor.wait_until_ready()
    editor.keys("<BS>t")
    editor.wait_for_ghost("urn 3 * radius")
    assert editor.lines == ["def area(radius):", "    ret"]


def test_a_program_that_is_not_there_is_named_once(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False, cmd=["/nowhere/completion-ls", "--stdio"])
    editor.open("area.py", DEF)
    editor.open("other.py", DEF)
    editor.wait_for_message("The program /nowhere/completion-ls was not found. Install it (")
    assert editor.nvim.funcs.execute("messages").count("was not found") == 1
    assert editor.lua("return require('completion_ls').statusline()") == "completion-ls !"
    # Named rightly, it is there at once.
    editor.setup()


def test_a_server_that_ends_at_once_is_not_started_all_the_time(
    another: Another, tmp_path: Path
) -> None:
    editor, _ = another()
    runs, program = tmp_path / "runs", tmp_path / "completion-ls"
    program.write_text(f"#!/bin/sh\necho >> {runs}\nexit 3\n")
    program.chmod(0o755)
    editor.setup(wait=False, cmd=[str(program), "--stdio"])
    editor.open("area.py", DEF)
    until_equal(lambda: runs.exists() and len(runs.read_text()), 3)
    told = editor.nvim.funcs.execute("messages")
    assert told.count("The server ended with status 3. It is started again in") == 1
    until_equal(lambda: len(runs.read_text()), 5)
    editor.wait_for_message("5 times now. :CompletionLs restart starts it again.")
    assert state(editor) == "failed"


def test_restart_and_the_end(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False)
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    [before] = editor.servers()
    editor.nvim.command("CompletionLs restart")
    until(lambda: not before.is_running(), "the server stays")
    editor.wait_until_ready()
    [after] = editor.servers()
    assert after.pid != before.pid
    editor.close()
    until(lambda: not after.is_running(), "the server stays")


def test_settings_reach_the_server(another: Another) -> None:
    editor, script = another()
    editor.setup(wait=False, settings={"completion": {"lines": "single"}})
    script.say("", "    side = 2\n    return side\n\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o")
    editor.wait_for_ghost("    side = 2")
    editor.setup()  # what is taken back holds no longer
    editor.keys("<Esc>So")
    editor.keys("<BS>")
    editor.wait_for_ghost("    side = 2\n    return side")


def test_a_wrong_setting_of_the_server_is_shown(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False, settings={"completion": {"max_token": 3}})
    editor.open("area.py", DEF)
    editor.wait_for_message("max_tokens")
    editor.wait_until_ready()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": {}}, "there is no `key`. Known are: auto, builtin, cmd,"),
        ({"keys": {"acept": "<C-y>"}}, "there is no `keys.acept`. Known are: accept,"),
        ({"cmd": "completion-ls"}, "`cmd` must be a table, not 'completion-ls'"),
        ({"keys": {"accept": 3}}, "`keys.accept` must be a string or false, not 3"),
        ({"cmd": []}, "`cmd` must name a program"),
    ],
)
def test_a_wrong_setting_of_the_plugin_is_named(
    editor: Neovim, options: dict[str, object], sentence: str
) -> None:
    editor.lua("require('completion_ls').setup(...)", options)
    editor.wait_for_message(f"completion-ls: setup: {sentence}".replace("'", '"'))
    editor.nvim.command("messages clear")


def test_nothing_by_itself_in_some_filetypes(another: Another) -> None:
    editor, script = another()
    say(script)
    editor.setup(wait=False, filetypes={"*": False, "python": True})
    editor.open("area.txt", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    editor.keys("<M-Bslash>")
    editor.wait_for_ghost("urn 3 * radius")
    assert "key" not in {one["lane"] for one in script.heard("complete")}
    editor.keys("<Esc>")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3 * radius")


def test_the_status_while_it_loads_and_then(another: Another) -> None:
    editor, script = another()
    script.loads_for(3)
    editor.setup(wait=False)
    editor.open("area.py", DEF)
    line = "return require('completion_ls').statusline()"
    editor.nvim.command(
        "set laststatus=2 statusline=%{%v:lua.require'completion_ls'.statusline()%}"
    )
    until(lambda: "%" in editor.screen()[-2], "no percentage")
    assert editor.screen()[-2].startswith("completion-ls ")
    editor.wait_until_ready()
    assert editor.lua(line) == "completion-ls"
    until_equal(lambda: editor.screen()[-2], "completion-ls")
    say(script)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3 * radius")
    editor.keys("<Esc>")
    editor.nvim.command("CompletionLs")
    editor.wait_for_message("completion-ls: ready. smollm2-135m-instruct")
    editor.wait_for_message("First token: 1 ms (median)\nTokens per second: 50")


def test_an_engine_that_cannot_load(another: Another) -> None:
    editor, script = another()
    script.cannot_load("The model is too big for this card.")
    editor.setup(wait=False)
    editor.open("area.py", DEF)
    editor.wait_for_message("The model is too big for this card.")
    until_equal(lambda: state(editor), "failed")
    editor.nvim.command("checkhealth completion_ls")
    assert any("The model is too big" in line for line in editor.lines)


def test_a_command_that_is_none(editor: Neovim) -> None:
    editor.nvim.command("CompletionLs start")
    editor.wait_for_message("the command takes one of log, off, on, restart, status, toggle")
    editor.nvim.command("messages clear")
    assert editor.nvim.funcs.getcompletion("CompletionLs o", "cmdline") == ["off", "on"]


def test_health(editor: Neovim) -> None:
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.nvim.command("checkhealth completion_ls")
    report = "\n".join(editor.lines)
    for part in (
        "No other plugin for ghost text was found",
        "completion-ls: completion-ls 0.1.0",
        "The server offers inline completion",
        "Positions are counted in utf-",
        "The engine is ready: smollm2-135m-instruct",
    ):
        assert part in report
    assert "ERROR" not in report
    assert "WARN" not in report


def test_health_without_setup(another: Another) -> None:
    editor, _ = another()
    editor.nvim.command("checkhealth completion_ls")
    assert any("It is not set up" in line for line in editor.lines)


@pytest.mark.model
def test_the_real_model(real: Neovim) -> None:
    editor = real
    editor.open("area.py", "def area(width, height):\n")
    editor.keys("o    ret")
    until(lambda: editor.ghost.startswith("urn "), "nothing is offered")
    until(lambda: not running(editor), "it has no end")
    ghost = editor.ghost
    editor.keys("<Tab>")
    editor.wait_for_lines("def area(width, height):", *f"    ret{ghost}".split("\n"))


def running(editor: Neovim) -> bool:
    """Whether anything is still being written."""
    before = editor.ghost
    editor.lua("vim.wait(500)")
    return editor.ghost != before


def test_two_neovims_share_a_daemon(another: Another) -> None:
    editor, script = another()
    say(script)
    other = Neovim(editor.version, editor.folder, script.program)
    try:
        for number, one in enumerate((editor, other)):
            one.setup(wait=False)
            one.open(f"area{number}.py", DEF)
        for one in (editor, other):
            one.wait_until_ready()
            one.keys("o    ret")
        for one in (editor, other):
            one.wait_for_ghost("urn 3 * radius")
        assert len(script.heard("load")) == 1
    finally:
        other.close()
