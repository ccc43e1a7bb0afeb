"""`completion-ls status --watch`: what it shows, and how it ends."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from completion_ls.cli import watch
from completion_ls.cli.watched import Watch
from completion_ls.config.settings import Settings
from completion_ls.wire.attach import attach
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.messages import Ready
from completion_ls.wire.stop import stop_daemon
from support.program import heed_interrupts
from support.tiny_model import write_tiny_model

MIB = 2**20


def figures(**changes: Any) -> dict[str, Any]:
    lane = {"waiting": 0, "running": 0}
    return {
        "endpoint": "engine-1",
        "pid": 7,
        "uptime_s": 3725.4,
        "memory_bytes": 600 * MIB,
        "model": "a-model",
        "engine": "exllamav2",
        "first_token_ms_p50": 12.3,
        "first_token_ms_p95": 250.0,
        "prompt_tokens_computed_p50": 1,
        "prompt_tokens_computed_p95": 120,
        "prompt_tokens_computed_mean": 13.25,
        "prompt_tokens_reused_share": 0.982,
        "answered_without_pass_share": 0.8,
        "tokens_per_second": 71.2,
        "draft_tokens_checked": 1000,
        "draft_tokens_accepted_share": 0.612,
        "draft_length_mean": 4.1,
        "drafting": {
            "lookup": {"on": True, "why": "", "checked": 1000, "accepted": 612},
            "model": {"on": False, "why": "3.0 tokens/s with …", "checked": 0, "accepted": 0},
        },
        "jobs_by_lane": {"key": {"waiting": 2, "running": 1}, "manual": lane, "background": lane},
        "kv_bytes": 210 * MIB,
        "kv_bytes_limit": 512 * MIB,
        "kv_by_document": [
            {"document": "main.py", "bytes": 120 * MIB},
            {"document": "", "bytes": 90 * MIB},
        ],
        "gpu_memory_bytes": 21 * 1024 * MIB,
        "gpu_memory_bytes_limit": 24 * 1024 * MIB,
        "suggestions": {"shown": 40, "accepted": 11},
        **changes,
    }


def shown(watched: Watch, now: float = 0.0, width: int = 80) -> str:
    console = Console(width=width, height=200)
    with console.capture() as captured:
        console.print(watched.panels(now))
    text = captured.get()
    assert all(len(line) <= width for line in text.splitlines())
    return " ".join(text.replace("│", " ").split())


def test_every_figure_is_there_in_eighty_columns() -> None:
    watched = Watch()
    watched.update([figures()], 0)
    said = shown(watched)
    for wanted in (
        "a-model",
        "exllamav2, process 7, up 1:02:05",
        "p50 12 ms, p95 250 ms",
        "p50 1, p95 120, mean 13.2 tokens computed",
        "98.2 % reused, 80.0 % answered without a pass",
        "71.2 tokens/s",
        "61.2 % accepted, 4.1 long (mean)",
        "lookup: on, 61.2 % of 1,000 tokens right",
        "model: off (3.0 tokens/s with …)",
        "key: 1 running, 2 waiting",
        "background: 0 running, 0 waiting",
        "210 MiB of 512 MiB 120 MiB main.py 90 MiB (no name)",
        "21,504 MiB of 24,576 MiB",
        "600 MiB of the process",
        "a-model: 11 of 40 suggestions accepted",
    ):
        assert wanted in said
    line, counted = watched.lines(0)
    assert counted == "a-model: 11 of 40 suggestions accepted"
    assert line.startswith("a-model: first token p50 12 ms") and "\n" not in line


def test_what_is_not_known_yet_is_left_out() -> None:
    watched = Watch()
    nothing = {"first_token_ms_p95": 0.0, "tokens_per_second": 0.0, "draft_tokens_checked": 0}
    new = figures(**nothing)
    del new["gpu_memory_bytes"], new["gpu_memory_bytes_limit"], new["suggestions"]
    watched.update([new], 0)
    said = shown(watched)
    for left_out in ("p50", "accepted", "GPU", "writing"):
        assert left_out not in said


def test_names_are_text() -> None:
    watched = Watch()
    names = [{"document": "[/red]a[b].py", "bytes": MIB}]
    watched.update([figures(model="m[/red]" + "x" * 200, kv_by_document=names)], 0)
    said = shown(watched)
    assert "[/red]a[b].py" in said and "m[/red]xxx" in said


def test_two_daemons_are_all_there_in_a_small_terminal() -> None:
    watched = Watch()
    watched.update([figures(), figures(endpoint="engine-2", pid=8)], 0)
    console = Console(width=80, height=24)
    lines = console.render_lines(watched.panels(0, is_brief=True))
    assert len(lines) < 24
    said = " ".join("".join(part.text for line in lines for part in line).replace("│", " ").split())
    assert said.count("writing 71.2 tokens/s") == 2
    assert said.count("11 of 40 suggestions accepted") == 1


def test_a_daemon_that_has_left_has_not_crashed() -> None:
    watched = Watch(is_there=lambda name: False)
    watched.update([figures()], 0)
    watched.update([], 2)
    said = shown(watched, now=4)
    assert "It has left, 0:00:02 ago" in said and "not answered" not in said


def test_a_daemon_that_goes_and_comes_back() -> None:
    watched = Watch(is_there=lambda name: True)
    assert "No engine daemon is running" in shown(watched)
    assert "No engine daemon is running" in watched.lines(0)[0]
    other = figures(endpoint="engine-2", model="other")
    watched.update([figures(), other], 0)
    watched.update([other], 10)
    watched.update([other], 20)
    said = shown(watched, now=75)
    assert "has not answered for 0:01:05" in said  # its socket is there
    assert said.index("a-model") < said.index("other")
    assert "p50 12 ms" in said  # the other one's
    assert "has not answered" in watched.lines(75)[0]
    watched.update([figures(pid=8, loading="Loading a-model"), other], 80)
    said = shown(watched, now=80)
    assert "has not answered" not in said
    assert "Loading a-model" in said
    assert "process 8, up 1:02:05, started again once meanwhile" in said
    watched.update([figures(pid=9), other], 90)
    assert "started again 2 times" in shown(watched, now=90)


def test_without_a_terminal_there_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [[figures()], []]

    async def collect() -> list[dict[str, Any]]:
        return rounds.pop(0)

    def sleep(seconds: float) -> None:
        if not rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "collect", collect)
    monkeypatch.setattr("completion_ls.cli.watch.time.sleep", sleep)
    assert watch.run() == 0
    one, counted, two, _ = capsys.readouterr().out.splitlines()
    assert "71.2 tokens/s" in one and "11 of 40" in counted and "It has left" in two
    assert "\x1b" not in one


class Screen:
    """The command in a terminal."""

    def __init__(self) -> None:
        self.terminal, end = pty.openpty()
        termios.tcsetwinsize(end, (60, 80))
        self.before = termios.tcgetattr(end)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "completion_ls", "status", "--watch"],
            stdin=end,
            stdout=end,
            stderr=end,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=heed_interrupts,
        )
        self._end = end
        self.text = ""

    def wait_for(self, said: Callable[[str], bool]) -> None:
        until = time.monotonic() + 60
        while not said(self.text):
            assert time.monotonic() < until, self.text
            self.read(0.2)

    def read(self, seconds: float) -> None:
        if select.select([self.terminal], [], [], seconds)[0]:
            self.text += os.read(self.terminal, 65536).decode(errors="replace")

    def ended(self) -> int:
        while self.process.poll() is None:
            self.read(0.1)
        assert termios.tcgetattr(self._end) == self.before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self.terminal)


@pytest.fixture
def screen() -> Iterator[Screen]:
    found = Screen()
    yield found
    found.close()


@pytest.mark.process
@pytest.mark.parametrize("way", ["q", "Ctrl-C", "end of input"])
def test_it_ends_cleanly(screen: Screen, way: str) -> None:
    screen.wait_for(lambda text: "No engine daemon is running" in text)
    if way == "Ctrl-C":
        screen.process.send_signal(signal.SIGINT)
    else:
        os.write(screen.terminal, {"q": b"q", "end of input": b"\x04"}[way])
    assert screen.ended() == 0
    assert "Traceback" not in screen.text


@pytest.mark.process
async def test_it_follows_a_real_daemon(tmp_path: Path, screen: Screen) -> None:
    folder = write_tiny_model(tmp_path / "tiny-one")
    sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}}
    config = DaemonConfig.of(Settings.model_validate(sections))
    connection = await attach(config)
    while not isinstance(await connection.receive(), Ready):
        pass
    await asyncio.to_thread(screen.wait_for, lambda text: "key: 0 running, 0 waiting" in text)
    connection.close()
    await stop_daemon(Endpoint.of(config))
    await asyncio.to_thread(screen.wait_for, lambda text: "It has left" in text)
    (await attach(config)).close()
    await asyncio.to_thread(screen.wait_for, lambda text: "started again once" in text)
    os.write(screen.terminal, b"q")
    assert await asyncio.to_thread(screen.ended) == 0
