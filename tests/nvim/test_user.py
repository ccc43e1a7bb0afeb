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
