"""A real terminal without a window: a program in a tmux of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Terminal:
    """The folder has a short path, for a socket."""

    def __init__(self, folder: Path, *, columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", os.devnull]
        self._size = ["-x", str(columns), "-y", str(rows)]

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start it with a command, which has these variables beside those of this process."""
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        subprocess.run(
            [*self._tmux, "new-session", "-d", *self._size, shlex.join(command)],
            env=environment | dict(variables),
            check=True,
        )

    def type(self, text: str) -> None:
        """Type a text."""
        subprocess.run([*self._tmux, "send-keys", "-l", text], check=True)

    def press(self, *keys: str) -> None:
        """Press keys, named as tmux names them."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def screen(self, *, colours: bool = False) -> str:
        """What is on the screen, with the codes of its colours or without."""
        command = [*self._tmux, "capture-pane", "-p", *(["-e"] if colours else [])]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        """End it, and what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)
