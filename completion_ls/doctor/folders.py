"""Whether the folders of completion-ls can be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from completion_ls.config import paths
from completion_ls.doctor.lines import Notes
from completion_ls.models.store import megabytes, shown


def look(notes: Notes) -> None:
    """Nothing is written or made."""
    cache, log, state = paths.cache_dir(), paths.log_dir(), paths.state_dir()
    if why := _trouble(cache):
        notes.failed(
            "cache",
            f"The cache folder {cache} cannot be written ({why}); make it writable, or name another in "
            "COMPLETION_LS_CACHE_DIR.",
        )
    else:
        free = megabytes(shutil.disk_usage(_nearest(cache)).free)
        notes.ok("cache", f"{shown(cache)}, {free} free on its disk")
    for name, folder, variable, loss in (
        ("log", log, "COMPLETION_LS_LOG_DIR", "the daemon has no log"),
        ("state", state, "COMPLETION_LS_STATE_DIR", "what is accepted is not counted"),
    ):
        if why := _trouble(folder):
            notes.remark(
                name,
                f"The folder {folder} cannot be written ({why}), so {loss}; make it writable, or name "
                f"another in {variable}.",
            )
        else:
            notes.ok(name, shown(folder))


def _nearest(folder: Path) -> Path:
    """The folder itself, or that of its parents which is there."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if _is_there(one))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # nobody may look
        return False


def _trouble(folder: Path) -> str:
    """Why it could not be made or written; empty where it could."""
    there = _nearest(folder)
    if not there.is_dir():
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is not writable"
    return ""
