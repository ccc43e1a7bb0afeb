"""LSP frames over a pair of binary streams, each with a thread of its own.

Reading and writing block in threads, so that neither a silent editor nor one that does not read
can hold the event loop. The same channel serves stdio, TCP and pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import threading
from typing import BinaryIO

log = logging.getLogger(__name__)

# Searched at the end of a line: where a length was wrong, the rest of a body stands before it.
CONTENT_LENGTH = re.compile(rb"content-length:[ \t]*(\d{1,10})$", re.IGNORECASE)
HEADER = re.compile(rb"[\w-]+:")
MAX_BODY = 256 * 1024 * 1024
"""Most bytes of one message: a didOpen carries a whole file."""
MAX_HEADER_LINE = 8192
MAX_UNREAD = 64 * 1024 * 1024
"""An editor that leaves this many bytes unread is given up: it must not fill our memory."""


class Malformed(Exception):
    """What was read is no frame; reading goes on behind it. The message says what was wrong."""


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end of the stream. Raises Malformed."""
    length: int | None = None
    while True:
        line = stream.readline(MAX_HEADER_LINE)
        if not line:
            return None
        text = line.strip()
        if match := CONTENT_LENGTH.search(text):
            length = int(match[1])
        elif not text and length is not None:
            break
        elif text and (not HEADER.match(text) or text.lower().startswith(b"content-length")):
            raise Malformed("Bytes that are no LSP header were received; they are skipped.")
    if length > MAX_BODY:
        remaining = length
        while remaining > 0 and (skipped := stream.read(min(remaining, 1 << 20))):
            remaining -= len(skipped)
        raise Malformed(
            f"A message of {length} bytes is over the limit of {MAX_BODY}; it is skipped."
        )
    body = stream.read(length)
    return body if len(body) == length else None


def frame(body: bytes) -> bytes:
    """A body with its header."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Channel:
    """Frames in and out. `received` holds bodies, Malformed, and None once the other side is gone."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._received: queue.SimpleQueue[bytes | Malformed | None] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._unread = 0
        """Bytes that wait to be written."""
        self._given_back: list[bytes | Malformed | None] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        self._writer = threading.Thread(target=self._write, name="lsp-out", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="lsp-in", daemon=True).start()

    def receive_blocking(self) -> bytes | Malformed | None:
        """The next item, before there is an event loop."""
        return self._received.get()

    def give_back(self, item: bytes | Malformed | None) -> None:
        """Have `receive` give this item again."""
        self._given_back.append(item)

    async def receive(self) -> bytes | Malformed | None:
        """The next item."""
        if self._arrived is None:
            self._arrived = asyncio.Event()
            self._loop = asyncio.get_running_loop()
        if self._given_back:
            return self._given_back.pop()
        while True:
            try:
                return self._received.get_nowait()
            except queue.Empty:
                self._arrived.clear()
            if self._received.empty():
                await self._arrived.wait()

    def send(self, body: bytes) -> None:
        """Queue a message; never blocks. The session ends with an editor that does not read."""
        data = frame(body)
        with self._counting:
            self._unread += len(data)
        if self._unread <= MAX_UNREAD:
            self._outgoing.put(data)
        elif self._unread - len(data) <= MAX_UNREAD:  # the first that is too much
            log.error("the editor does not read what it is sent; the session ends")
            self._put(None)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s`, and close the outgoing stream."""
        self._outgoing.put(None)
        self._writer.join(timeout_s)

    def _put(self, item: bytes | Malformed | None) -> None:
        self._received.put(item)
        if self._loop and self._arrived:
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:
                log.debug("the event loop is closed")

    def _read(self) -> None:
        while True:
            item: bytes | Malformed | None
            try:
                item = read_frame(self._source)
            except Malformed as error:
                item = error
            except (OSError, ValueError):  # closed under us
                item = None
            self._put(item)
            if item is None:
                break
        with contextlib.suppress(OSError):
            self._source.close()

    def _write(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                self._sink.write(data)
                with self._counting:
                    self._unread -= len(data)
                if self._outgoing.empty():
                    self._sink.flush()
        except (OSError, ValueError):
            self._put(None)  # the editor has gone; that ends the session
        with contextlib.suppress(OSError):
            self._sink.close()
