"""Child processes that are asked in lines of JSON: both ends.

What is measured runs in a process of its own, so that its memory and its threads are its own. Such a
process reads one line that says what to load, writes one when it is ready, and then answers line by
line until its input ends, as it does when the parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
LONGEST_LINE = 1 << 26


Failed = Callable[[str], Exception]
"""Makes the exception for a child that failed or has ended, of a sentence that says how."""


@dataclass(frozen=True, slots=True)
class Child:
    """The parent's end. `ready` is what the child wrote when it had loaded."""

    process: asyncio.subprocess.Process
    ready: Json
    failed: Failed

    async def ask(self, question: Json) -> Json:
        """One question and its answer. Raises what `failed` makes."""
        return await _exchange(self.process, question, self.failed)


@asynccontextmanager
async def child(module: str, what: Json, failed: Failed) -> AsyncIterator[Child]:
    """A module run as a program that calls `serve`; `what` is what it is to load. It is killed in
    the end. Raises what `failed` makes."""
    async with process(module) as started:
        yield Child(started, await _exchange(started, what, failed), failed)


@asynccontextmanager
async def process(module: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A module run as a program, with pipes for input and output; it is killed in the end."""
    started = await asyncio.create_subprocess_exec(
        # -P: the files of the folder it is started in are no modules of ours.
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LONGEST_LINE,
        start_new_session=True,  # Ctrl-C is for the parent, which ends all of them
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def _exchange(process: asyncio.subprocess.Process, question: Json, failed: Failed) -> Json:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
    except ConnectionError:
        pass  # what it had to say about its end is still to be read
    line = await process.stdout.readline()
    if not line:
        raise failed(f"Its process has ended with the status {await process.wait()}.")
    answer: Json = json.loads(line)
    if "error" in answer:
        raise failed(answer["error"])
    return answer


def serve(load: Callable[[Json], tuple[Json, Callable[[Json], Json]]]) -> int:
    """The child's end: load, then answer until the input ends. `load` gives what to say when ready,
    and the function that answers. An exception is told to the parent, and ends it; returns the exit
    status."""
    out, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not get in between
    try:
        ready, answer = load(json.loads(sys.stdin.readline()))
        print(json.dumps(ready), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=out, flush=True)
    except Exception as error:
        print(json.dumps({"error": str(error) or type(error).__name__}), file=out, flush=True)
        return 1
    return 0
