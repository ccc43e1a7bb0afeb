"""A daemon's figures, for who only looks: nothing is started, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from completion_ls.wire.connection import Connection, NoDaemon
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.messages import GetStatus, Status

ANSWER_S = 5.0


class Busy(Exception):
    """A daemon has welcomed us and gives no figures in time; the message is a sentence."""


async def figures_of(endpoint: Endpoint) -> dict[str, Any]:
    """Raises NoDaemon, also where one does not answer at all, Refused, and Busy."""
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await Connection.open(endpoint)
    except TimeoutError:
        raise NoDaemon from None
    try:
        connection.send(GetStatus())
        async with asyncio.timeout(ANSWER_S):
            while message := await connection.receive():
                if isinstance(message, Status):
                    return message.figures
    except TimeoutError:
        pid = connection.welcome.pid
        raise Busy(f"Process {pid} is busy: no figures came in {ANSWER_S:g} s.") from None
    finally:
        connection.close()
    raise NoDaemon
