"""The keystroke that is tried, on a daemon with a script and on the real one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from completion_ls.config.settings import Settings
from completion_ls.doctor import keystroke, sockets
from completion_ls.doctor.examine import examine
from completion_ls.doctor.lines import Line, Notes
from completion_ls.models.store import silent
from completion_ls.wire.attach import attach
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from support.program import heed_interrupts
from support.scripted_daemon import Script

Lines = Callable[[Callable[[Notes], Any]], dict[str, Line]]
CONFIG = DaemonConfig.of(Settings())
pytestmark = pytest.mark.process


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """What the daemon says that is started here."""
    made = Script.make(tmp_path / "script")
    monkeypatch.setattr(sys, "executable", str(made.daemon_python))
    return made


def press(notes: Notes) -> dict[str, Any]:
    return keystroke.look(notes, CONFIG, silent)


def running() -> dict[str, dict[str, Any]]:
    return sockets.look(Notes("sockets"), CONFIG).figures


def test_a_daemon_that_was_started_for_it_is_stopped_again(script: Script, lines: Lines) -> None:
    script.say("    ", "ret", "urn a", " + b", pause_s=0.01)
    found = lines(press)
    assert [line.verdict for line in found.values()] == ["ok"] * 3
    assert found["first text"].text.startswith("after ")
    assert found["text"].text.startswith("9 characters, 2 tokens in ")
    assert found["daemon"].text.startswith("it was started for this")
    assert found["daemon"].text.endswith("and has been stopped again")
    assert not running()
    (first, second) = script.heard("complete")
    assert (first["line"], second["line"]) == ("    ret", "    retu")
    assert "urn a" not in str(found)  # what a model writes is not printed


def test_a_daemon_that_was_running_runs_on(script: Script, lines: Lines) -> None:
    async def start() -> None:
        (await attach(CONFIG)).close()

    asyncio.run(start())
    script.say("    ", "ret", "urn a", pause_s=0.01)
    found = lines(press)
    assert found["daemon"].text == "the one that was running answered; it runs on"
    assert len(running()) == 1


def test_the_text_is_new_each_time() -> None:
    """A daemon would answer from what it has computed before, and the times would mean nothing."""
    assert len({keystroke.a_prefix() for _ in range(20)}) > 1


def test_an_engine_that_says_nothing(script: Script, lines: Lines) -> None:
    (line,) = lines(press).values()
    assert line.verdict == "failed" and "answered without any text" in line.text
    assert "try 'plain' there, or another model. The daemon's log is " in line.text
    assert not running()


def test_an_engine_that_cannot_load(script: Script, lines: Lines) -> None:
    script.cannot_load("The weights are gone; fetch the model again.")
    (line,) = lines(press).values()
    assert line.verdict == "failed"
    assert line.text.startswith("The weights are gone; fetch the model again. The daemon's log is ")


def test_an_engine_that_never_gets_ready(
    script: Script, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystroke, "SILENCE_S", 1.0)
    script.loads_for(6000)
    (line,) = lines(press).values()
    assert line.verdict == "failed"
    assert "does not go on; the last that was heard of it: " in line.text
    assert "Run `completion-ls daemon stop`, then the doctor again." in line.text
    assert not running()


def test_a_daemon_that_does_not_start(
    script: Script, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.daemon_python.write_text("#!/bin/sh\necho There is no library. >&2\nexit 3\n")
    (line,) = lines(press).values()
    assert line.verdict == "failed" and "ended with status 3. There is no library." in line.text
    assert f"{Endpoint.of(CONFIG).name}.log." in line.text


def test_weights_of_another_shape(folder: Path) -> None:
    """Only loading finds that: no look reads tensors."""
    import torch
    from safetensors.torch import save_file

    save_file({"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    (line,) = examine(silent).failed
    assert (line.group, line.name) == ("one keystroke", "first text")
    assert "The daemon's log is " in line.text


def test_all_of_it_on_a_model_that_works(folder: Path) -> None:
    report = examine(silent)
    assert not report.failed
    by_group = {line.group for line in report.lines}
    assert {"versions", "settings", "processor", "model files", "one keystroke"} <= by_group
    assert "card" not in by_group
    found = {(line.group, line.name): line for line in report.lines}
    assert found["FIM", "in use"].text == "plain"
    assert found["one keystroke", "first text"].verdict == "ok"
    assert not sockets.look(Notes("sockets"), CONFIG).figures


def test_who_interrupts_it_leaves_no_daemon_behind(folder: Path, isolated: dict[str, str]) -> None:
    place = Path(isolated["COMPLETION_LS_RUNTIME_DIR"])
    with subprocess.Popen(
        [sys.executable, "-m", "completion_ls", "doctor"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    ) as program:
        deadline = time.monotonic() + 60
        while not any(place.glob("*.life.lock")) and time.monotonic() < deadline:
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    with FileLock(next(place.glob("*.life.lock"))).acquire(blocking=False):
        assert not sockets.look(Notes("sockets"), CONFIG).figures
