"""Where files lie on this machine. Every folder can be moved by one environment variable."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import platformdirs

from completion_ls.config import private

APP = "completion-ls"


def cache_dir() -> Path:
    """Folder for models that were fetched or converted ($COMPLETION_LS_CACHE_DIR)."""
    return Path(
        os.environ.get("COMPLETION_LS_CACHE_DIR")
        or platformdirs.user_cache_dir(APP, appauthor=False)
    )


def config_file() -> Path:
    """The user's settings file ($COMPLETION_LS_CONFIG); it need not exist."""
    named = os.environ.get("COMPLETION_LS_CONFIG")
    return (
        Path(named)
        if named
        else Path(platformdirs.user_config_dir(APP, appauthor=False), "config.toml")
    )


def log_dir() -> Path:
    """Folder for the daemon's log ($COMPLETION_LS_LOG_DIR)."""
    return Path(
        os.environ.get("COMPLETION_LS_LOG_DIR") or platformdirs.user_log_dir(APP, appauthor=False)
    )


def state_dir() -> Path:
    """Folder for the counts of what was accepted ($COMPLETION_LS_STATE_DIR)."""
    return Path(
        os.environ.get("COMPLETION_LS_STATE_DIR")
        or platformdirs.user_state_dir(APP, appauthor=False)
    )


def runtime_place() -> Path:
    """Where `runtime_dir` lies, or would lie; nothing is looked at or made."""
    named = os.environ.get("COMPLETION_LS_RUNTIME_DIR")
    if named:
        return Path(named)
    if os.environ.get("XDG_RUNTIME_DIR"):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / APP
    if sys.platform in ("darwin", "win32"):
        return Path(platformdirs.user_runtime_dir(APP, appauthor=False))
    # No session manager made /run/user/UID; the cache folder is this user's own.
    return Path(platformdirs.user_cache_dir(APP, appauthor=False), "run")


def runtime_dir() -> Path:
    """The private folder of sockets, locks and tokens ($COMPLETION_LS_RUNTIME_DIR); made when missing.

    It must belong to this user, be closed to others (0700), whoever made it, and lie where nobody else
    can exchange it: a socket in a folder of somebody else would hand them the user's code. Raises
    PermissionError otherwise.
    """
    folder = runtime_place()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if private.POSIX:
        state = folder.lstat()
        is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
        if is_ours and stat.S_IMODE(state.st_mode) & private.OTHERS:
            folder.chmod(0o700)
    private.check_folder(folder)
    return folder
