"""Models that are broken in one way each, and the sentence that the doctor has for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from completion_ls.config.settings import EngineSettings, ModelSettings
from completion_ls.config.sources import profiles_dir
from completion_ls.doctor import architecture, fim, model, rope, vocabulary
from completion_ls.doctor.lines import Line, Notes
from completion_ls.models import catalogue, fetch, hub, local
from completion_ls.models.store import silent
from support.tiny_model import write_tiny_model

Lines = Callable[[Callable[[Notes], Any]], dict[str, Line]]
CPU = EngineSettings()


def change(folder: Path, **values: object) -> None:
    """Change keys of config.json; None takes one out."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: one for key, one in config.items() if one is not None}))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def damage_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights that are cut short": (
        lambda folder: cut(folder / "model.safetensors"),
        "model.safetensors is cut short or is not a safetensors file; get it again.",
    ),
    "no config.json": (
        lambda folder: (folder / "config.json").unlink(),
        "is not a model: it has no config.json; give another folder.",
    ),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "is not a model: it has no tokenizer.json; give another folder.",
    ),
    "weights that can run code": (only_pickles, "convert it with transformers"),
    "a config.json that is none": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json is not JSON (",
    ),
    "an architecture that nobody knows": (
        lambda folder: change(folder, architectures=["OwlForCausalLM"], model_type="owl"),
        "does not know it either; name another model.",
    ),
    "a model that classifies": (
        lambda folder: change(folder, architectures=["LlamaForTokenClassification"]),
        "does not know it either; name another model.",
    ),
    "quantised weights": (
        lambda folder: change(folder, quantization_config={"quant_method": "awq"}),
        "whose weights are quantised (AWQ), and engine.kind is torch_cpu, which cannot read them.",
    ),
    "a tokenizer that is none": (damage_tokenizer, "; fetch the model again."),
    "the tokenizer of another model": (
        lambda folder: change(folder, vocab_size=100),
        "the model only 100 in all: it is another model's. Fetch the model again, or copy the right",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_model_has_its_sentence(
    folder: Path, failures: Callable[[], list[str]], what: str
) -> None:
    break_it, says = BROKEN[what]
    break_it(folder)
    (said,) = failures()
    assert says in said


@pytest.mark.parametrize("what", [what for what in BROKEN if "quantised" not in what])
def test_a_broken_draft_model_has_it_too(
    folder: Path,
    failures: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    what: str,
) -> None:
    draft = write_tiny_model(tmp_path / "draft")
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", str(draft))
    break_it, says = BROKEN[what]
    break_it(draft)
    (said,) = failures()
    assert says in said and str(folder) not in said


def test_a_draft_of_another_vocabulary(
    folder: Path,
    failures: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    draft = write_tiny_model(tmp_path / "draft")
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", str(draft))
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    (said,) = failures()
    assert said.startswith(f"draft.model: The draft model in {draft} has another vocabulary")
    assert "Name a draft of the same family in draft.model, or leave it empty." in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/no/such/model", "There is no model file or folder /no/such/model; check the path."),
        ("smollm2-135m-instuct", "did you mean 'smollm2-135m-instruct'?"),
        (
            "~/models/Qwen3-Coder-30B-A3B-Instruct-exl2-4.0bpw",
            "one that you make: " + str(profiles_dir() / "nvidia-24gb-moe.toml says how."),
        ),
        ("someone/something", "`completion-ls models pull someone/something` fetches it"),
    ],
)
def test_a_name_that_means_nothing_here(
    failures: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", name)
    (said,) = failures()
    assert says in said


# files


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    return folder


def write_default_model(*, is_right: bool) -> Path:
    """A folder in the place of the default model's, made of a file that is not the fetched one."""
    entry = catalogue.ENTRIES[0]
    gguf = fetch.gguf_path(entry)
    gguf.parent.mkdir(parents=True)
    gguf.write_bytes(b"something else")
    folder = write_tiny_model(local.folder_of(entry))
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    marker = {"converter": 1, "sha256": entry.sha256, "files": sizes}
    (folder / "completion-ls.json").write_text(json.dumps(marker))
    if is_right:
        gguf.unlink()
    return folder


def test_a_fetched_file_whose_checksum_is_wrong(cache: Path, lines: Lines) -> None:
    folder = write_default_model(is_right=False)
    found = lines(lambda notes: model.compare(notes, "model", catalogue.DEFAULT, silent))
    line = found["model: checksums"]
    assert line.verdict == "failed" and "its SHA-256 is not the pinned one" in line.text
    assert f"Delete it and the folder {folder}, then `completion-ls models pull" in line.text


def test_a_fetched_file_that_has_gone_is_no_failure(cache: Path, lines: Lines) -> None:
    write_default_model(is_right=True)
    found = lines(lambda notes: model.compare(notes, "model", catalogue.DEFAULT, silent))
    line = found["model: checksums"]
    assert line.verdict == "ok" and "the fetched file has gone" in line.text


def test_converted_weights_that_are_cut_are_made_again(cache: Path, lines: Lines) -> None:
    cut(write_default_model(is_right=False) / "model.safetensors")
    line = lines(lambda notes: model.look(notes, "model", catalogue.DEFAULT, silent))["model"]
    assert line.verdict == "remark"
    assert "is missing or cut short; all of it is made again, from the fetched file" in line.text


def test_a_model_that_was_not_fetched(cache: Path, lines: Lines) -> None:
    line = lines(lambda notes: model.look(notes, "model", catalogue.DEFAULT, silent))["model"]
    assert line.verdict == "remark"
    assert "is not here yet; it is fetched (98 MB) when it is first used" in line.text


def write_hub_model(name: str) -> Path:
    """A model as `hub.pull` leaves it, with true hashes."""
    repository = hub.parse(name)
    assert repository
    folder = write_tiny_model(repository.folder)
    files = {}
    for file in folder.iterdir():
        content = file.read_bytes()
        blob = f"blob {len(content)}\0".encode() + content
        digest = (
            f"sha256:{hashlib.sha256(content).hexdigest()}"
            if file.suffix == ".safetensors"
            else f"git:{hashlib.sha1(blob, usedforsecurity=False).hexdigest()}"
        )
        files[file.name] = [len(content), digest]
    marker = {"repository": repository.repository, "revision": repository.revision, "files": files}
    (folder / hub.MARKER).write_text(json.dumps(marker))
    return folder


def test_the_files_of_a_repository_are_those_that_it_listed(cache: Path, lines: Lines) -> None:
    write_hub_model("someone/something")
    found = lines(lambda notes: model.compare(notes, "model", "someone/something", silent))
    (line,) = found.values()
    assert line.verdict == "ok" and "3 files compared with the hashes" in line.text


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_a_repository_that_was_changed(cache: Path, lines: Lines, name: str) -> None:
    file = write_hub_model("someone/something") / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = lines(lambda notes: model.compare(notes, "model", "someone/something", silent))
    (line,) = found.values()
    assert line.verdict == "failed"
    assert line.text.startswith(f"The file {file} is damaged or was changed: its hash is not")
    assert "Delete it, then `completion-ls models pull someone/something`" in line.text


def test_a_file_of_a_repository_that_is_cut(cache: Path, lines: Lines) -> None:
    file = write_hub_model("someone/something") / "model.safetensors"
    size = file.stat().st_size
    cut(file)
    (line,) = lines(lambda notes: model.look(notes, "model", "someone/something", silent)).values()
    assert line.verdict == "failed"
    assert (
        f"has {size - 100:,} bytes and should have {size:,}; `completion-ls models pull"
        in line.text
    )


def test_a_folder_of_ones_own_has_no_checksum(folder: Path, lines: Lines) -> None:
    (line,) = lines(lambda notes: model.compare(notes, "model", str(folder), silent)).values()
    assert line.verdict == "ok" and line.text.startswith("no checksum is known")


# what computes them, and how positions are turned


def test_who_computes_a_model(folder: Path, lines: Lines) -> None:
    def said(settings: EngineSettings = CPU, *, compiled: bool = True) -> Line:
        look = lambda n: architecture.look(n, "model", folder, settings, compiled=compiled)  # noqa: E731
        return lines(look)["model: architecture"]

    assert "the kernels do not know its sizes" in said().text  # its heads have 8
    change(folder, head_dim=16)
    assert said().verdict == "ok" and "the compiled kernels compute it" in said().text
    slow = said(compiled=False)
    assert slow.verdict == "remark" and "as there are no compiled kernels" in slow.text
    assert "engine.weights is float32" in said(EngineSettings(weights="float32")).text
    change(folder, architectures=["GemmaForCausalLM"], model_type="gemma")
    other = said()
    assert other.verdict == "remark" and "transformers computes it in float32" in other.text


def test_where_the_rope_is_named(folder: Path, lines: Lines) -> None:
    def said() -> tuple[str, str]:
        line = lines(lambda notes: rope.look(notes, "model", folder, CPU))["model: rope"]
        return line.verdict, line.text

    assert said() == ("ok", "rope_theta 10,000 (at the top)")
    change(folder, rope_parameters={"rope_theta": 1e6, "rope_type": "default"})
    verdict, text = said()
    assert verdict == "remark" and "says it twice, and not alike" in text
    change(folder, rope_theta=None)
    assert said() == ("ok", "rope_theta 1,000,000 (in rope_parameters)")
    change(folder, rope_parameters=None)
    verdict, text = said()
    assert verdict == "remark" and "has no rope_theta, so 10,000 is taken" in text
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    change(folder, rope_parameters=kinds)
    verdict, text = said()
    assert verdict == "ok" and "(in rope_parameters.full_attention)" in text
    change(folder, rope_parameters=None, architectures=["GPT2LMHeadModel"], model_type="gpt2")
    assert said()[0] == "ok"


def test_exllamav2_looks_for_the_rope_at_the_top_alone(folder: Path, lines: Lines) -> None:
    change(folder, rope_theta=None, rope_parameters={"rope_theta": 1e6})
    card = EngineSettings(kind="exllamav2")
    line = lines(lambda notes: rope.look(notes, "model", folder, card))["model: rope"]
    assert line.verdict == "failed" and "exllamav2 would compute with 10000." in line.text
    assert 'Add "rope_theta": 1000000.0 there' in line.text


# how they are prompted


def test_the_format_of_a_model_without_fim(folder: Path, lines: Lines) -> None:
    tokenizer = vocabulary.look(Notes("vocabulary"), "model", folder)
    assert tokenizer

    def said(**chosen: Any) -> Line:
        settings = ModelSettings(**chosen)
        return lines(lambda notes: fim.look(notes, tokenizer, settings, CPU))["format"]

    def in_use(used: str) -> Line:
        figures = {"fim_format": used}
        return lines(lambda n: fim.in_use(n, figures, ModelSettings(), tokenizer))["in use"]

    assert said().verdict == "ok" and said().text.startswith("plain: the tokenizer has no tokens")
    wrong = said(format="qwen")
    assert wrong.verdict == "failed" and "Use 'auto' or 'plain'." in wrong.text
    assert in_use("plain").verdict == "ok"
    tokenizer.add_special_tokens(["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<filename>"])
    found = said()
    assert found.verdict == "ok" and found.text.startswith("starcoder: the tokenizer has its")
    assert "not tried on the CPU" in found.text and "would do for mellum" in found.text
    better = in_use("plain")
    assert better.verdict == "remark" and "does better without starcoder" in better.text
    assert "suits the model better than starcoder" in in_use("mellum").text
