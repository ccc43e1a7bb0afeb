"""The options and the exit status of scripts/gpu_check.sh; its figures have tests of their own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import completion_ls
from completion_ls.bench.card_figures import Part

SCRIPTS = Path(completion_ls.__file__).parents[1] / "scripts"


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--help"], 0, "Exit status: 0 all is right"),
        (["--dry-runs"], 2, "There is no option --dry-runs"),
        (["--json"], 2, "--json wants a value"),
        (["--json", "/no/such/file"], 2, "No file can be written at /no/such/file."),
        (["--json=/"], 2, "No file can be written at /."),
        (["--shape", "33b"], 2, "There is no shape 33b;"),
        (["--shape="], 2, "There is no shape ;"),
        (["--shape=14b", "--json", "x"], 2, "name one in PYTHON"),
    ],
)
def test_options_are_looked_at_before_anything_is_done(
    tmp_path: Path, options: list[str], status: int, says: str
) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPTS / "gpu_check.sh"), *options],
        env={**os.environ, "PYTHON": "/no/such", "COMPLETION_LS_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status and says in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/gpu_check.py."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPTS / "gpu_check.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", script)  # its dataclasses look there
    spec.loader.exec_module(script)
    return script


def test_where_every_part_fails_the_status_says_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(name: str, options: Any) -> Part:
        return Part(problems=[f"The part {name!r} died."])

    monkeypatch.setattr(script, "_in_its_process", died)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--dry-run"])
    assert script.main() == 2


def test_a_file_for_the_figures_that_cannot_be_written_is_seen_first(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "none" / "x.json"
    monkeypatch.setattr(script, "_in_its_process", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--dry-run", "--json", str(file)])
    assert script.main() == 2
    assert f"{file} cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("left", ['{"rows": [{"ke', "[]", '{"rows": [{}]}', ""])
def test_a_part_that_dies_while_it_writes_loses_no_others(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: str
) -> None:
    def killed(asked: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(asked[asked.index("--out") + 1]).write_text(left)
        return subprocess.CompletedProcess(asked, -9)

    monkeypatch.setattr(script.subprocess, "run", killed)
    part = script._in_its_process("shape", script.Options(True, "", tmp_path))
    assert part.rows == [] and "died with the status -9" in part.problems[-1]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_stops_its_part_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    root = SCRIPTS.parent
    paths = os.pathsep.join(map(str, (root, root / "tests")))
    check = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "gpu_check.py"), "--dry-run"],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(place)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert check.stderr
    try:
        check.stderr.readline()  # what the part says first: its models are being made
        assert len(list(place.glob("tmp*"))) == 2
        check.send_signal(number)
        # Ends with the last process that has it open.
        assert "Traceback" not in check.stderr.read()
        assert check.wait(60) == 128 + number
        assert list(place.glob("tmp*")) == []
    finally:
        check.kill()
        check.wait()
