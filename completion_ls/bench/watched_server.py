"""llama.cpp's server, seen from outside: what it has done by its own count, and which requests it got.

Its `/metrics` count all that it computes, also for a request that nobody waits for any more. Requests go
through a relay here, which sees where one is closed before its end, and what had come of it by then.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2

from completion_ls.bench.llama_cpp import PeerError, Server

COMPLETIONS = (b"/completion", b"/completions", b"/infill", b"/v1/completions")
LONGEST_LINE = 1 << 26
LENGTH = re.compile(rb"^content-length: *(\d+)\r$", re.IGNORECASE | re.MULTILINE)
CONNECTION = re.compile(rb"^connection:.*\n", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Work:
    """Totals: tokens of prompts that went through the model, tokens that were decoded, and passes. A pass
    that serves several requests at once counts once for each."""

    prompt_tokens: int
    decoded: int
    passes: int

    def since(self, before: Work) -> Work:
        """What has been added."""
        return Work(
            self.prompt_tokens - before.prompt_tokens,
            self.decoded - before.decoded,
            self.passes - before.passes,
        )


@dataclass(slots=True)
class Seen:
    """A request that came through: the tokens of its answer so far, and how it ended."""

    tokens: int = 0
    complete: bool = False
    cancelled: bool = False
    """It was closed before its end."""


@dataclass(slots=True)
class Watched:
    """A server behind a relay; `at` is the relay's address."""

    server: Server
    at: Server
    requests: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where to ask."""
        return f"http://{self.at.host}:{self.at.port}"

    async def work(self) -> Work:
        """What the server has done up to now. Raises PeerError."""
        return read_metrics((await self._get("/metrics")).text)

    async def is_busy(self) -> bool:
        """Whether it computes."""
        return any(slot["is_processing"] for slot in (await self._get("/slots")).json())

    async def _get(self, path: str) -> httpx2.Response:
        url = f"http://{self.server.host}:{self.server.port}{path}"
        async with httpx2.AsyncClient(trust_env=False, timeout=120) as client:
            return await client.get(url)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one request to the server, and its answer back, until either hangs up."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            begin, _, rest = head.partition(b"\r\n")
            seen = Seen()
            if begin.split()[1] in COMPLETIONS:
                self.requests.append(seen)
            theirs, ours = await asyncio.open_connection(
                self.server.host, self.server.port, limit=LONGEST_LINE
            )
            try:
                ours.write(begin + b"\r\nConnection: close\r\n" + CONNECTION.sub(b"", rest) + body)
                back = asyncio.create_task(_carry(theirs, writer, seen))
                gone = asyncio.create_task(reader.read(1))
                await asyncio.wait({back, gone}, return_when=asyncio.FIRST_COMPLETED)
                seen.cancelled = not seen.complete and not back.done()
                for task in (back, gone):
                    task.cancel()
                await asyncio.gather(back, gone, return_exceptions=True)
            finally:
                ours.close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever asked sees that the connection is closed
        finally:
            writer.close()


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[Watched]:
    """A relay before this server, as long as this lasts."""
    found = Watched(server, server)
    relay = await asyncio.start_server(found.relay, "127.0.0.1", 0)
    try:
        host, port = relay.sockets[0].getsockname()
        found.at = replace(server, host=host, port=port)
        yield found
    finally:
        relay.close()


def read_metrics(text: str) -> Work:
    """What `/metrics` says. Raises PeerError where that is something else."""
    lines = (line.split() for line in text.splitlines() if line.startswith("llamacpp:"))
    try:
        found = {name.partition(":")[2]: float(value) for name, value in lines}
        return Work(
            prompt_tokens=int(found["prompt_tokens_total"]),
            decoded=int(found["tokens_predicted_total"]),
            passes=round(found["n_decode_total"] * found["n_busy_slots_per_decode"]),
        )
    except (KeyError, ValueError) as error:
        raise PeerError("llama.cpp's server does not tell its metrics.") from error


async def _carry(theirs: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
    async for line in theirs:
        if line.startswith((b"data: {", b"{")):  # an event, or a whole answer
            told = json.loads(line.removeprefix(b"data: "))
            seen.tokens = max(seen.tokens, int(told.get("tokens_predicted", 0)))
            seen.complete = seen.complete or bool(told.get("stop"))
        writer.write(line)
        await writer.drain()
    seen.complete = True
