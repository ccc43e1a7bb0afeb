"""llama.cpp's server, to compare with, and the same stretch typed against it.

The server runs in a process of its own (this module run as a program), with one slot. For typing it
is asked as editor plugins ask it, with its prompt cache on: the lines above, the text below, the
cursor's line; a request is closed when the next key is typed.
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
from typing import Any
from urllib.parse import urlsplit

import psutil
from tokenizers import Tokenizer

from completion_ls.bench.child import process
from completion_ls.bench.replay import pause
from completion_ls.bench.trace import Stretch, apply
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import calm_openmp
from completion_ls.models import catalogue, fetch, local
from completion_ls.prompt.window import window_after

CONTEXT = 4096
SPECULATIONS: dict[str, tuple[str, dict[str, int]]] = {
    "ngram-simple": ("ngram_simple", {}),
    "ngram-simple-3-8": ("ngram_simple", {"size_n": 3, "size_m": 8}),
    "ngram-map-k": ("ngram_map_k", {}),
    "ngram-map-k4v": ("ngram_map_k4v", {}),
    "ngram-mod": ("ngram_mod", {}),
    "ngram-cache": ("ngram_cache", {}),
}
"""llama.cpp's kinds of drafts from the text itself, as its `--spec-type` names them: with its own
sizes (most look for the last 12 or 24 tokens and draft 48 or more), and one with short ones, which
find more in code (it looks for the last 3 and drafts 8)."""
SLACK = 128
"""Tokens by which a prompt as a whole may differ from the sum of its lines."""


class PeerError(Exception):
    """A peer cannot be used; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """llama.cpp's version and, for each keystroke, milliseconds to its first token."""

    version: str
    first_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is listening; `load_s` is the time it took to load, without the import."""

    host: str
    port: int
    pid: int
    load_s: float

    @asynccontextmanager
    async def ask(self, prompt: str, most_tokens: int) -> AsyncIterator[asyncio.StreamReader]:
        """A streamed completion: the events' lines are read off it; leaving closes the request."""
        wanted = {"n_predict": most_tokens, "cache_prompt": True, "stream": True}
        async with self._post({"prompt": prompt, **wanted}) as reader:
            yield reader

    async def generate(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """A completion of exactly so many tokens, with nothing reused: the whole answer, in which
        `timings` are the server's own. Raises PeerError."""
        wanted = {"n_predict": tokens, "cache_prompt": False, "ignore_eos": True, "stream": False}
        async with self._post({"prompt": prompt, "return_tokens": True, **wanted}) as reader:
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if not body:
            raise PeerError("llama.cpp's server ended before its answer.")
        answer: dict[str, Any] = json.loads(body)
        if len(answer["tokens"]) != tokens:
            raise PeerError(
                f"llama.cpp's server gave {len(answer['tokens'])} tokens where {tokens} were asked."
            )
        return answer

    @asynccontextmanager
    async def _post(self, wanted: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 26)
        body = json.dumps({"temperature": 0.0, "samplers": ["temperature"], **wanted}).encode()
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
    most_tokens = settings.completion.max_tokens
    context = max(CONTEXT, settings.prompt.max_tokens + most_tokens + SLACK)
    async with serving(gguf, context=context, threads=threads_of(settings)) as server:
        async with server.ask(prompt(text, stretch.cursor), most_tokens) as answer:
            await first_token(answer)
            await answer.read()
        cursor = stretch.cursor
        steps = zip(stretch.transactions, stretch.gaps_s, strict=True)
        for done, (transaction, gap_s) in enumerate(steps, start=1):
            text = apply(text, transaction)
            cursor = transaction[-1].end if transaction else cursor
            asked = prompt(text, cursor)
            sent = time.perf_counter()
            async with server.ask(asked, most_tokens) as answer:
                await first_token(answer)
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


def threads_of(settings: Settings) -> int:
    """As many threads as our own engine takes."""
    return settings.engine.threads or psutil.cpu_count(logical=False) or 1


@asynccontextmanager
async def serving(
    gguf: Path,
    *,
    context: int,
    threads: int,
    slots: int = 1,
    speculation: str = "",
    prompt_cache: bool = True,
) -> AsyncIterator[Server]:
    """A server as long as this lasts. The `context` is that of all `slots` together. `speculation` is one
    of `SPECULATIONS`, or none; without the prompt cache it keeps nothing of earlier prompts in memory.
    Raises PeerError."""
    options = ["--context", str(context), "--threads", str(threads), "--slots", str(slots)]
    if speculation:
        options += ["--speculation", speculation]
    if not prompt_cache:
        options.append("--no-prompt-cache")
    async with process("completion_ls.bench.llama_cpp", str(gguf), *options) as started:
        assert started.stdout is not None
        words = (await started.stdout.readline()).decode().split()
        address = urlsplit(words[0]) if words else None
        if address is None or address.hostname is None or address.port is None:
            kind = f" and {speculation}" if speculation else ""
            raise PeerError(f"llama.cpp's server did not start with {gguf}{kind}.")
        yield Server(address.hostname, address.port, started.pid, float(words[1]))


async def first_token(answer: asyncio.StreamReader) -> None:
    """Read a streamed answer up to its first token, or to its end. Raises PeerError where it breaks off."""
    async for line in answer:
        if line.startswith(b"data: "):
            event = json.loads(line[len(b"data: ") :])
            if event.get("tokens") or event.get("content") or event.get("stop"):
                return
    raise PeerError("llama.cpp's server ended an answer before its first token.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input ends; when the model is loaded, the address and the seconds that
    loading took are printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--speculation", choices=SPECULATIONS)
    parser.add_argument("--no-prompt-cache", action="store_true")
    options = parser.parse_args(arguments)
    calm_openmp()  # as our own engine has it; without, a busy machine makes it many times slower
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = options.gguf
    wanted.n_ctx = options.context
    wanted.n_parallel = options.slots
    wanted.endpoint_metrics = True
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = options.threads
    wanted.port = options.port
    wanted.verbosity = 0
    if options.no_prompt_cache:
        wanted.cache_ram_mib = 0
    if options.speculation:
        kind, sizes = SPECULATIONS[options.speculation]
        number = getattr(
            xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}"
        )
        wanted.speculative.types = [number]
        for name, size in sizes.items():
            setattr(getattr(wanted.speculative, kind), name, size)
    begin = time.perf_counter()
    server = xllamacpp.Server(wanted)
    print(server.listening_address, time.perf_counter() - begin, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
