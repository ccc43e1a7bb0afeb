"""The program `completion-ls` as it stands here, for editors to start."""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def real_program(folder: Path) -> Path:
    """A file in a folder that runs it, with the real engine."""
    program = folder / "completion-ls"
    # What the default model writes in a test is seldom what it is sure of.
    variable = "export COMPLETION_LS_COMPLETION__SHOW_ABOVE=0"
    command = f'exec "{sys.executable}" -P -m completion_ls "$@"'
    program.write_text(f"#!/bin/sh\n{variable}\n{command}\n")
    program.chmod(0o755)
    return program


def heed_interrupts() -> None:
    """For `preexec_fn`: what runs in the background of a shell ignores Ctrl-C, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
