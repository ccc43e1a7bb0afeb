"""A daemon for one measurement.

What the daemon of the user's editors has cached would flatter the figures, and the measurement would
take room in its cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.stop import Stuck, stop_daemon

IDLE_EXIT_S = 30
"""It leaves by itself after this, should nobody be left to stop it."""
STARTING_S = 5.0
ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def own_daemon() -> Iterator[None]:
    """As long as this lasts, fronts of this process and its children find, or start, a daemon that
    nobody else has; at the end it is stopped. For the main thread."""
    folder = Path(tempfile.mkdtemp(prefix="cls-"))  # short: a socket's path must be
    ours = {
        "COMPLETION_LS_RUNTIME_DIR": str(folder),
        "COMPLETION_LS_DAEMON__IDLE_EXIT_S": str(IDLE_EXIT_S),
    }
    before = {name: os.environ.get(name) for name in ours}
    handlers = {number: signal.signal(number, _end) for number in ENDINGS}
    os.environ.update(ours)
    try:
        yield
    finally:
        # It takes a moment at most, and a second Ctrl-C would leave things behind.
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _stop(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _stop(folder: Path) -> None:
    deadline = time.monotonic() + STARTING_S
    # One that is still starting has a lock and no socket yet.
    while not Endpoint.all() and list(folder.glob("*.lock")) and time.monotonic() < deadline:
        time.sleep(0.1)
    for endpoint in Endpoint.all():
        with contextlib.suppress(NoDaemon, Refused, Stuck, OSError):
            asyncio.run(stop_daemon(endpoint))


def _end(number: int, _: FrameType | None) -> None:
    """As Ctrl-C: by an exception, so that what was begun is ended."""
    raise SystemExit(128 + number)
