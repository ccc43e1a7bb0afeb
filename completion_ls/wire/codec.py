"""Frames: four bytes of length (big-endian), then one message as a msgpack map."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, TypeVar

import msgpack
from pydantic import TypeAdapter, ValidationError

from completion_ls.wire.messages import DaemonMessage, FrontMessage, Message

MAX_FRAME = 8 * 1024 * 1024
"""Most bytes in a frame. A front sends text windows, never whole files, so none comes near it."""

MAX_ITEMS = 16_384
"""Most items of a list or map in a frame. A job has at most 4,096 tokens, each with two figures."""
MAX_VALUES = 65_536
"""Most values in a frame, however nested: as a Python object an empty map of one byte takes 64."""

HEADER = struct.Struct(">I")

front_messages: TypeAdapter[FrontMessage] = TypeAdapter(FrontMessage)
daemon_messages: TypeAdapter[DaemonMessage] = TypeAdapter(DaemonMessage)


class FrameError(Exception):
    """The bytes are no frame; what follows them cannot be trusted, so the connection must end."""


class MessageError(Exception):
    """The frame is whole but holds no message that this side understands; the next one may."""

    def __init__(self, text: str, *, unknown_type: bool = False, id: int | None = None) -> None:
        super().__init__(text)
        self.unknown_type = unknown_type
        self.id = id


def encode(message: Message) -> bytes:
    """The frame of a message. Raises MessageError where it has none: larger than MAX_FRAME, a
    number beyond 64 bits, half a surrogate pair."""
    try:
        body: bytes = msgpack.Packer().pack(message.model_dump())
    except (ValueError, OverflowError) as error:
        raise MessageError(f"The message cannot be sent: {error}.") from error
    if len(body) > MAX_FRAME:
        raise MessageError(f"The message has {len(body)} bytes; a frame may have {MAX_FRAME}.")
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """The map in a frame's body. Raises FrameError where it is none, or larger than a message."""
    left = MAX_VALUES

    def counted(values: Any) -> Any:
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise ValueError("too many values")
        return values

    try:
        value: Any = msgpack.unpackb(
            body,
            strict_map_key=True,
            list_hook=counted,
            object_hook=counted,
            ext_hook=_refuse_extension,
            max_str_len=MAX_FRAME,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
        )
    except Exception as error:  # msgpack raises ValueError, its own classes, and UnicodeDecodeError
        raise FrameError(
            f"The frame is not msgpack, or no message ({type(error).__name__})."
        ) from error
    if not isinstance(value, dict):
        raise FrameError(f"The frame holds a {type(value).__name__}, not a map.")
    return value


def _refuse_extension(kind: int, data: bytes) -> Any:
    raise ValueError("no message has an extension type")


M = TypeVar("M")


def decode(body: bytes, messages: TypeAdapter[M]) -> M:
    """The message in a frame's body. Raises FrameError or MessageError."""
    value = unpack(body)
    try:
        return messages.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        id = value.get("id")
        where = ".".join(str(part) for part in first["loc"])
        raise MessageError(
            f"Message of type {str(value.get('type'))[:40]!r}: {where} {first['msg']}.",
            unknown_type=first["type"].startswith("union_tag"),
            id=id if isinstance(id, int) and not isinstance(id, bool) else None,
        ) from error


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's body; None at the end of the stream between two frames.

    Raises FrameError where the announced length is over MAX_FRAME (nothing of it is read) or the
    stream ends inside a frame.
    """
    try:
        header = await reader.readexactly(HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("The connection ended inside a frame's length.") from error
        return None
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise FrameError(f"A frame of {length} bytes was announced; at most {MAX_FRAME} are taken.")
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise FrameError("The connection ended inside a frame.") from error
