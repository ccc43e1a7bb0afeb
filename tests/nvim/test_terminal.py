"""In a real terminal: what is on its screen, in which colour."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import nvim
from support.nvim import until
from support.scripted_daemon import Script
from support.terminal import Terminal

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"


@pytest.fixture
def terminal(version: str, isolated: dict[str, str]) -> Iterator[tuple[Terminal, Script]]:
    """With a Neovim in it that edits a file."""
    folder = Path(isolated["COMPLETION_LS_RUNTIME_DIR"]).parent
    script = Script.make(folder / "script")
    file = folder / "area.py"
    file.write_text(DEF)
    code = f"require('completion_ls').setup{{ cmd = {{ '{script.program}', '--stdio' }} }}"
    options = f"set rtp+={nvim.PLUGIN} noruler noshowmode shortmess+=F indentexpr="
    words = [str(nvim.program(version)), "--clean", "-n", "--cmd", options]
    words += ["-c", f"lua {code}", "-c", "set indentexpr= noautoindent", str(file)]
    own = {f"XDG_{kind}_HOME": str(folder / kind) for kind in ("STATE", "DATA", "CONFIG")}
    terminal = Terminal(folder, columns=nvim.COLUMNS, rows=nvim.ROWS)
    terminal.run(words, {**isolated, **own})
    try:
        yield terminal, script
    finally:
        terminal.close()


def second_row(window: Terminal, *, colours: bool = False) -> str:
    """Of what is drawn."""
    return window.screen(colours=colours).split("\n")[1].rstrip()


def test_grey_text_that_grows_and_is_accepted(terminal: tuple[Terminal, Script]) -> None:
    window, script = terminal
    script.say("    ret", "urn 3", " * radius\n", pause_s=1)
    until(lambda: script.heard("load"), "no daemon is started")
    window.type("o    ret")
    until(lambda: second_row(window).startswith("    ret"), "nothing is typed")
    seen: list[str] = []

    def is_whole() -> bool:
        line = second_row(window)
        if not seen or seen[-1] != line:
            seen.append(line)
        return line == "    return 3 * radius"

    until(is_whole, f"it is not whole: {seen}")
    assert seen[-2:] == ["    return 3", "    return 3 * radius"]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    # The typed part and the ghost are of different colours.
    coloured = second_row(window, colours=True)
    typed, ghost = re.split(r"(?<=ret)", coloured, maxsplit=1)
    assert ghost.startswith("\x1b[")
    assert "urn 3 * radius" in re.sub(r"\x1b\[[\d;]*m", "", ghost)
    window.press("Tab")
    window.type("!")
    until(lambda: second_row(window) == "    return 3 * radius!", "it is not accepted")
    assert typed.endswith("ret")
