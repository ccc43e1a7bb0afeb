"""Folders and settings that keep what a test starts apart from the user's own."""

from __future__ import annotations

from pathlib import Path

PREFIX = "COMPLETION_LS_"


def folders(folder: Path) -> dict[str, str]:
    """Variables that have sockets, logs, counts and settings (an empty file) in `folder`; the cache of
    models stays as it is."""
    config = folder / "config.toml"
    config.touch()
    places = {"RUNTIME_DIR": "run", "LOG_DIR": "log", "STATE_DIR": "state"}
    return {
        **{PREFIX + name: str(folder / place) for name, place in places.items()},
        f"{PREFIX}CONFIG": str(config),
    }
