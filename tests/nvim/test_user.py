"""What a new user comes across: commands, reports, and other plugins' menus."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.nvim import Neovim, until
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"
Another = Callable[[], tuple[Neovim, Script]]


def open_ready(editor: Neovim, name: str, content: str) -> None:
    """Edit a file, and wait for the engine."""
    editor.open(name, content)
    editor.wait_until_ready()


def test_the_log_is_opened(editor: Neovim) -> None:
    open_ready(editor, "area.py", DEF)
    editor.nvim.command("CompletionLs log")
    assert editor.nvim.funcs.expand("%:t") == "lsp.log"
    assert "deprecated" not in editor.nvim.funcs.execute("messages")


# What nvim-cmp and blink.cmp say of their menus, which are not Neovim's.
MENUS = {
    "nvim-cmp": """
        local listeners = {}
        package.loaded.cmp = { event = { on = function(_, name, listener)
          listeners[name] = listener
        end } }
        function _G.menu(name) listeners["menu_" .. name]({}) end
    """,
    "blink.cmp": """
        local events = { opened = "BlinkCmpMenuOpen", closed = "BlinkCmpMenuClose" }
        function _G.menu(name) vim.api.nvim_exec_autocmds("User", { pattern = events[name] }) end
    """,
}


@pytest.mark.parametrize("name", MENUS)
def test_it_is_hidden_while_a_menu_is_open(another: Another, name: str) -> None:
    editor, script = another()
    script.say("    ret", "urn 3\n")
    editor.lua(MENUS[name])
    editor.setup(wait=False, hide_with_menu=True)
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    editor.lua("menu('opened')")
    editor.wait_for_ghost("")
    editor.keys("u")
    until(lambda: editor.lines[1] == "    retu", "the key is lost")
    assert editor.ghost == ""
    editor.lua("menu('closed')")
    editor.wait_for_ghost("rn 3")
    editor.lua("menu('opened')")
    editor.wait_for_ghost("")
    editor.keys("<Esc>S    ret")
    editor.wait_for_ghost("urn 3")
    assert not editor.complaints()


def report(editor: Neovim) -> str:
    """What :checkhealth says."""
    editor.nvim.command("checkhealth completion_ls")
    lines = editor.lines
    editor.nvim.command("bwipeout")
    return "\n".join(lines)


def test_the_report_is_about_the_buffer_that_was_current(editor: Neovim) -> None:
    open_ready(editor, "area.py", DEF)
    assert "not for the buffer" not in report(editor)
    editor.nvim.command("new")
    assert "not for the buffer" in report(editor)


def test_the_report_names_whoever_draws_too(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False)
    assert "draws ghost text, too" not in report(editor)
    if editor.version == "0.12":
        editor.lua("vim.lsp.inline_completion.enable()")
        assert "Neovim's own inline completion draws ghost text, too" in report(editor)


def test_before_setup(another: Another) -> None:
    editor, _ = another()
    assert "is not set up" in editor.nvim.funcs.execute("CompletionLs")
    assert "It is not set up" in report(editor)


def test_a_program_that_is_missing(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False, cmd=["not-there", "--stdio"])
    editor.open("area.py", DEF)
    editor.wait_for_message("completion-ls: The program not-there was not found. Install it")
    assert "Autocommands" not in editor.nvim.funcs.execute("messages")
    assert "The program not-there was not found." in report(editor)
    assert editor.lua("return require('completion_ls').statusline()") == "completion-ls !"


def test_settings_that_a_later_setup_leaves_out_are_gone_after_a_restart(another: Another) -> None:
    editor, _ = another()
    editor.setup(wait=False, settings={"completion": {"lines": "single"}})
    open_ready(editor, "area.py", DEF)
    told = """
        local client = require('completion_ls.client').of(0)
        return client and { client.id, client.config.init_options, client.settings }
    """
    first, *settings = editor.lua(told)
    given = {"completion": {"lines": "single"}}
    assert settings == [given, {"completion-ls": given}]
    editor.setup(wait=False)
    editor.nvim.command("CompletionLs restart")
    until(lambda: (now := editor.lua(told)) and now[0] != first, "it is not started again")
    settings = editor.lua(told)[1:]
    assert settings in ([{}, {"completion-ls": {}}], [[], {"completion-ls": []}])
    assert not editor.complaints()


def test_enable_without_a_value_enables(editor: Neovim) -> None:
    for call, enabled in (("enable(false)", False), ("enable()", True)):
        editor.lua(f"require('completion_ls').{call}")
        assert editor.lua("return require('completion_ls').is_enabled()") is enabled
