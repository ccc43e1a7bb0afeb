"""The same stretch typed against llama.cpp's server, to compare with.

The server runs in a process of its own (this module run as a program), with one slot and its prompt
cache on. It is asked as editor plugins ask it: the lines above, the text below, the cursor's line;
a request is closed when the next key is typed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from tokenizers import Tokenizer

from completion_ls.bench.replay import pause
from completion_ls.bench.trace import Stretch, apply
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import calm_openmp
from completion_ls.models import catalogue, fetch, local
from completion_ls.prompt.window import window_after

CONTEXT = 4096
SLACK = 128
"""Tokens by which a prompt as a whole may differ from the sum of its lines."""


class PeerError(Exception):
    """llama.cpp's server cannot be used; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """llama.cpp's version and, for each keystroke, milliseconds to its first token."""

    version: str
    first_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is listening, and the limits of what it is asked for, in tokens."""

    host: str
    port: int
    most_tokens: int

    @asynccontextmanager
    async def ask(self, prompt: str) -> AsyncIterator[asyncio.StreamReader]:
        """A streamed completion: the events' lines are read off it; leaving closes the request."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 26)
        body = json.dumps(
            {
                "prompt": prompt,
                "n_predict": self.most_tokens,
                "temperature": 0.0,
                "samplers": ["temperature"],
                "cache_prompt": True,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST /completion HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                raise PeerError(f"llama.cpp's server answered {status.decode().strip()!r}.")
            yield reader
        finally:
            writer.close()


async def replay(
    stretch: Stretch, settings: Settings, progress: Callable[[int], None] = lambda done: None
) -> PeerTimes:
    """Type a stretch, as `bench.replay.replay` does, with llama.cpp on the GGUF file that the
    settings' model was made from. Raises PeerError and models.ModelError."""
    gguf = gguf_of(settings.model.name)
    folder = local.prepare(settings.model.name, offline=True).folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    @lru_cache(maxsize=1 << 16)
    def count(line: str) -> int:
        return len(tokenizer.encode(line, add_special_tokens=False).ids)

    def prompt(text: str, cursor: int) -> str:
        wanted = settings.prompt
        return window(text, cursor, wanted.max_tokens, wanted.suffix_share, count)

    text = stretch.text
    times = []
    async with _server(gguf, settings) as server:
        async with server.ask(prompt(text, stretch.cursor)) as answer:
            await _first_token(answer)
            await answer.read()
        cursor = stretch.cursor
        steps = zip(stretch.transactions, stretch.gaps_s, strict=True)
        for done, (transaction, gap_s) in enumerate(steps, start=1):
            text = apply(text, transaction)
            cursor = transaction[-1].end if transaction else cursor
            asked = prompt(text, cursor)
            sent = time.perf_counter()
            async with server.ask(asked) as answer:
                await _first_token(answer)
                times.append(1e3 * (time.perf_counter() - sent))
                progress(done)
                await pause(sent, gap_s)
    return PeerTimes(version("xllamacpp"), tuple(times))


def window(
    text: str, cursor: int, tokens: int, suffix_share: float, count: Callable[[str], int]
) -> str:
    """The whole lines above the cursor's that fit, the text behind the cursor, and the cursor's
    line up to the cursor. `count` gives the tokens of a line."""
    anchor = text.rfind("\n", 0, cursor) + 1
    line = text[anchor:cursor]
    below = window_after(text[cursor:], int(tokens * suffix_share), count)
    if below and not below.endswith("\n"):
        below += "\n"
    room = tokens - count(line) - sum(map(count, below.splitlines(keepends=True)))
    above = text[:anchor].splitlines(keepends=True)
    first = len(above)
    while first > 0 and (room := room - count(above[first - 1])) >= 0:
        first -= 1
    return "".join(above[first:]) + below + line


def gguf_of(model: str) -> Path:
    """The GGUF file that a model was converted from. Raises PeerError where there is none."""
    entry = catalogue.find(model)
    path = fetch.gguf_path(entry) if entry else Path(model).expanduser()
    if path.suffix != ".gguf" or not path.is_file():
        raise PeerError(
            f"llama.cpp needs the GGUF file of the model, and there is none for {model!r}; run "
            "`completion-ls models pull`, or set model.name to a .gguf file."
        )
    return path


@asynccontextmanager
async def _server(gguf: Path, settings: Settings) -> AsyncIterator[Server]:
    most_tokens = settings.completion.max_tokens
    context = max(CONTEXT, settings.prompt.max_tokens + most_tokens + SLACK)
    threads = settings.engine.threads or psutil.cpu_count(logical=False) or 1
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "completion_ls.bench.llama_cpp", str(gguf)),
        *("--context", str(context), "--threads", str(threads)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        address = urlsplit((await process.stdout.readline()).decode().strip())
        if address.hostname is None or address.port is None:
            raise PeerError(f"llama.cpp's server did not start with {gguf}.")
        yield Server(address.hostname, address.port, most_tokens)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _first_token(answer: asyncio.StreamReader) -> None:
    async for line in answer:
        if line.startswith(b"data: "):
            event = json.loads(line[len(b"data: ") :])
            if event.get("tokens") or event.get("content") or event.get("stop"):
                return
    raise PeerError("llama.cpp's server ended an answer before its first token.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input ends; the address is printed when the model is loaded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(arguments)
    calm_openmp()  # as our own engine has it; without, a busy machine makes it many times slower
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = options.gguf
    wanted.n_ctx = options.context
    wanted.n_parallel = 1
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = options.threads
    wanted.port = 0
    wanted.verbosity = 0
    server = xllamacpp.Server(wanted)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
