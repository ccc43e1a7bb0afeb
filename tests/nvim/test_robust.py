"""What users and other plugins do that is out of the ordinary: nothing is left over, nothing is raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.nvim import Neovim, until, until_equal
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"
BODY = "    side = 2 * radius\n    return side * side\n\n"


def marks(editor: Neovim) -> list[object]:
    """What is drawn in the current buffer."""
    namespace = editor.lua("return require('completion_ls.ghost').namespace")
    found: list[object] = editor.nvim.api.buf_get_extmarks(0, namespace, 0, -1, {})
    return found


def clients(editor: Neovim) -> list[int]:
    """Of the current buffer."""
    code = """
        return vim.tbl_map(function(client)
          return client.id
        end, vim.lsp.get_clients({ bufnr = 0, name = "completion_ls" }))
    """
    found: list[int] = editor.lua(code)
    return found


def test_interrupting_insertion_ends_it(editor: Neovim, script: Script) -> None:
    script.say("", BODY)
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o")
    editor.wait_for_ghost(BODY.rstrip())
    editor.keys("<C-c>")
    editor.wait_for_mode("n")
    until(lambda: not marks(editor), "it stays")


def test_the_server_finds_nothing_wrong_with_our_settings(
    another: Callable[[], tuple[Neovim, Script]],
) -> None:
    editor, _ = another()
    editor.open("area.py", DEF)
    editor.setup()
    editor.setup(settings={"completion": {}})
    editor.lua("require('completion_ls.client').figures(0)")  # what came before is answered
    assert "LSP[completion_ls]" not in editor.nvim.funcs.execute("messages")


@pytest.mark.parametrize("command", ["file other.py", "saveas! other.py"])
def test_a_buffer_with_another_name(editor: Neovim, script: Script, command: str) -> None:
    script.say("x = ", "area(3)\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.nvim.command(f"lcd {editor.folder}")
    editor.nvim.command(command)
    editor.wait_until_ready()
    editor.keys("ox = ")
    editor.wait_for_ghost("area(3)")
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), "x = area(3)")
    editor.nvim.command(f"lcd {Path.cwd()}")


def test_what_is_there_already_is_not_offered(editor: Neovim, script: Script) -> None:
    script.say("area(3", ")\n")
    editor.open("notes.txt", DEF + "area()\n", expandtab=False)
    editor.wait_until_ready()
    editor.keys("jf)i3")
    until(lambda: script.heard("done"), "it does not answer")
    editor.lua("vim.wait(200)")
    assert not editor.lua("return require('completion_ls').is_visible()")
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), "area(3\t)")


def test_accepted_lines_are_not_folded_away(editor: Neovim, script: Script) -> None:
    script.say("", BODY)
    editor.open("area.py", DEF + "# the end\n", foldmethod="indent", foldlevel=0)
    editor.wait_until_ready()
    editor.keys("o")
    editor.wait_for_ghost(BODY.rstrip())
    editor.keys("<Tab>")
    editor.wait_for_screen(DEF.strip(), *BODY.rstrip().split("\n"), "# the end")


def test_an_event_that_ends_it_as_well(editor: Neovim, script: Script) -> None:
    editor.lua(
        """
        vim.api.nvim_create_autocmd("User", {
          group = vim.api.nvim_create_augroup("test", {}),
          pattern = { "CompletionLsHidden", "CompletionLsShown" },
          nested = true,
          callback = function() require("completion_ls").dismiss() end,
        })
        vim.g.shown = 0
        vim.api.nvim_create_autocmd("User", {
          group = "test",
          pattern = "CompletionLsShown",
          callback = function() vim.g.shown = vim.g.shown + 1 end,
        })
        """
    )
    script.say("x = ", "area(3)\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("ox = ")
    until(lambda: editor.nvim.vars["shown"], "it is not shown")
    until(lambda: not marks(editor), "it stays")


def test_events_that_raise_errors(another: Callable[[], tuple[Neovim, Script]]) -> None:
    editor, script = another()
    editor.open("area.py", DEF)
    editor.setup()
    editor.nvim.command("autocmd User CompletionLsHidden,CompletionLsStatus throw 'theirs'")
    script.say("x = ", "area(3)\n")
    editor.keys("ox = ")
    editor.wait_for_ghost("area(3)")
    editor.keys("<Esc>")
    editor.wait_for_message("theirs")
    assert not marks(editor)
    # And a server that is lost comes back.
    first = editor.lua("return require('completion_ls.client').of(0).id")
    for process in editor.lua("return vim.api.nvim_get_proc_children(vim.fn.getpid())"):
        os.kill(process, signal.SIGKILL)
    code = "local one = require('completion_ls.client').of(0) return one and one.id or ..."
    until(lambda: editor.lua(code, first) != first, "it does not come back")


def test_a_server_that_hangs_is_started_anew(
    another: Callable[[], tuple[Neovim, Script]],
) -> None:
    editor, script = another()
    editor.open("area.py", DEF)
    editor.setup()
    script.say("x = ", "area(3)\n")
    (server,) = editor.lua("return vim.api.nvim_get_proc_children(vim.fn.getpid())")
    os.kill(server, signal.SIGSTOP)
    try:
        editor.nvim.command("CompletionLs restart")
        until_equal(lambda: len(clients(editor)), 2)
        editor.wait_until_ready()
        editor.keys("ox = ")
        editor.wait_for_ghost("area(3)")
    finally:
        os.kill(server, signal.SIGCONT)
    until_equal(lambda: len(clients(editor)), 1)
    assert editor.lua("return require('completion_ls.client').state.state") == "ready"


def test_a_server_that_ends_at_once(another: Callable[[], tuple[Neovim, Script]]) -> None:
    editor, _ = another()
    editor.open("area.py", DEF)
    editor.setup(wait=False, cmd=["false"])
    state = "return require('completion_ls.client').state.state"
    until_equal(lambda: editor.lua(state), "failed")
    assert editor.lua("return require('completion_ls').statusline()") == "completion-ls !"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("{ cmd = { 5 } }", "`cmd` must name a program"),
        ("{ cmd = { '' } }", "`cmd` must name a program"),
        ("{ keys = { accept = '' } }", "`keys.accept` must be a key"),
        ("{ keys = { accept = '<M-]>' } }", "`keys.accept` and `keys.next` are both <M-]>"),
        ("{ filetypes = { 'python' } }", "`filetypes` is written as"),
        ("{ filetypes = { python = 'no' } }", "`filetypes` is written as"),
        ("{ [{}] = 1 }", "Known are: auto"),
    ],
)
def test_a_wrong_setup_is_told(editor: Neovim, options: str, problem: str) -> None:
    editor.lua(f"require('completion_ls').setup({options})")
    assert problem in editor.nvim.funcs.execute("messages")


def test_a_mapping_for_all_buffers_behind_one_of_the_buffer(
    another: Callable[[], tuple[Neovim, Script]],
) -> None:
    editor, _ = another()
    editor.open("area.py", DEF)
    editor.nvim.command("inoremap <C-l> all")
    editor.nvim.command("inoremap <buffer> <C-l> one")
    editor.setup(keys={"accept": "<C-l>"})
    editor.nvim.command("iunmap <buffer> <C-l>")
    editor.keys("o<C-l>")
    editor.wait_for_lines(DEF.strip(), "all")
    editor.setup()
    assert editor.nvim.funcs.maparg("<C-l>", "i") == "all"


def test_off_is_off_where_neovim_draws(
    version: str, another: Callable[[], tuple[Neovim, Script]]
) -> None:
    if version != "0.12":
        pytest.skip("Neovim 0.12 has it")
    editor, _ = another()
    editor.open("area.py", DEF)
    editor.setup(builtin=True)
    code = "return vim.lsp.inline_completion.is_enabled({ bufnr = 0 })"
    assert editor.lua(code) is True
    editor.nvim.command("CompletionLs off")
    assert editor.lua(code) is False
    editor.nvim.command("CompletionLs on")
    assert editor.lua(code) is True
    editor.setup(builtin=False)
    assert editor.lua(code) is False
