"""One front with the daemon that it starts, in folders of their own, with a tiny model and an ear for
orders of faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import completion_ls
from completion_ls.config.settings import Settings
from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.inquiry import Busy, figures_of
from soak.front import Answer, Front
from support.apart import PREFIX, folders
from support.tiny_model import write_tiny_model

INJECTED = Path(__file__).parent / "injected"
PRODUCT = Path(completion_ls.__file__).parents[1]
START = "def add(first, second):\n    total = first + second\n    return total\n\n\n" * 4
WORDS = (
    "value ",
    "= ",
    "add(",
    "first, ",
    "second)\n",
    "for one in ",
    "values:\n",
    "    print(one)\n",
)
NO_ANSWER_S = 60.0
"""Longer than anything here takes; it only bounds a failure."""
YARDSTICK_S = 0.05


class Failed(Exception):
    """A check has failed: the sentence says which."""


class Stand:
    """Starts, watches and removes the processes of one trial."""

    def __init__(self, **settings: str) -> None:
        """`settings` are environment variables of both processes."""
        # A Unix socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="cls-"))
        self.orders = self.folder / "orders"
        self.orders.mkdir()
        self.model = write_tiny_model(self.folder / "model")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        cache = os.environ.get("COMPLETION_LS_CACHE_DIR")
        self.environment = {
            **clean,
            **({"COMPLETION_LS_CACHE_DIR": cache} if cache else {}),
            "PYTHONPATH": os.pathsep.join([str(INJECTED), str(PRODUCT)]),
            "FAULTS": str(self.orders),
            **folders(self.folder),
            "COMPLETION_LS_MODEL__NAME": str(self.model),
            "COMPLETION_LS_ENGINE__THREADS": "1",
            "COMPLETION_LS_COMPLETION__SHOW_ABOVE": "0",
            **settings,
        }
        self.fronts: list[Front] = []
        self.yardstick_s = 0.0
        """The longest that a process which only echoes took meanwhile: what the machine itself costs."""
        self._typed = 0
        self._measuring: asyncio.Task[None] | None = None

    @property
    def front(self) -> Front:
        """The first one."""
        return self.fronts[0]

    @property
    def runtime(self) -> Path:
        """The folder of sockets and locks."""
        return Path(self.environment["COMPLETION_LS_RUNTIME_DIR"])

    @property
    def logs(self) -> list[Path]:
        """Of fronts and daemons."""
        return [self.folder / "front.log", *(self.folder / "log").glob("*.log")]

    @property
    def endpoint(self) -> Endpoint:
        """Of the daemon that the front starts (of this version)."""
        sections = {
            "model": {"name": self.environment["COMPLETION_LS_MODEL__NAME"]},
            "engine": {"threads": 1},
        }
        config = DaemonConfig.of(Settings.model_validate(sections))
        return Endpoint(self.runtime, f"engine-{config.identity}")

    async def start(self, *wrapper: str, text: bool = True) -> None:
        """Start the front (by a program), and the daemon with it; `text` waits until there is some."""
        if self._measuring is None:
            self._measuring = asyncio.create_task(self._measure())
        await self.add_front(*wrapper)
        if text:
            await self.text()

    async def add_front(self, *wrapper: str) -> Front:
        """One more window."""
        front = Front(self.environment, self.folder / "front.log", wrapper)
        front.text = START
        await front.start()
        self.fronts.append(front)
        return front

    async def new_front(self) -> None:
        """A window in the place of one that was killed; what the user was told stays."""
        old = self.fronts.pop(0)
        await old.kill()
        await self.add_front()
        self.fronts.insert(0, self.fronts.pop())
        self.front.heard = old.heard
        self.front.waits.longest_s = old.waits.longest_s

    async def close(self) -> None:
        """End everything, by force where it must be."""
        for file in self.orders.iterdir():
            file.unlink()
        if self._measuring:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        for front in self.fronts:
            await front.stop()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def order(self, name: str, what: str = "") -> None:
        """Order a fault, all at once."""
        new = self.folder / "order.new"
        new.write_text(what)
        new.replace(self.orders / name)

    def recall(self, *names: str) -> None:
        """Take orders back."""
        for name in names:
            (self.orders / name).unlink(missing_ok=True)

    def type(self) -> None:
        """The user types the next word."""
        self.front.type(WORDS[self._typed % len(WORDS)])
        self._typed += 1

    async def text(self) -> Answer:
        """Type and ask until there is text. Raises Failed."""
        deadline = time.monotonic() + NO_ANSWER_S
        while True:
            self.type()
            _, waiting = self.front.ask()
            try:
                answer = await asyncio.wait_for(waiting, NO_ANSWER_S)
            except TimeoutError:
                raise Failed(f"A completion had no answer in {NO_ANSWER_S:.0f} s.") from None
            if answer.text:
                return answer
            if time.monotonic() > deadline:
                said = f"{answer.error or 'nothing'}; the user was told {self.front.heard.messages}"
                raise Failed(f"There was no text again in {NO_ANSWER_S:.0f} s: {said}.")
            await asyncio.sleep(0.1)

    async def held(self, place: str) -> int:
        """Have a daemon's engine wait at a place ("load", "prefill", "decode"); the daemon's pid."""
        self.recall("held")
        self.order("hold", place)
        if place != "load":
            self.type()
            self.front.ask()
        await self.until(lambda: (self.orders / "held").exists(), f"the engine is held at {place}")
        return int((self.orders / "held").read_text())

    async def figures(self) -> dict[str, Any]:
        """Of the daemon; empty where there is none that answers."""
        try:
            return await figures_of(self.endpoint)
        except (NoDaemon, Refused, Busy):
            return {}

    def daemons(self) -> list[psutil.Process]:
        """Those that run in our folders."""
        return [one for one in self.processes() if "daemon" in _words(one)]

    async def daemon(self) -> psutil.Process:
        """The one that runs. Raises Failed."""
        await self.until(lambda: len(self.daemons()) == 1, "there is one daemon")
        return self.daemons()[0]

    def processes(self) -> list[psutil.Process]:
        """All that were started here or by those who were, zombies too."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FAULTS") == str(self.orders) or self._is_remains(process):
                    found.append(process)
        return found

    def _is_remains(self, process: psutil.Process) -> bool:
        """A zombie has no environment; its parent has."""
        parent = process.parent() if process.status() == psutil.STATUS_ZOMBIE else None
        return bool(parent and parent.environ().get("FAULTS") == str(self.orders))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for it. Raises Failed."""
        deadline = time.monotonic() + NO_ANSWER_S
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"This has not come in {NO_ANSWER_S:.0f} s: {what}.")
            await asyncio.sleep(0.02)

    async def _measure(self) -> None:
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin and process.stdout
        try:
            while True:
                began = time.perf_counter()
                process.stdin.write(b"x\n")
                await process.stdout.readline()
                self.yardstick_s = max(self.yardstick_s, time.perf_counter() - began)
                await asyncio.sleep(YARDSTICK_S)
        finally:
            process.kill()
            await process.wait()


def kill(process: psutil.Process | int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, which may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process if isinstance(process, int) else process.pid, number)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
