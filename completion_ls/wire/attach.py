"""Attach to the daemon of given settings, and start it when none answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

from filelock import FileLock, Timeout

from completion_ls.config import api_key, paths, private
from completion_ls.wire.connection import Connection, NoDaemon, Silent
from completion_ls.wire.endpoint import DaemonConfig, Endpoint

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
POLL_S = 0.02


class StartFailed(Exception):
    """The daemon did not come up; the message says what it said."""


async def attach(config: DaemonConfig) -> Connection:
    """A connection to the daemon of these settings, started here if need be.

    However many fronts do this at once, one daemon results: the first to hold the start lock starts
    it, the others find it. Raises StartFailed, connection.Refused (Silent, too), or OSError where the
    runtime folder cannot be used.
    """
    endpoint = Endpoint.of(config)
    try:
        return await Connection.open(endpoint)
    except NoDaemon:
        pass
    lock = FileLock(endpoint.start_lock)
    deadline = asyncio.get_running_loop().time() + 2 * START_TIMEOUT_S
    while True:
        # Polled, so that a cancelled attach cannot leave a thread behind that takes the lock.
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            if asyncio.get_running_loop().time() > deadline:
                raise StartFailed(
                    f"Another window is starting the engine daemon, and does not get on. It holds "
                    f"{endpoint.start_lock}; close that window."
                ) from None
            await asyncio.sleep(10 * POLL_S)
        # It may be importing, which can take longer than a hello.
        with contextlib.suppress(NoDaemon, Silent):
            return await Connection.open(endpoint)
    try:
        return await _start(config, endpoint)
    finally:
        lock.release()


async def _start(config: DaemonConfig, endpoint: Endpoint) -> Connection:
    try:
        return await Connection.open(endpoint)
    except NoDaemon:
        log.info("starting the engine daemon %s", endpoint.name)
    log_file = daemon_log(endpoint)
    start_of_log = log_file.stat().st_size if log_file else 0
    process = _spawn(config, endpoint.folder, log_file)
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    while True:
        ended = process.poll()
        try:
            return await Connection.open(endpoint)
        except (NoDaemon, Silent):  # importing, as above
            pass
        if ended == 0:
            # Another daemon has the endpoint and does not listen: it has lost its socket and will
            # notice, or it is about to leave.
            process = _spawn(config, endpoint.folder, log_file)
        elif ended is not None:
            said = _tail(log_file, start_of_log)
            raise StartFailed(f"The engine daemon ended with status {ended}. {said}")
        if asyncio.get_running_loop().time() > deadline:
            process.kill()
            process.wait()
            raise StartFailed(
                f"The engine daemon did not listen within {START_TIMEOUT_S:.0f} s. Its log: {log_file}"
            )
        await asyncio.sleep(POLL_S)


def _spawn(
    config: DaemonConfig, endpoint_folder: Path, log_file: Path | None
) -> subprocess.Popen[bytes]:
    descriptor = private.open_log(log_file) if log_file else os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(descriptor, "ab") as stream:
        process = subprocess.Popen(
            # -P: a random.py in the folder where we run is not the library's.
            [sys.executable, "-P", "-m", "completion_ls", "daemon", "run", "--config", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,  # it outlives the editor window that started it
            cwd=endpoint_folder,
            env=api_key.environment(with_key=config.engine.kind == "remote"),
        )
    # Who ends while we live is not to stay as a zombie.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    assert process.stdin is not None
    # One that ended at once reads nothing; its status and log say why.
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(config.model_dump_json().encode())
    return process


def daemon_log(endpoint: Endpoint) -> Path | None:
    """The daemon's log file, private to this user; the last one is kept when it grew over 1 MB.

    None where none can be written: a full disk must not keep the engine from working.
    """
    folder = paths.log_dir()
    file = folder / f"{endpoint.name}.log"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > 1_000_000:
            file.replace(file.with_suffix(".log.1"))
        os.close(private.open_log(file))
    except OSError as error:
        log.warning("no log is written: %s", error)
        return None
    return file


def _tail(log_file: Path | None, start: int) -> str:
    if log_file is None:
        return "It has no log, since none could be written."
    with log_file.open("rb") as stream:
        stream.seek(max(start, os.fstat(stream.fileno()).st_size - 2000))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"It said nothing; its log is {log_file}."
