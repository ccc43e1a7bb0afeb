"""The program `completion-ls` as it stands here, for editors to start."""

from __future__ import annotations

import sys
from pathlib import Path


def real_program(folder: Path) -> Path:
    """A file in a folder that runs it, with the real engine."""
    program = folder / "completion-ls"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m completion_ls "$@"\n')
    program.chmod(0o755)
    return program
