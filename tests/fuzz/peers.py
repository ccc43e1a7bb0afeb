"""A daemon in this process, without sockets and threads: the real connection handler and worker around
an engine that follows no model, and visitors whose bytes it reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from completion_ls.config.settings import Settings
from completion_ls.daemon.load import Loaded
from completion_ls.daemon.server import Daemon
from completion_ls.daemon.worker import Published, Worker
from completion_ls.engines.contract import EngineStats, Event, Finish, Job, Lane, LaneJobs
from completion_ls.prompt.build import PromptBuilder
from completion_ls.wire import codec
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import Message, Ready

CONTEXT = 512


@cache
def tokenizer() -> Tokenizer:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE({text: id for id, text in enumerate(alphabet)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


class ParrotEngine:
    """Says what the prompt begins with, a token a step, or what an unfinished word begins with."""

    max_context = CONTEXT

    def __init__(self) -> None:
        self.passes = 0
        self._jobs: dict[int, tuple[Job, int]] = {}

    def add(self, job: Job) -> None:
        if not job.prompt or len(job.prompt) + job.max_new_tokens > CONTEXT:
            raise ValueError("The prompt does not fit.")
        self._jobs[job.id] = job, 0

    def cancel(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)

    def promote(self, job_id: int, lane: Lane) -> None:
        pass

    def favour(self, front: Hashable) -> None:
        pass

    def step(self) -> list[Event]:
        if not self._jobs:
            return []
        self.passes += 1
        job, count = self._jobs.pop(next(iter(self._jobs)))
        count += 1
        ends = count >= min(job.max_new_tokens, 3)
        if not ends:
            self._jobs[job.id] = job, count
        tokens = (job.prompt[count % len(job.prompt)],)
        typed = None
        if count == 1 and job.unfinished:
            tokens, typed = job.prompt[-job.unfinished.tokens :] + tokens, -0.1
        elif count <= len(job.given):
            tokens = job.given[count - 1 : count]
        finish = Finish.LENGTH if ends else None
        logprobs = (-0.5,) * len(tokens)
        read = len(job.prompt)
        return [Event(job.id, tokens, logprobs, 0, read, finish, typed_logprob=typed)]

    def stats(self) -> EngineStats:
        lanes = {lane: LaneJobs() for lane in Lane}
        return EngineStats(
            passes=self.passes,
            prompt_tokens_reused=0,
            prompt_tokens_computed=0,
            tokens_generated=0,
            jobs_active=len(self._jobs),
            sequences_cached=0,
            sequences_in_use=0,
            kv_bytes=0,
            kv_bytes_limit=1,
            weight_bytes=1,
            drafting=(),
            lanes=lanes,
            kv_by_document={},
        )

    def close(self) -> None:
        pass


class House:
    """The daemon; it works when it is told to."""

    def __init__(self) -> None:
        config = DaemonConfig.of(Settings())
        self._daemon: Any = Daemon(config, Endpoint(Path("nowhere"), "none"))
        prompts = PromptBuilder(tokenizer(), "plain", frozenset())
        self._loaded = Loaded("parrot", ParrotEngine(), tokenizer(), prompts)
        self._published: deque[Published] = deque()
        worker = Worker(config, self._published.append)
        self._daemon._worker = self._worker = worker
        self._daemon._loop = asyncio.get_running_loop()
        self._daemon._idle_timer = None
        self._daemon._stay()
        self._daemon._state = Ready(model="parrot", max_context=CONTEXT)

    @property
    def peers(self) -> dict[Any, Any]:
        """Who is there."""
        return self._daemon._peers

    def visitor(self) -> Visitor:
        """Somebody connects. If another one has stopped it, it is the next daemon to which they do."""
        self._daemon._stopping.clear()
        return Visitor(self._daemon._serve)

    def is_quiet(self) -> bool:
        """Whether nothing is left to do."""
        worker = self._worker
        return not (worker._inbox or worker._jobs or worker._aside.busy or self._published)

    async def work(self, turns: int, until: Callable[[], bool] = lambda: False) -> None:
        """Let everybody go on."""
        for _ in range(turns):
            for _ in range(4):
                await asyncio.sleep(0)
            if until():
                return
            self._turn()
            while self._published:
                self._daemon._deliver(self._published.popleft())

    def _turn(self) -> None:
        """One turn of the worker's loop, on this thread."""
        worker = self._worker
        if not (worker._inbox or worker._jobs or worker._aside.busy):
            return
        worker._closing = False
        step = self._loaded.engine.step

        def last() -> list[Event]:
            worker.close()
            return step()

        self._loaded.engine.step = last  # type: ignore[method-assign]
        try:
            worker._serve(self._loaded)
        finally:
            del self._loaded.engine.step


class Visitor:
    """A peer: what it says is read by the daemon, and what it is told is kept."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self._reader = asyncio.StreamReader()
        self._told = bytearray()
        self._messages: list[Message] = []
        self._closed = False
        self.transport = self
        self._serving = asyncio.ensure_future(serve(self._reader, self))

    def say(self, data: bytes) -> None:
        """Send bytes to the daemon."""
        self._reader.feed_data(data)

    def hang_up(self) -> None:
        """Send no more."""
        self._reader.feed_eof()

    @property
    def is_gone(self) -> bool:
        """Whether the daemon is done with it. Raises what came out of the handler."""
        if self._serving.done():
            self._serving.result()
        return self._serving.done()

    def heard(self) -> list[Message]:
        """What the daemon has said so far."""
        told = self._told
        while len(told) >= codec.HEADER.size:
            size = codec.HEADER.size + codec.HEADER.unpack_from(told)[0]
            body = bytes(told[codec.HEADER.size : size])
            del told[:size]
            self._messages.append(codec.decode(body, codec.daemon_messages))
        return self._messages

    # As asyncio.StreamWriter and its transport

    def write(self, data: bytes) -> None:
        if not self._closed:
            self._told += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    abort = close

    async def wait_closed(self) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0
