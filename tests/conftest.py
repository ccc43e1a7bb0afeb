"""Every test has settings, sockets and logs of its own; the model's cache is shared."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.apart import PREFIX, folders

# Before any test imports torch; the daemon does the same (daemon/load.py says why).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
CACHE = os.environ.get("COMPLETION_LS_CACHE_DIR")


def isolate(folder: Path) -> dict[str, str]:
    """Variables that keep a process to this folder (the cache of models stays the user's)."""
    return folders(folder) | ({"COMPLETION_LS_CACHE_DIR": CACHE} if CACHE else {})


def stop_daemons(environment: dict[str, str]) -> None:
    """Stop the daemons of an isolated folder."""
    subprocess.run(
        [sys.executable, "-m", "completion_ls", "daemon", "stop"],
        env={**os.environ, **environment},
        check=False,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """This test's own folders, in the environment of this process and its children."""
    # A Unix socket's path must be short, and pytest's tmp_path is not.
    folder = Path(tempfile.mkdtemp(prefix="cls-"))
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    environment = isolate(folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("completion_ls.config.sources._given", "")  # `--profile` sets it
    loggers = [logging.getLogger(name) for name in (None, "completion_ls")]
    levels = [logger.level for logger in loggers]
    yield environment
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)  # the command line sets them
    if any((folder / "run").glob("*.life.lock")):
        stop_daemons(environment)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared() -> Iterator[dict[str, str]]:
    """Folders of one daemon for the whole run: the tests that only use it need not load it again."""
    folder = Path(tempfile.mkdtemp(prefix="cls-"))
    environment = isolate(folder)
    yield environment
    stop_daemons(environment)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model, converted; fetched when it is missing."""
    from completion_ls.models.local import prepare

    return prepare("smollm2-135m-instruct").folder
