"""Whose process is at the other end of a Unix socket, as the kernel says it (Linux)."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""Process, user, group: struct ucred."""


def is_other_user(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is known to be another user's. What the kernel does not say (TCP, other
    systems) is left to the folder's rights and to the token."""
    connection = writer.get_extra_info("socket")
    if connection is None or connection.family != getattr(socket, "AF_UNIX", None):
        return False
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return False
    found = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(found)[1]
    return user != os.getuid()
