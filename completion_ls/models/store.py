"""The cache folder on the disk: who may change it, room in it, and hashes of files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from completion_ls.config import shortage
from completion_ls.config.paths import cache_dir
from completion_ls.models.errors import ModelError

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it is done (0 to 1)."""

CHUNK = 1 << 20
SLACK = 32 << 20
"""Bytes asked for beyond what a step writes, so that the disk is not full to the last byte."""

WAITING = "another process is fetching or converting a model; waiting for it"


def silent(text: str, fraction: float) -> None:
    """Progress that nobody watches."""


@contextmanager
def sole(name: str, progress: Progress) -> Iterator[Path]:
    """The sole right to what the lock file `name` in the cache stands for; gives the cache folder.

    A second process waits here (and says so to `progress`); a process that died holds no lock.
    An OSError in the body becomes a ModelError.
    """
    # filelock takes longer to import than everything that a ready model needs.
    from filelock import FileLock, Timeout

    cache = cache_dir()
    try:
        file = cache / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(WAITING, 0.0)
            lock.acquire(poll_interval=0.2)
        try:
            yield cache
        finally:
            lock.release()
    except OSError as error:
        if error.errno in shortage.DISK:
            raise no_room(cache, SLACK) from error
        raise ModelError(
            f"The cache folder {cache} cannot be used ({error.strerror or error}); make it "
            "writable or name another one in COMPLETION_LS_CACHE_DIR."
        ) from error


@contextmanager
def workspace(progress: Progress) -> Iterator[Path]:
    """The sole right to change the cache, with an empty folder in it that is gone afterwards.

    Whatever lies in the temporary place once the lock is held was left by a process that died.
    """
    with sole("models.lock", progress) as cache:
        place = cache / "tmp"
        shutil.rmtree(place, ignore_errors=True)
        # A name of its own: a child of a killed process may still be writing into the old one.
        folder = place / secrets.token_hex(4)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(place, ignore_errors=True)


def check_room(folder: Path, need: int) -> None:
    """Raise ModelError unless `need` bytes and some slack are free where `folder` lies."""
    if shutil.disk_usage(folder).free < need + SLACK:
        raise no_room(folder, need + SLACK)


def no_room(folder: Path, need: int) -> ModelError:
    """The error for a full disk; `need` is in bytes."""
    free = shutil.disk_usage(folder).free
    return ModelError(
        f"The disk is too full for the model: {megabytes(need)} are needed in {cache_dir()} and "
        f"{megabytes(free)} are free; make room or name a folder on another disk in "
        "COMPLETION_LS_CACHE_DIR."
    )


def megabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def says_disk_full(text: str) -> bool:
    """Whether a message of another program means a full disk or quota."""
    return (
        re.search(r"no space left|disk quota|\b(errno|os error) 28\b", text, re.IGNORECASE)
        is not None
    )


def file_sha256(path: Path, progress: Progress = silent) -> str:
    """SHA-256 (hex) of a file. Remembered by path, size and time of change, as reading gigabytes at
    every start would take seconds. Raises OSError when the file cannot be read."""
    memory = cache_dir() / "hashes.json"
    known = _read_hashes(memory)
    state = path.stat()
    key, stamp = str(path), [state.st_size, state.st_mtime_ns]
    match known.get(key):
        case [size, mtime_ns, str(sha256)] if [size, mtime_ns] == stamp:
            return sha256
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
            done += len(block)
            progress(f"reading {path.name}", done / max(state.st_size, 1))
    known = {name: value for name, value in known.items() if Path(name).exists()}
    known[key] = [*stamp, digest.hexdigest()]
    new = memory.with_name(f"{memory.name}.{secrets.token_hex(4)}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(known, indent=1), encoding="utf-8")
        new.replace(memory)
    except OSError as error:  # the hash is right all the same, only not remembered
        log.debug("cannot write %s: %s", memory, error)
        new.unlink(missing_ok=True)
    return digest.hexdigest()


def _read_hashes(memory: Path) -> dict[str, object]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def shown(path: Path) -> str:
    """A path for people: the home folder as ~."""
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises where there is no home
    text = str(path)
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text
