"""Converting small GGUF files, in a child process through the door and directly."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from completion_ls.models import gguf_to_folder
from completion_ls.models.convert import converted_folder, is_converted
from completion_ls.models.local import ModelError, prepare
from completion_ls.models.store import file_sha256

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, write_gguf):
    """A GGUF file, its tensors, and a cache in which it was converted."""
    folder = tmp_path_factory.mktemp("tiny")
    gguf = folder / "tiny é.gguf"
    tensors = write_gguf(gguf)
    # An adapter or tokenizer beside the file must not be taken up.
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true, "bos_token": "Z"}')
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPLETION_LS_CACHE_DIR", str(folder / "ca che"))
        prepare(str(gguf), progress=lambda text, fraction: seen.append(fraction))
    assert seen == sorted(seen) and seen[-1] == 1
    return gguf, tensors, folder / "ca che"


@pytest.fixture
def converted(tiny, cache):
    """The same file with a copy of that cache, to do harm to."""
    gguf, _, made = tiny
    shutil.copytree(made, cache)
    sha256 = file_sha256(gguf)
    return gguf, converted_folder(gguf.name, gguf.stat().st_size, sha256), sha256


def test_the_folder_holds_the_model(converted, tiny):
    _, tensors, _ = tiny
    _, folder, _ = converted
    weights = load_file(folder / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {np.dtype(np.float32)}
    assert "lm_head.weight" not in weights
    assert len(weights) == len(tensors)
    layer = "model.layers.0."
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        layer + "mlp.down_proj.weight": "blk.0.ffn_down.weight",
        layer + "self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }.items():
        assert np.array_equal(weights[ours], tensors[theirs])
    # In a GGUF the rows of each head of q and k are interleaved: 0, 8, 1, 9, ...
    q = tensors["blk.0.attn_q.weight"].reshape(2, 8, 2, 32).swapaxes(1, 2).reshape(32, 32)
    assert np.array_equal(weights[layer + "self_attn.q_proj.weight"], q)


def test_the_configuration(converted):
    _, folder, _ = converted
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_the_tokenizer(converted):
    _, folder, _ = converted
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def pieces(text: str) -> list[str]:
        return tokenizer.encode(text, add_special_tokens=False).tokens

    # Digits stand alone, so the blank before one joins the blank before it and not the digit.
    assert pieces("def  12") == ["def", "ĠĠ", "1", "2"]
    assert pieces("<|im_end|><file_sep>") == ["<|im_end|>", "<file_sep>"]
    tokenizer.encode_special_tokens = True
    assert pieces("<|im_end|>") == list("<|im_end|>")
    assert pieces("x") == ["x"]


def test_permissions_follow_the_umask(converted):
    _, folder, _ = converted
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~umask}
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask


def test_a_ready_model_starts_no_process(converted, monkeypatch):
    gguf, folder, _ = converted
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert prepare(str(gguf)).folder == folder


@pytest.mark.process
def test_a_ready_model_needs_no_large_library(converted, start_python):
    gguf, folder, _ = converted
    code = (
        "import sys; from completion_ls.models.local import prepare\n"
        "print(prepare(sys.argv[1]).folder)\n"
        "print({'torch', 'transformers', 'numpy', 'gguf', 'safetensors'} & set(sys.modules))"
    )
    said, errors = start_python(code, str(gguf)).communicate(timeout=60)
    assert said.splitlines() == [str(folder), "set()"], errors


def test_a_cut_folder_is_converted_again(converted, capfd):
    gguf, folder, sha256 = converted
    weights = folder / "model.safetensors"
    right = weights.read_bytes()
    os.truncate(weights, len(right) // 2)
    assert not is_converted(folder, sha256)
    prepare(str(gguf))
    assert weights.read_bytes() == right
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "marker",
    ["", "[]", "{}", '{"converter": 0, "sha256": "", "files": {}}', '{"files": 3}', "null"],
)
def test_a_bad_marker_counts_for_nothing(converted, marker):
    _, folder, sha256 = converted
    assert is_converted(folder, sha256)
    (folder / "completion-ls.json").write_text(marker)
    assert not is_converted(folder, sha256)


def test_a_missing_file_is_noticed(converted):
    _, folder, sha256 = converted
    (folder / "tokenizer.json").unlink()
    assert not is_converted(folder, sha256)


def test_the_same_name_with_another_content_is_another_model(converted):
    gguf, folder, _ = converted
    assert converted_folder(gguf.name, gguf.stat().st_size, "0" * 64) != folder
    assert not is_converted(folder, "0" * 64)


def test_a_cut_gguf_is_a_sentence(tiny, cache, tmp_path, listing):
    gguf, _, _ = tiny
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be used.*cut short.*get it again"):
        prepare(str(cut))
    assert listing(cache) == {"models.lock", "hashes.json"}


@given(data=st.data())
def test_any_cut_is_noticed(tiny, tmp_path_factory, data):
    gguf, _, _ = tiny
    whole = gguf.read_bytes()
    # The last 32 bytes may be padding, which no tensor needs.
    cut = tmp_path_factory.mktemp("cut") / "model.gguf"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 33))])
    with pytest.raises(gguf_to_folder.Unusable, match="cut short"):
        gguf_to_folder.read(cut)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3'.*llama, qwen2, qwen3"),
        ({"more": ("rope_freqs.weight",)}, "the tensor rope_freqs.weight"),
        ({"more": ("blk.0.ffn_gate_exps.weight",)}, "the tensor blk.0.ffn_gate_exps.weight"),
        ({"scaling": "yarn"}, "RoPE scaling of type yarn"),
    ],
)
def test_what_would_be_lost_is_refused(write_gguf, tmp_path, options, sentence):
    write_gguf(tmp_path / "model.gguf", **options)
    with pytest.raises(gguf_to_folder.Unusable, match=sentence):
        gguf_to_folder.check(gguf_to_folder.read(tmp_path / "model.gguf"))


def convert_here(gguf: Path, folder: Path) -> list[dict[str, object]]:
    """The child's work in this process, as many children would take long; returns its reports."""
    folder.mkdir()
    reports: list[dict[str, object]] = []
    gguf_to_folder.convert(gguf, folder, lambda **report: reports.append(report))
    return reports


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"leave_out": "blk.0.ffn_up.weight"}, "layers.0.mlp.up_proj.weight is not there"),
        ({"more": ("blk.0.attn_q.bias",)}, r"q_proj.bias is \(8,\) and should be not there"),
        ({"turned": 8}, "only a part of each head"),
        ({"pre": "a-new-way"}, "not known here .a-new-way."),
    ],
)
def test_what_does_not_fit_is_refused(write_gguf, tmp_path, options, sentence):
    write_gguf(tmp_path / "model.gguf", **options)
    with pytest.raises(gguf_to_folder.Unusable, match=sentence):
        convert_here(tmp_path / "model.gguf", tmp_path / "made")


@pytest.mark.parametrize(
    ("architecture", "extra"), [("qwen2", "q_proj.bias"), ("qwen3", "q_norm.weight")]
)
def test_qwen(write_gguf, tmp_path, architecture, extra):
    tensors = write_gguf(tmp_path / "model.gguf", architecture=architecture, pre="qwen2")
    reports = convert_here(tmp_path / "model.gguf", tmp_path / "made")
    weights = load_file(tmp_path / "made" / "model.safetensors")
    assert {"need": 4 * sum(tensor.size for tensor in tensors.values())} in reports
    assert len(weights) == len(tensors)
    assert f"model.layers.0.self_attn.{extra}" in weights
    q = weights["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(q, tensors["blk.0.attn_q.weight"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    assert tokenizer.encode("x  12", add_special_tokens=False).tokens == ["x", "Ġ", "Ġ", "1", "2"]


def test_whole_words_of_llama_3(write_gguf, tmp_path):
    write_gguf(tmp_path / "model.gguf", pre="llama-bpe")
    convert_here(tmp_path / "model.gguf", tmp_path / "made")
    made = json.loads((tmp_path / "made" / "tokenizer.json").read_text())
    assert made["model"]["ignore_merges"] is True


def test_too_little_memory_is_a_sentence():
    with pytest.raises(gguf_to_folder.Unusable, match=r"GB of memory .* smaller model"):
        gguf_to_folder.check_memory(10**15)
