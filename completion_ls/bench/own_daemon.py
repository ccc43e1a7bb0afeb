"""A daemon for one measurement.

What the daemon of the user's editors has cached would flatter the figures, and the measurement would
take room in its cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.stop import Stuck, stop_daemon

RUNTIME_DIR = "COMPLETION_LS_RUNTIME_DIR"


@contextmanager
def own_daemon() -> Iterator[None]:
    """As long as this lasts, fronts of this process and its children find, or start, a daemon that
    nobody else has; at the end it is stopped."""
    before = os.environ.get(RUNTIME_DIR)
    folder = tempfile.mkdtemp(prefix="cls-")  # short: a socket's path must be
    os.environ[RUNTIME_DIR] = folder
    try:
        yield
    finally:
        for endpoint in Endpoint.all():
            with contextlib.suppress(NoDaemon, Refused, Stuck, OSError):
                asyncio.run(stop_daemon(endpoint))
        if before is None:
            del os.environ[RUNTIME_DIR]
        else:
            os.environ[RUNTIME_DIR] = before
        shutil.rmtree(folder, ignore_errors=True)
