"""What `completion-ls status` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from completion_ls.cli import main, status
from completion_ls.lsp import count_file

DAEMON: dict[str, Any] = {
    "endpoint": "engine-1",
    "pid": 7,
    "uptime_s": 60.0,
    "memory_bytes": 600 * 2**20,
}


def test_nothing_runs_and_nothing_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status"]) == 1
    assert "No engine daemon is running" in capsys.readouterr().out
    assert main.main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == []


def test_counts_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"shown": 1234, "characters_judged_after_30_s": 200}
    count_file.add({"a-model": {**numbers, "characters_kept_after_30_s": 150}}, 5)
    assert main.main(["status"]) == 1
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "No engine daemon is running" in said
    assert "model a-model since" in said
    assert "shown 1,234 accepted 0 accepted words 0" in said
    assert "kept after 30 s 75.0 %" in said
    assert "kept after 5 min 0.0 %" not in said  # nothing was looked at yet
    assert "counts.json" in said.replace(" ", "")


def test_a_damaged_file_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    count_file.place().parent.mkdir(parents=True)
    count_file.place().write_bytes(b"\xff{")
    assert main.main(["status"]) == 1
    assert "suggestions" not in capsys.readouterr().out


def test_a_daemon_has_the_counts_of_its_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_file.add({"ours": {"shown": 3}, "other": {"shown": 5}}, 5)

    async def daemons() -> list[dict[str, Any]]:
        return [DAEMON | {"model": "ours", "jobs": 7}, DAEMON | {"model": "new", "jobs": 8}]

    monkeypatch.setattr(status, "_daemons", daemons)
    assert main.main(["status", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["jobs"], first["suggestions"]["shown"]) == (7, 3)
    assert second == DAEMON | {"model": "new", "jobs": 8}
    assert main.main(["status"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "─ ours ─" in said and "model ours" in said and "model other" in said
    assert "600 MiB of the process" in said and "jobs 7" in said and "jobs 8" in said


def test_a_model_may_have_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    count_file.add({"models/[/red]a[b]": {"shown": 1}}, 5)
    assert main.main(["status"]) == 1
    assert "models/[/red]a[b]" in capsys.readouterr().out
