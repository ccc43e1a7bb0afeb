"""The options and the exit status of scripts/gpu_check.sh; its figures have tests of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import completion_ls
from completion_ls.bench.card_figures import Part

SCRIPTS = Path(completion_ls.__file__).parents[1] / "scripts"


@pytest.mark.parametrize(
    ("option", "status", "says"),
    [
        ("--help", 0, "Exit status: 0 all is right"),
        ("--dry-runs", 2, "There is no option --dry-runs"),
        ("--json", 2, "--json wants a value"),
    ],
)
def test_options_are_looked_at_before_anything_is_done(
    tmp_path: Path, option: str, status: int, says: str
) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPTS / "gpu_check.sh"), option],
        env={**os.environ, "PYTHON": "/no/such", "COMPLETION_LS_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status and says in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_where_every_part_fails_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPTS / "gpu_check.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", script)  # its dataclasses look there
    spec.loader.exec_module(script)

    def died(name: str, options: Any) -> Part:
        return Part(problems=[f"The part {name!r} died."])

    monkeypatch.setattr(script, "_in_its_process", died)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--dry-run"])
    assert script.main() == 2
