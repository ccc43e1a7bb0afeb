"""The sides of an engine measurement: our engine and its peers, each in a process of its own and
asked for the same: a greedy continuation of exactly so many tokens, with nothing reused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from completion_ls.bench.child import Child, Json, child
from completion_ls.bench.llama_cpp import PeerError, serving
from completion_ls.config.settings import Settings
from completion_ls.wire.client import EngineFailed
from completion_ls.wire.endpoint import DaemonConfig

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Generation:
    """One continuation. `rest` tokens came after the first pass that gave any, in `rest_s` and in
    `rest_passes`, each of which took `pass_s` (the median); both are 0 where the side does not
    say."""

    tokens: tuple[int, ...]
    first_s: float
    rest: int
    rest_s: float
    rest_passes: int = 0
    pass_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """One engine that is loaded. `import_s` is the time to import its library, `load_s` that from
    the model's files in the page cache to ready."""

    name: str
    pid: int
    import_s: float
    load_s: float
    generate: Callable[[Sequence[int], int], Awaitable[Generation]]

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def peak_bytes(self) -> int:
        """The most resident memory so far; that of now where the system does not tell."""
        status = PROC / str(self.pid) / "status"
        if status.exists():
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return psutil.Process(self.pid).memory_info().rss


@dataclass(frozen=True, slots=True)
class OwnSide(Side):
    """Our engine. `threads` are those of the library that computes; `max_context` counts the tokens of a
    prompt and its output together."""

    weight_bytes: int
    threads: int
    max_context: int
    child: Child

    async def copied_per_s(self, size: int) -> float:
        """Bytes a second of a copy of `size` bytes, by as many threads as the engine has."""
        answer = await self.child.ask({"copy": size})
        return float(answer["copied_per_s"])


@asynccontextmanager
async def own(name: str, settings: Settings) -> AsyncIterator[OwnSide]:
    """The engine of these settings. Raises EngineFailed."""

    def failed(how: str) -> Exception:
        return EngineFailed(f"The engine failed. {how}")

    config = DaemonConfig.of(settings).model_dump(mode="json")
    async with child("completion_ls.bench.own_engine", config, failed) as started:
        ready = started.ready
        yield OwnSide(
            name=name,
            pid=started.process.pid,
            import_s=ready["import_s"],
            load_s=ready["load_s"],
            generate=_asking(started),
            weight_bytes=ready["weight_bytes"],
            threads=ready["threads"],
            max_context=ready["max_context"],
            child=started,
        )


@asynccontextmanager
async def transformers(name: str, folder: Path, threads: int) -> AsyncIterator[Side]:
    """transformers on a Hugging Face folder. Raises PeerError."""

    def failed(how: str) -> Exception:
        return PeerError(f"transformers failed. {how}")

    what: Json = {"folder": str(folder), "threads": threads}
    async with child("completion_ls.bench.transformers_peer", what, failed) as started:
        ready = started.ready
        yield Side(name, started.process.pid, ready["import_s"], ready["load_s"], _asking(started))


@asynccontextmanager
async def llama_cpp(
    name: str, gguf: Path, *, context: int, threads: int, speculation: str = ""
) -> AsyncIterator[Side]:
    """llama.cpp's server on a GGUF file. Times are those that it gives itself, so that HTTP does not
    count. Raises PeerError."""
    async with serving(
        gguf, context=context, threads=threads, speculation=speculation, prompt_cache=False
    ) as server:

        async def generate(prompt: Sequence[int], tokens: int) -> Generation:
            answer = await server.generate(prompt, tokens)
            times = answer["timings"]
            produced = tuple(answer["tokens"])
            first_s, rest_s = times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3
            return Generation(produced, first_s, len(produced) - 1, rest_s)

        yield Side(name, server.pid, 0.0, server.load_s, generate)


def _asking(started: Child) -> Callable[[Sequence[int], int], Awaitable[Generation]]:
    async def generate(prompt: Sequence[int], tokens: int) -> Generation:
        answer = await started.ask({"prompt": list(prompt), "tokens": tokens})
        produced, steps_s = tuple(answer["tokens"]), answer["steps_s"]
        return Generation(
            tokens=produced,
            first_s=answer["first_s"],
            rest=len(produced) - answer["first"],
            rest_s=sum(steps_s),
            rest_passes=answer.get("rest_passes", 0),
            pass_s=median(steps_s) if steps_s else 0.0,
        )

    return generate
