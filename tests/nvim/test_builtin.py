"""Neovim's own inline completion instead of the plugin's drawing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.nvim import Neovim, until, until_equal
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

Another = Callable[[], tuple[Neovim, Script]]
DEF = "def area(radius):\n"
DRAWN = """
    local namespace = vim.api.nvim_get_namespaces()["nvim.lsp.inline_completion"]
    local marks = vim.api.nvim_buf_get_extmarks(0, namespace, 0, -1, { details = true })
    return #marks > 0 and marks[1][4].virt_text[1][1] or ""
"""


@pytest.fixture
def builtin(another: Another, version: str) -> tuple[Neovim, Script]:
    """A Neovim that draws by itself, in a file."""
    if version != "0.12":
        pytest.skip("Neovim has this from 0.12 on")
    editor, script = another()
    editor.setup(wait=False, builtin=True)
    script.say("    ret", "urn 3 * radius\n", others=["urn 4\n"])
    return editor, script


@pytest.mark.parametrize("file", [DEF, DEF.replace("\n", "\r\n")])
def test_typed_along_then_accepted(builtin: tuple[Neovim, Script], file: str) -> None:
    editor, _ = builtin
    editor.open("area.py", file)
    editor.wait_until_ready()
    editor.keys("o    ret")
    until_equal(lambda: editor.lua(DRAWN), "urn 3 * radius")
    editor.keys("ur<Tab>")
    editor.wait_for_lines("def area(radius):", "    return 3 * radius")
    editor.keys("!<Tab>.")
    until(lambda: editor.lines[1].startswith("    return 3 * radius!"), "the key is lost")
    assert editor.lines[1].endswith(".")
    assert editor.ghost == ""
    counts = editor.lua("return require('completion_ls.client').figures(0).suggestions")
    assert counts["accepted"] == 1
    # It may tell of what was typed fast, and of this, as one change.
    assert counts["characters_accepted"] in (len("n 3 * radius"), len("urn 3 * radius"))


def test_before_0_12_the_plugin_draws(another: Another, version: str) -> None:
    if version == "0.12":
        pytest.skip("Neovim has it")
    editor, script = another()
    script.say("    ret", "urn 3\n")
    editor.setup(wait=False, builtin=True)
    editor.wait_for_message("`builtin` needs Neovim 0.12; the plugin draws by itself.")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")


def test_neovims_own_acceptance_runs_the_command(builtin: tuple[Neovim, Script]) -> None:
    editor, _ = builtin
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o    ret")
    until_equal(lambda: editor.lua(DRAWN), "urn 3 * radius")
    assert editor.lua("return vim.lsp.inline_completion.get()")
    editor.wait_for_lines("def area(radius):", "    return 3 * radius")
    counts = editor.lua("return require('completion_ls.client').figures(0).suggestions")
    assert (counts["shown"], counts["accepted"]) == (1, 1)
