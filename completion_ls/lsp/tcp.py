"""Editors over TCP, with TLS where it is asked for: who has the token is handed on to a session.

asyncio speaks with the network (one TLS connection must not be read and written by two threads at once);
the session, whose channel has a thread for each way, gets a pair of sockets of its own, between which
and the network bytes are carried.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from completion_ls.config import paths, private
from completion_ls.lsp import admission
from completion_ls.lsp.admission import NotAdmitted
from completion_ls.lsp.channel import frame

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""So long a connection may take for TLS and its first message."""
MOST_STRANGERS = 16
"""So many connections may be without a first message at once; for another one, that which came first is
closed. An editor says its first message at once, so others would have to be very quick to keep it out."""
LINGER_S = 1.0
CLOSING_S = 5.0
BLOCK = 1 << 16

Session = Callable[[socket.socket], Awaitable[int]]
"""Serves one editor on a connected socket."""


def open_listener(host: str, port: int, *, has_tls: bool) -> socket.socket:
    """A socket that listens there. Raises PermissionError (a sentence) where other machines could
    connect and there is no TLS, and OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    loopback = all(ipaddress.ip_address(one[4][0]).is_loopback for one in found)
    if not loopback and not has_tls:
        raise PermissionError(
            f"{host} can be reached from other machines, and without TLS everybody between could read "
            "your code and the token: give --tls-cert and --tls-key, or listen on 127.0.0.1 (from "
            "another machine `ssh -L` leads there)."
        )
    try:
        return socket.create_server((str(address[0]), port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"{host}:{port} cannot be listened on ({why}). Name another port.") from None


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What the server shows, from PEM files; None where none are named. Raises OSError (a sentence)
    where one is missing or they cannot be used."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise OSError("TLS needs both --tls-cert and --tls-key.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(
            certificate, key, password=lambda: ""
        )  # nobody is there to be asked
    except (OSError, ValueError) as error:
        raise OSError(
            f"The certificate {certificate} and the key {key} cannot be used ({error}); they must be "
            "PEM files that belong together, the key without a password."
        ) from error
    return context


async def listen(listener: socket.socket, context: ssl.SSLContext | None, session: Session) -> None:
    """Serve every editor that has the token, until cancelled. Raises OSError (a sentence) where there
    can be no token."""
    address = listener.getsockname()
    token = admission.token_of_environment()
    file = None if token else paths.runtime_dir() / _token_file(*address[:2])
    if file:
        token = admission.new_token()
        private.write(file, token)
    assert token
    door = Door(context, token, session)
    where = f"in {file}" if file else f"that of {admission.TOKEN_VARIABLE}"
    host = f"[{address[0]}]" if listener.family == socket.AF_INET6 else address[0]
    log.warning("listening on %s:%d; the token is %s", host, address[1], where)
    try:
        await accept(listener, door.enter)
    finally:
        if file:
            file.unlink(missing_ok=True)


def _token_file(host: str, port: int) -> str:
    """Two addresses can have the same port."""
    place = f"{port}" if host == "127.0.0.1" else f"{host.replace(':', '_')}-{port}"
    return f"editors-{place}.token"


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Have each connection served by a task of its own, until cancelled."""
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Future[None]] = set()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:  # out of file descriptors, perhaps only for a moment
            log.error("an editor cannot connect: %s", error)
            await asyncio.sleep(1)
            continue
        task = asyncio.ensure_future(serve(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)  # where more wait, accepting them does not


class Door:
    """Lets those in who have the token, and a few at a time say so."""

    def __init__(self, context: ssl.SSLContext | None, token: str, session: Session) -> None:
        self._context = context
        self._token = token
        self._session = session
        self._strangers: dict[asyncio.Task[None], None] = {}
        """In the order of their arrival."""

    async def enter(self, connection: socket.socket) -> None:
        """Serve a connection; it is closed in the end."""
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        if len(self._strangers) >= MOST_STRANGERS:
            first_come = next(iter(self._strangers))
            del self._strangers[first_come]
            first_come.cancel()
        self._strangers[task] = None
        reader = writer = first = None
        try:
            async with asyncio.timeout(HELLO_S):
                reader, writer = await self._opened(connection)
                first = admission.admitted(await admission.first_frame(reader), self._token)
        except NotAdmitted as error:
            log.info("a connection was refused: %s", error)
            if reader and writer:
                await _answer_last(reader, writer, admission.response(error))
        except (OSError, EOFError) as error:  # TLS that is none, a silent one, one that has gone
            log.info("a connection came to nothing: %s", type(error).__name__)
        except asyncio.CancelledError:
            if writer:
                writer.transport.abort()
            raise
        finally:
            self._strangers.pop(task, None)
            if first is None:
                await _close(writer) if writer else connection.close()
        if reader and writer and first is not None:
            await self._serve(reader, writer, first)

    async def _opened(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BLOCK)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=HELLO_S if self._context else None,
            ssl_shutdown_timeout=CLOSING_S if self._context else None,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes
    ) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # out of file descriptors, perhaps only for a moment
            log.error("an editor cannot be served: %s", error)
            await _close(writer)
            return
        near_reader, near_writer = await asyncio.open_connection(sock=ours, limit=BLOCK)
        near_writer.write(frame(first))
        incoming = asyncio.create_task(_carry(reader, near_writer))
        outgoing = asyncio.create_task(_carry(near_reader, writer))
        try:
            await self._session(theirs)
            async with asyncio.timeout(CLOSING_S):  # what it said last
                await outgoing
        except TimeoutError:
            writer.transport.abort()
        finally:
            incoming.cancel()
            outgoing.cancel()
            near_writer.close()
            await _close(writer)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until one side has gone, and tell the other."""
    with contextlib.suppress(OSError):  # a connection that is reset has gone, too
        while block := await reader.read(BLOCK):
            writer.write(block)
            await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


async def _answer_last(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes
) -> None:
    """Send an answer, and read a little of what still comes: closed with bytes unread, the answer would
    be lost on its way."""
    writer.write(answer)
    left = admission.MAX_HELLO
    with contextlib.suppress(OSError):
        async with asyncio.timeout(LINGER_S):
            if writer.can_write_eof():
                writer.write_eof()
            while left > 0 and (block := await reader.read(BLOCK)):
                left -= len(block)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close after what was written is sent; a peer that does not read is cut off."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSING_S):
            await writer.wait_closed()
    except OSError:
        writer.transport.abort()
