"""`completion-ls doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from completion_ls.cli import doctor
from completion_ls.cli.main import main
from completion_ls.engines.exl2 import checks
from completion_ls.engines.exl2.checks import Card, Piece
from support.tiny_model import write_tiny_model

EXL2 = {"COMPLETION_LS_ENGINE__KIND": "exllamav2", "COMPLETION_LS_ENGINE__CONTEXT": "4096"}


def told(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_engine_of_the_defaults_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = told(capsys)
    assert status == 0 and found["can_run"] and not found["obstacles"]
    assert found["facts"]["engine"] == "torch_cpu"
    assert {"Python", "platform", "C compiler", "kernels", "default model"} <= set(found["facts"])
    assert found["pieces"] == found["memory"] == []


def test_settings_and_where_they_are_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, isolated: dict[str, str]
) -> None:
    file = Path(isolated["COMPLETION_LS_CONFIG"])
    file.write_text("[completion]\nmax_tokens = 20\nlines = 'single'\n")
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__MAX_TOKENS", "30")
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__LINES", "few")
    _, found = told(capsys)
    settings = found["settings"]
    from_variable = {"value": 30, "source": "COMPLETION_LS_COMPLETION__MAX_TOKENS"}
    assert settings["completion.max_tokens"] == from_variable
    assert settings["completion.lines"] == {"value": "single", "source": str(file)}
    assert settings["engine.kind"] == {"value": "torch_cpu", "source": "profile cpu.toml"}
    assert settings["engine.kv_cache"] == {"value": "q8", "source": "default"}
    (problem,) = found["problems"]
    assert "few" in problem


def test_a_model_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", "/no/such/model")
    status, found = told(capsys)
    assert status == 1 and "/no/such/model" in found["obstacles"][0]


@pytest.mark.parametrize(("key", "value"), [("KV_CACHE", "q5"), ("CONTEXT", "5000"), ("KIND", "x")])
def test_wrong_values_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setenv(f"COMPLETION_LS_ENGINE__{key}", value)
    _, found = told(capsys)
    (problem,) = found["problems"]
    assert f"engine.{key.lower()}" in problem and value in problem


def test_what_exllamav2_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in EXL2.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        checks, "pieces", lambda: [Piece("one", "1.0", "Get one."), Piece("two", None, "Get two.")]
    )
    status, found = told(capsys)
    assert status == 1
    gguf, lacks = found["obstacles"]
    assert "reads folders of EXL2 models only" in gguf
    assert lacks.startswith("The exllamav2 engine lacks: two.")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "Get two." in printed and "Get one." not in printed
    assert "The engine exllamav2 cannot run here" in printed


def test_a_folder_that_is_no_exl2_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    for name, value in {**EXL2, "COMPLETION_LS_MODEL__NAME": str(folder)}.items():
        monkeypatch.setenv(name, value)
    _, found = told(capsys)
    assert any("reads EXL2 only" in sentence for sentence in found["obstacles"])


@pytest.mark.exl2
@pytest.mark.parametrize(("free", "status"), [(2**40, 0), (2**20, 1)])
def test_the_plan_against_free_memory(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    free: int,
    status: int,
) -> None:
    from support.exl2.tiny import write_tiny_models

    made = write_tiny_models(tmp_path)
    chosen = {
        **EXL2,
        "COMPLETION_LS_MODEL__NAME": str(made.target),
        "COMPLETION_LS_DRAFT__MODEL": str(made.draft),
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(checks, "pieces", lambda: [Piece("one", "1.0", "")])
    monkeypatch.setattr(checks, "find_card", lambda: Card("a card", free))
    got, found = told(capsys)
    assert got == status
    lines = found["memory"]
    assert lines[-1].split()[0] == ("missing" if status else "left")
    assert any(line.startswith("draft KV cache (fp16, 4,096 tokens)") for line in lines)
    assert [sentence[:6] for sentence in found["obstacles"]] == ["target"] * status
    assert found["facts"]["GPU"] == "a card"
    assert doctor.show(as_json=False) == status
    assert "total" in capsys.readouterr().out


def test_torch_is_not_imported_where_it_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EXL2.items():
        monkeypatch.setenv(name, value)
    code = (
        "import sys\n"
        "from completion_ls.cli.main import main\n"
        "main(['doctor'])\n"
        "print('torch' in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.endswith("False\n")
