"""One connection of a front to a daemon: connect, say hello, send and receive messages."""

from __future__ import annotations

import asyncio
import socket

from completion_ls import __version__
from completion_ls.wire import codec
from completion_ls.wire.endpoint import LOOPBACK, Endpoint
from completion_ls.wire.messages import PROTOCOL, DaemonMessage, Error, Hello, Message, Welcome
from completion_ls.wire.peer import is_other_user

HELLO_TIMEOUT_S = 10.0


class NoDaemon(Exception):
    """Nothing listens there."""


class Refused(Exception):
    """A daemon listens but does not take this connection; the message is its sentence."""


class Silent(Refused):
    """Something listens and says nothing: a daemon that hangs or was stopped by a signal."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(
            f"An engine daemon listens as {endpoint.name} and does not answer. If that lasts, "
            "`completion-ls doctor` says which process to end."
        )


class Connection:
    """A connection on which the daemon has welcomed us."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Welcome
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.welcome = welcome

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Connection:
        """Connect to the daemon of this endpoint. Raises NoDaemon, Silent or Refused, and PermissionError
        where the folder is not this user's alone."""
        endpoint.check()
        token = ""
        try:
            if hasattr(socket, "AF_UNIX") and endpoint.socket_file.exists():
                reader, writer = await asyncio.open_unix_connection(endpoint.socket_file)
            elif address := endpoint.read_tcp():
                token = address.token
                reader, writer = await asyncio.open_connection(LOOPBACK, address.port)
            else:
                raise NoDaemon
        except OSError as error:
            raise NoDaemon from error
        if is_other_user(writer):
            writer.close()
            raise Refused(
                f"The daemon at {endpoint.socket_file} belongs to another user, so it is sent nothing. "
                "Delete that file; the next request starts a daemon of your own."
            )
        try:
            writer.write(codec.encode(Hello(protocol=PROTOCOL, version=__version__, token=token)))
            body = await asyncio.wait_for(codec.read_body(reader), HELLO_TIMEOUT_S)
            answer = codec.decode(body, codec.daemon_messages) if body is not None else None
        except TimeoutError:  # which is an OSError
            writer.transport.abort()  # what was written to it is never read
            raise Silent(endpoint) from None
        except (OSError, codec.FrameError, codec.MessageError) as error:
            writer.close()
            raise NoDaemon from error
        except BaseException:  # cancelled: the daemon must not count a front that nobody reads
            writer.close()
            raise
        if isinstance(answer, Welcome):
            return cls(reader, writer, answer)
        writer.close()
        if isinstance(answer, Error):
            raise Refused(answer.text)
        raise NoDaemon

    def send(self, message: Message) -> None:
        """Queue a message; raises codec.MessageError where it is too large for a frame."""
        self._writer.write(codec.encode(message))

    async def receive(self) -> DaemonMessage | None:
        """The next message that this version knows; None when the connection has ended."""
        while True:
            try:
                body = await codec.read_body(self._reader)
                return None if body is None else codec.decode(body, codec.daemon_messages)
            except codec.MessageError:
                continue  # from a newer daemon
            except (OSError, codec.FrameError):
                return None

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
