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
    status, found = told(capsys)
    (problem,) = found["problems"]
    assert (status, found["can_run"]) == (1, True)
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
    lacks, gguf = found["obstacles"]  # what gigabytes do not help comes first
    assert "reads folders of EXL2 models only" in gguf
    assert all("completion-ls init --profile cpu" in one for one in (lacks, gguf))
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


def test_settings_that_were_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-25gb")
    assert main(["doctor"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "COMPLETION_LS_PROFILE: there is no profile 'nvidia-25gb'" in said
    assert "The engine torch_cpu can run here, but not as you wrote it" in said


@pytest.mark.parametrize("key", ["MODEL__NAME", "DRAFT__MODEL"])
def test_a_quantised_model_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl2"}
    (folder / "config.json").write_text(json.dumps(config))
    for name in (str(folder), "qwen2.5-coder-32b-4.0bpw", "someone/some-exl2@4_25"):
        monkeypatch.setenv(f"COMPLETION_LS_{key}", name)
        status, found = told(capsys)
        (sentence,) = found["obstacles"]
        assert status == 1 and sentence.startswith(f"{key.lower().replace('__', '.')} is '{name}'")
        assert "(EXL2), and engine.kind is torch_cpu" in sentence and "pull" not in sentence


def test_a_draft_of_another_vocabulary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target, draft = (write_tiny_model(tmp_path / name) for name in ("target", "draft"))
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(target))
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", str(draft))
    assert told(capsys)[0] == 0
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, found = told(capsys)
    (sentence,) = found["obstacles"]
    assert status == 1
    assert sentence.startswith(f"draft.model: The draft model in {draft} has another vocabulary")
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MAX_TOKENS", "0")
    assert told(capsys)[0] == 0


def test_models_that_are_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-16gb")
    _, found = told(capsys)
    (line,) = found["memory"]
    assert "as the profile nvidia-16gb sets them up, they take 12.8 GiB" in line
    *_, model, draft = found["obstacles"]
    assert model.startswith("The model qwen2.5-coder-14b-4.0bpw is not")
    assert draft.startswith("draft.model: The model qwen2.5-coder-0.5b-8.0bpw is not")


@pytest.mark.parametrize(
    ("prompt", "output", "remarks", "obstacles"),
    [(4000, 96, 0, 0), (4000, 97, 1, 0), (64, 4096, 0, 1)],
)
def test_room_in_the_context(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    prompt: int,
    output: int,
    remarks: int,
    obstacles: int,
) -> None:
    chosen = {
        **EXL2,
        "COMPLETION_LS_MODEL__NAME": "/no/such",
        "COMPLETION_LS_PROMPT__MAX_TOKENS": str(prompt),
        "COMPLETION_LS_COMPLETION__MAX_TOKENS": str(output),
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    _, found = told(capsys)
    assert len(found["remarks"]) == remarks
    assert not remarks or "prompts are cut to fewer than 3999 tokens" in found["remarks"][0]
    assert sum("leaves no room" in one for one in found["obstacles"]) == obstacles


@pytest.mark.exl2
def test_a_draft_that_is_missing_or_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from support.exl2.tiny import write_tiny_models

    made = write_tiny_models(tmp_path)
    wrong = write_tiny_model(tmp_path / "wrong")
    for name, value in {**EXL2, "COMPLETION_LS_MODEL__NAME": str(made.target)}.items():
        monkeypatch.setenv(name, value)
    for draft, says in ((tmp_path / "none", "no model file"), (wrong, "reads EXL2 only")):
        monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", str(draft))
        _, found = told(capsys)
        assert found["memory"] == []
        assert any(one.startswith("draft.model: ") and says in one for one in found["obstacles"])


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
