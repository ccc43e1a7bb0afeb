"""`bench sweep` on exllamav2, on the reference kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import completion_ls
from completion_ls.bench import sweep, sweep_plan
from completion_ls.cli.main import main
from support.exl2.tiny import TinyModels

pytestmark = [pytest.mark.exl2, pytest.mark.process]

ROOT = Path(completion_ls.__file__).parents[1]


@pytest.fixture(autouse=True)
def small(exllamav2: Any, pair: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny pair in the settings, and little to measure."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(pair.target))
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", str(pair.draft))
    monkeypatch.setenv("COMPLETION_LS_ENGINE__KIND", "exllamav2")
    monkeypatch.setenv("COMPLETION_LS_ENGINE__CONTEXT", "2048")
    monkeypatch.setenv("COMPLETION_LS_ENGINE__KV_CACHE", "fp16")
    monkeypatch.setattr(sweep, "CHILD", "support.exl2.sweep_child")
    monkeypatch.setattr(sweep, "TOKENS", 16)
    monkeypatch.setattr(sweep_plan, "LENGTHS", (2, 8, 64))
    monkeypatch.setattr(sweep_plan, "CONTEXTS", (256, 600, 8192))


def test_a_sweep_of_a_pair_has_all_but_what_needs_a_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "sweep", "--force", "--json", "--ladder", "--rounds", "1"]) == 0
    values = json.loads(capsys.readouterr().out)
    tables = {one["title"].partition(" (")[0]: one for one in values["questions"]}
    assert not values["facts"]["is_meaningful"]
    names = {title: [row["name"] for row in one["rows"]] for title, one in tables.items()}
    assert names["Drafts"][3:] == ["draft.model, learnt", "draft.model, 4"]
    assert len(names["Draft length"]) == 5 and "64" in tables["Draft length"]["left_out"]
    assert [name.partition(",")[0] for name in names["KV cache"][::2]] == ["fp16", "q8", "q6", "q4"]
    assert len(names["Sampling"]) == len(names["Verifying"]) == 3
    assert names["CUDA graphs"] == names["Prefill stream"] == []
    by_name = {row["name"]: row for row in tables["Drafts"]["rows"]}
    assert by_name["draft.model, 4"]["acceptance"] > 0.3  # they agree often
    for title in ("Drafts", "Draft length", "Sampling", "Verifying", "Context"):
        assert all(row["same_text"] is not False for row in tables[title]["rows"]), title
    for row in tables["Drafts"]["rows"][:1]:
        (one,) = row["rounds"]
        assert one["passes"] == one["rest"] == 2 * (16 - 1)  # nothing was found again


def test_its_times_are_marked_as_not_meaningful(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "TOKENS", 4)
    monkeypatch.setattr(sweep_plan, "LENGTHS", (2,))
    assert main(["bench", "sweep", "--force", "--markdown", "--rounds", "1"]) == 0
    written = capsys.readouterr().out
    heads = [line for line in written.splitlines() if line.startswith("|  |")]
    names = {name.strip() for line in heads for name in line.split("|")}
    assert names - {"", "accepted", "a pass"} >= {"tokens/s *", "speed-up *"}
    assert all(name.endswith(" *") for name in names - {"", "accepted", "a pass"})
    assert "**Drafts; * not meaningful**" in written
