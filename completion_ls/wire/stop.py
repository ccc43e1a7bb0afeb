"""Stopping a daemon, and knowing that it has gone."""

from __future__ import annotations

import asyncio

from filelock import FileLock

from completion_ls.wire.connection import Connection
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.messages import Stop

STOP_TIMEOUT_S = 10.0


class Stuck(Exception):
    """A daemon does not leave; the message says which."""


async def stop_daemon(endpoint: Endpoint) -> None:
    """Have the daemon of an endpoint leave, and wait until it has. Raises NoDaemon where there is
    none, Refused, and Stuck."""
    connection = await Connection.open(endpoint)
    connection.send(Stop())
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            while await connection.receive():
                pass
        await asyncio.to_thread(_wait_until_gone, endpoint)
    except TimeoutError:
        raise Stuck(f"daemon {connection.welcome.pid} does not leave; kill it.") from None
    finally:
        connection.close()


def _wait_until_gone(endpoint: Endpoint) -> None:
    """Wait for the lock that a daemon holds until its last breath. Raises TimeoutError."""
    with FileLock(endpoint.life_lock).acquire(timeout=STOP_TIMEOUT_S):
        pass
