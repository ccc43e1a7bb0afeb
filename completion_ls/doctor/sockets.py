"""The folder of sockets, who may look into it, and which daemons answer there."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from completion_ls.config import paths
from completion_ls.doctor import metrics
from completion_ls.doctor.lines import Notes
from completion_ls.models.store import shown
from completion_ls.wire import inquiry
from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import MAX_SOCKET_PATH, DaemonConfig, Endpoint

OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Daemons:
    """Those that answer: their figures by the names of their endpoints."""

    figures: dict[str, dict[str, Any]]

    def has_loaded(self, config: DaemonConfig) -> bool:
        """Whether a daemon of these settings has its model loaded."""
        return "model" in self.figures.get(f"engine-{config.identity}", {})


def look(notes: Notes, config: DaemonConfig) -> Daemons:
    """Look at folder, transport and daemons. The folder is made, and closed to others, as every
    command does that may need it."""
    if not _folder(notes):
        return Daemons({})
    endpoint = Endpoint.of(config)
    _transport(notes, endpoint, config.daemon.transport)
    endpoints = Endpoint.all()
    for one in endpoints:
        _rights(notes, one)
    answers = asyncio.run(_ask_all(endpoints))
    found = {}
    for one, answer in zip(endpoints, answers, strict=True):
        if isinstance(answer, dict):
            found[one.name] = answer
            _running(notes, one, answer)
        elif answer:
            notes.remark(one.name, answer)
        else:
            _silent(notes, one)
    if not endpoints:
        notes.ok("daemons", "none runs; an editor starts one")
    metrics.look(notes, config, found)
    return Daemons(found)


def _folder(notes: Notes) -> bool:
    """Whether there is a folder that sockets may be put into."""
    place = paths.runtime_place()
    before = _mode(place)
    try:
        paths.runtime_dir()
    except PermissionError as error:
        known = f"{error}" if error.errno is None else _unusable(place, error)
        notes.failed("folder", known)
        return False
    except OSError as error:
        notes.failed("folder", _unusable(place, error))
        return False
    if before is not None and before & OTHERS and os.name == "posix":
        notes.remark(
            "folder",
            f"{place} was open to others (rights {before:04o}), and has been closed (0700) just now. "
            "If that comes again, look which program or script opens it.",
        )
    else:
        notes.ok("folder", f"{shown(place)}, your own, 0700")
    return True


def _mode(place: Path) -> int | None:
    try:
        return stat.S_IMODE(place.lstat().st_mode)
    except OSError:
        return None


def _unusable(place: Path, error: OSError) -> str:
    return (
        f"The folder {place} cannot be made or used ({error.strerror}); name another in "
        "COMPLETION_LS_RUNTIME_DIR."
    )


def _transport(notes: Notes, endpoint: Endpoint, asked: str) -> None:
    try:
        unix = endpoint.uses_unix(asked)
    except OSError as error:
        notes.failed("transport", str(error))
        return
    if unix:
        notes.ok("transport", "Unix socket")
    elif asked == "tcp" or not hasattr(socket, "AF_UNIX"):
        notes.ok("transport", "loopback TCP with a token")
    else:
        length = len(os.fsencode(endpoint.socket_file))
        notes.remark(
            "transport",
            f"The path of the socket would have {length} bytes, more than {MAX_SOCKET_PATH}, so it is "
            "loopback TCP with a token. With a shorter COMPLETION_LS_RUNTIME_DIR it is a socket.",
        )


def _rights(notes: Notes, endpoint: Endpoint) -> None:
    for file in (endpoint.socket_file, endpoint.tcp_file):
        mode = _mode(file)
        if mode is not None and mode & OTHERS and os.name == "posix":
            notes.failed(
                endpoint.name,
                f"{file} is open to others (rights {mode:04o}); run `chmod 600 {file}`.",
            )


def _running(notes: Notes, endpoint: Endpoint, figures: dict[str, Any]) -> None:
    what = figures.get("model") or f"loading ({figures.get('loading', 'its model')})"
    minutes = float(figures.get("uptime_s", 0)) / 60
    notes.ok(
        endpoint.name,
        f"{what}, process {figures.get('pid')}, for {minutes:.0f} min, windows of editors: "
        f"{figures.get('fronts', 0)}",
    )


def _silent(notes: Notes, endpoint: Endpoint) -> None:
    """Nothing answers: a daemon hangs, or one that was killed has left its files."""
    if not _is_held(endpoint):
        file = endpoint.socket_file if endpoint.socket_file.exists() else endpoint.tcp_file
        notes.remark(
            endpoint.name,
            f"{file} was left by a daemon that was killed. It does no harm: the next daemon of those "
            "settings takes it away, or you delete it.",
        )
        return
    pid = _holder(endpoint)
    end = f"`kill {pid}`" if pid else "end its process"
    notes.failed(
        endpoint.name,
        f"A daemon holds {endpoint.life_lock} and does not answer within {inquiry.ANSWER_S:g} s. If it "
        f"was not just started, {end}; the next keystroke starts another.",
    )


def _is_held(endpoint: Endpoint) -> bool:
    if not endpoint.life_lock.exists():
        return False
    lock = FileLock(endpoint.life_lock)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _holder(endpoint: Endpoint) -> int | None:
    """The process that has the lock's file open, other than this one."""
    wanted = str(endpoint.life_lock.resolve())
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if process.pid == os.getpid() or "daemon run" not in words:
            continue
        try:
            if any(file.path == wanted for file in process.open_files()):
                return int(process.pid)
        except (psutil.Error, OSError):
            continue
    return None


async def _ask_all(endpoints: list[Endpoint]) -> list[dict[str, Any] | str]:
    return list(await asyncio.gather(*map(_ask, endpoints)))


async def _ask(endpoint: Endpoint) -> dict[str, Any] | str:
    """A daemon's figures, or a sentence where it has none for us, empty where nothing answers."""
    try:
        return await inquiry.figures_of(endpoint)
    except NoDaemon:
        return ""
    except (Refused, inquiry.Busy) as error:
        return str(error)
