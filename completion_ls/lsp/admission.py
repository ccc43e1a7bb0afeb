"""Who may come in over TCP: every user of this machine can connect to a port, so the first message must
be an `initialize` that holds the token. Until then nothing is taken but that one small message."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
from typing import Any

from completion_ls.lsp.channel import CONTENT_LENGTH, MAX_HEADER_LINE, frame

TOKEN_VARIABLE = "COMPLETION_LS_TOKEN"
SHORTEST_TOKEN = 16
MAX_HELLO = 1 << 20
"""Most bytes of the first message."""
INVALID_REQUEST = -32600


class NotAdmitted(Exception):
    """The connection is to end; `answer` is the body of the one response that it gets."""

    def __init__(self, text: str, id: object = None) -> None:
        super().__init__(text)
        known = id if isinstance(id, int | str) and not isinstance(id, bool) else None
        error = {"code": INVALID_REQUEST, "message": text}
        self.answer = json.dumps({"jsonrpc": "2.0", "id": known, "error": error}).encode()


def token_of_environment() -> str | None:
    """The token that the user has chosen, which child processes need not know. Raises OSError (a
    sentence) where it can be guessed."""
    token = os.environ.pop(TOKEN_VARIABLE, None)
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OSError(
            f"{TOKEN_VARIABLE} has {len(token)} characters; give it {SHORTEST_TOKEN} at least, or unset "
            "it, and a token is made."
        )
    return token


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_hex(32)


async def first_frame(reader: asyncio.StreamReader) -> bytes:
    """The body of the first frame. Raises NotAdmitted where it is none or too large (it is not read
    then), and IncompleteReadError where the connection ends before."""
    try:
        header = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        header = b""
    lengths = [CONTENT_LENGTH.fullmatch(line) for line in header.split(b"\r\n")]
    found = next((match for match in lengths if match), None)
    if found is None or len(header) > MAX_HEADER_LINE:
        raise NotAdmitted("What was received is no LSP message; the connection is closed.")
    length = int(found[1])
    if length > MAX_HELLO:
        raise NotAdmitted(
            f"The first message has {length} bytes; before the token is known {MAX_HELLO} are taken."
        )
    return await reader.readexactly(length)


def admitted(body: bytes, token: str) -> bytes:
    """The first message without its token, for the server. Raises NotAdmitted where it is no
    `initialize` with the right one."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if (
        not isinstance(message, dict)
        or message.get("method") != "initialize"
        or "id" not in message
    ):
        id = message.get("id") if isinstance(message, dict) else None
        raise NotAdmitted(
            "The first message must be initialize, with the token of this server as "
            "initializationOptions.token; the connection is closed.",
            id,
        )
    options = _options(message)
    given = options.pop("token", None) if options is not None else None
    if not isinstance(given, str) or not _is_same(given, token):
        what = "is wrong" if given is not None else "is missing"
        raise NotAdmitted(
            f"The token {what}: a server that listens on a port needs it as initializationOptions.token. "
            "Where it is, the server said on stderr when it began to listen (a file that only its user "
            f"can read, or {TOKEN_VARIABLE}).",
            message["id"],
        )
    return json.dumps(message).encode()


def response(error: NotAdmitted) -> bytes:
    """The frame that a connection gets before it is closed."""
    return frame(error.answer)


def _options(message: dict[str, Any]) -> dict[str, Any] | None:
    params = message.get("params")
    options = params.get("initializationOptions") if isinstance(params, dict) else None
    return options if isinstance(options, dict) else None


def _is_same(given: str, token: str) -> bool:
    """In a time that says nothing of where they differ."""
    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), token.encode("utf-8", "surrogateescape")
    )
