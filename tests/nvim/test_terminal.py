"""In a real terminal: what is on its screen, in which colour."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import nvim
from support.nvim import until
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"


class Terminal:
    """A tmux of its own."""

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str]) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
        size = ["-x", str(nvim.COLUMNS), "-y", str(nvim.ROWS)]
        self._run("new-session", "-d", *size, shlex.join(words))

    def type(self, text: str) -> None:
        """As a person does."""
        self._run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        self._run("send-keys", *keys)

    def screen(self, *, colours: bool = False) -> list[str]:
        """What is drawn, by rows."""
        return self._run("capture-pane", "-p", *(["-e"] if colours else [])).split("\n")

    def close(self) -> None:
        """End it."""
        self._run("kill-server")

    def _run(self, *words: str) -> str:
        environment = {**os.environ, "TERM": "xterm-256color"}
        done = subprocess.run(
            [*self._tmux, *words], check=True, capture_output=True, text=True, env=environment
        )
        return done.stdout


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
    terminal = Terminal(folder, words, {**isolated, **own})
    try:
        yield terminal, script
    finally:
        terminal.close()


def test_grey_text_that_grows_and_is_accepted(terminal: tuple[Terminal, Script]) -> None:
    window, script = terminal
    script.say("    ret", "urn 3", " * radius\n", pause_s=1)
    until(lambda: script.heard("load"), "no daemon is started")
    window.type("o    ret")
    until(lambda: window.screen()[1].startswith("    ret"), "nothing is typed")
    seen: list[str] = []

    def is_whole() -> bool:
        line = window.screen()[1].rstrip()
        if not seen or seen[-1] != line:
            seen.append(line)
        return line == "    return 3 * radius"

    until(is_whole, f"it is not whole: {seen}")
    assert seen[-2:] == ["    return 3", "    return 3 * radius"]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    # The typed part and the ghost are of different colours.
    coloured = window.screen(colours=True)[1]
    typed, ghost = re.split(r"(?<=ret)", coloured, maxsplit=1)
    assert ghost.startswith("\x1b[")
    assert "urn 3 * radius" in re.sub(r"\x1b\[[\d;]*m", "", ghost)
    window.press("Tab")
    window.type("!")
    until(lambda: window.screen()[1].rstrip() == "    return 3 * radius!", "it is not accepted")
    assert typed.endswith("ret")
