"""Run the language server over stdio, TCP or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from completion_ls.lsp.channel import Channel
from completion_ls.lsp.first_answer import answer_initialize

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

PARENT_CHECK_S = 10.0


def serve_stdio() -> int:
    """Serve one editor on standard input and output; returns the exit status."""
    channel = Channel(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    # Whatever a library prints must not get between the frames.
    os.dup2(2, 1)
    item = channel.receive_blocking()
    answered = answer_initialize(item, channel)  # before the slow imports
    channel.give_back(item)
    return asyncio.run(_serve(channel, answered, watch_parent=True))


def serve_tcp(host: str, port: int, certificate: Path | None, key: Path | None) -> int:
    """Listen; every connection that has the token is an editor of its own. Runs until interrupted.
    Raises OSError (a sentence)."""
    from completion_ls.lsp import tcp

    context = tcp.tls_context(certificate, key)
    listener = tcp.open_listener(host, port, has_tls=context is not None)
    _run_until_stopped(tcp.listen(listener, context, _serve_connected))
    return 0


def serve_socket(port: int) -> int:
    """Connect to an editor that listens on this port of the loopback interface."""
    return asyncio.run(_serve_connected(socket.create_connection(("127.0.0.1", port))))


def serve_pipe(path: Path) -> int:
    """Connect to the editor that listens on this pipe, as LSP has it; where none does, listen."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and is no pipe; name another one.") from None
        path.unlink()  # left behind
    else:
        return asyncio.run(_serve_connected(connection))
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen()
    try:
        _run_until_stopped(_listen(listener))
    finally:
        path.unlink(missing_ok=True)
    return 0


def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run it until Ctrl-C or SIGTERM, after which it cleans up."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(run())


async def _listen(listener: socket.socket) -> None:
    from completion_ls.lsp import tcp

    log.warning("listening on %s", listener.getsockname())

    async def serve(connection: socket.socket) -> None:
        await _serve_connected(connection)

    await tcp.accept(listener, serve)


async def _serve_connected(connection: socket.socket) -> int:
    connection.setblocking(True)
    if connection.family != getattr(socket, "AF_UNIX", None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Channel(connection.makefile("rb"), connection.makefile("wb"))
    try:
        item = await channel.receive()
        answered = answer_initialize(item, channel)
        channel.give_back(item)
        return await _serve(channel, answered, watch_parent=False)
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


async def _serve(channel: Channel, answered: int | str | None, *, watch_parent: bool) -> int:
    from completion_ls.lsp.server import create_server

    # pygls logs whole messages, and so the user's code.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    server = create_server()
    watch = asyncio.create_task(_watch_parent(server)) if watch_parent else None
    try:
        return await server.protocol.run(channel, answered)
    finally:
        if watch:
            watch.cancel()
        await server.close()


async def _watch_parent(server: Any) -> None:
    """Leave when the editor has died without closing our input."""
    import psutil

    while server.process_id is None or psutil.pid_exists(server.process_id):
        await asyncio.sleep(PARENT_CHECK_S)
    log.warning("the editor (process %d) has gone", server.process_id)
    sys.stderr.flush()
    os._exit(1)
