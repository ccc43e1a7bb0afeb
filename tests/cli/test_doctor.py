"""`completion-ls doctor`, as a command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from completion_ls.cli import doctor
from completion_ls.cli.main import main
from completion_ls.doctor.lines import Notes
from completion_ls.doctor.memory import on_card
from completion_ls.engines.exl2 import checks
from completion_ls.engines.exl2.checks import Card, Piece
from support.tiny_model import write_tiny_model

EXL2 = {"COMPLETION_LS_ENGINE__KIND": "exllamav2", "COMPLETION_LS_ENGINE__CONTEXT": "4096"}


def told(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def failed(found: dict[str, Any]) -> list[str]:
    return [line["text"] for line in found["lines"] if line["verdict"] == "failed"]


@pytest.mark.model
@pytest.mark.process
def test_the_engine_of_the_defaults_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = told(capsys)
    assert status == 0 and found["ok"] and not failed(found)
    lines = {(line["group"], line["name"]): line for line in found["lines"]}
    assert "the pinned one" in lines["model files", "model: checksums"]["text"]
    assert lines["one keystroke", "first text"]["verdict"] == "ok"
    assert found["settings"]["engine.kind"] == {
        "value": "torch_cpu",
        "source": "profile cpu.toml",
    }


def test_the_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", "/no/such/model")
    assert main(["doctor"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "✗ failed model There is no model file or folder /no/such/model" in said
    assert "! remark first text Not tried, as something that it needs failed above." in said
    assert said.index("versions ✓ ok completion-ls") < said.index("one keystroke")
    assert "One line failed, and each says what to do;" in said


def test_a_path_that_is_no_text_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", "/no/such/model")
    monkeypatch.setenv("COMPLETION_LS_LOG_DIR", os.fsdecode(b"/dev/null/\xff"))
    assert main(["doctor"]) == 1
    stdout.seek(0)
    assert "/dev/null/\\udcff" in stdout.read()


def test_settings_that_were_refused_make_the_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", "/dev/null/nothing")
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-25gb")
    status, found = told(capsys)
    settings, cache = failed(found)
    assert status == 1 and not found["ok"]
    assert "COMPLETION_LS_PROFILE: there is no profile 'nvidia-25gb'" in settings
    assert cache.startswith("The cache folder /dev/null/nothing cannot be written")
    last = found["lines"][-1]  # the model is not there, and no failure: it would be fetched
    assert last["text"] == "Not tried: the models are not all here, and nothing is fetched."


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
    two, lacks, gguf = failed(found)
    assert two == "It is missing. Get two." and lacks.startswith("The exllamav2 engine lacks: two.")
    assert "reads folders of EXL2 models only" in gguf
    assert all("completion-ls init --profile cpu" in one for one in (lacks, gguf))


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
        (sentence,) = failed(found)
        assert status == 1 and sentence.startswith(f"{key.lower().replace('__', '.')} is '{name}'")
        assert "(EXL2), and engine.kind is torch_cpu" in sentence and "pull" not in sentence


def test_models_that_are_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-16gb")
    _, found = told(capsys)
    (plan,) = (line["text"] for line in found["lines"] if line["name"] == "plan")
    assert "as the profile nvidia-16gb sets them up, they take 12.8 GiB" in plan
    *_, model, draft = failed(found)
    assert model.startswith("The model qwen2.5-coder-14b-4.0bpw is not")
    assert draft.startswith("The model qwen2.5-coder-0.5b-8.0bpw is not")


@pytest.mark.exl2
class TestExl2:
    """Broken set-ups of EXL2 models. Without a card nothing is loaded."""

    @pytest.fixture
    def models(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
        """A target and a draft that fit, named by the settings."""
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

        def no_card() -> Card:
            raise RuntimeError("There is no card; get one.")

        monkeypatch.setattr(checks, "find_card", no_card)
        return made

    @staticmethod
    def change(folder: Path, **values: object) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    def test_the_need_is_told_without_a_card(
        self, capsys: pytest.CaptureFixture[str], models: Any
    ) -> None:
        status, found = told(capsys)
        assert status == 1 and failed(found) == ["There is no card; get one."]
        (plan,) = (line for line in found["lines"] if line["name"] == "plan")
        assert plan["verdict"] == "remark" and plan["details"][-1].startswith("total")
        (match,) = (line for line in found["lines"] if line["name"] == "draft: match")
        assert match["verdict"] == "ok"

    @pytest.mark.parametrize("which", ["target", "draft"])
    def test_one_that_is_broken(
        self, capsys: pytest.CaptureFixture[str], models: Any, which: str
    ) -> None:
        folder: Path = getattr(models, which)
        config = (folder / "config.json").read_text()
        for values, says in (
            ({"rope_theta": None}, "exllamav2 would compute with 10000"),
            ({"architectures": ["OwlForCausalLM"]}, "is not supported by the exllamav2 engine"),
            ({"quantization_config": None}, "reads EXL2 only. Name an EXL2 quantisation"),
            ({"max_position_embeddings": 2048}, "fewer than engine.context (4,096). Set"),
        ):
            self.change(folder, rope_parameters={"rope_theta": 1e6})
            self.change(folder, **values)
            _, found = told(capsys)
            _, sentence = failed(found)
            assert says in sentence
            assert not any(line["name"] == "plan" for line in found["lines"])
            (folder / "config.json").write_text(config)

    @pytest.mark.parametrize(
        ("free", "loaded", "verdict"),
        [(2**40, False, "ok"), (2**20, False, "failed"), (0, True, "ok")],
    )
    def test_the_plan_against_free_memory(
        self, models: Any, free: int, loaded: bool, verdict: str
    ) -> None:
        from completion_ls.config.sources import resolve

        engine = resolve()[0].engine
        notes = Notes("memory plan")
        card = Card("a card", free)
        on_card(notes, engine, models.target, models.draft, card, loaded=loaded, daemons=2)
        (line,) = notes.lines
        assert line.verdict == verdict
        assert any(one.startswith("draft KV cache (fp16, 4,096 tokens)") for one in line.details)
        if verdict == "failed":
            assert line.text.startswith("target") and "daemon stop` frees" in line.text
            assert line.details[-1].split()[0] == "missing"


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


def test_signs_for_terminals_of_few_characters() -> None:
    assert set(doctor.SIGNS) == set(doctor.PLAIN_SIGNS)
    assert "".join(doctor.PLAIN_SIGNS.values()).isascii()
