"""Whether something is at a path that somebody else may have named. `exists`, `is_file` and `is_dir` of Path
raise where a name is too long, or a folder must not be looked into; here that is no."""

from __future__ import annotations

import os
from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether there is anything."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Whether it is a file, or a link to one."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Whether it is a folder, or a link to one."""
    return os.path.isdir(path)  # noqa: PTH112
