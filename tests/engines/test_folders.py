"""Which folders are read, and what is said about the others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from completion_ls.engines.llama import Llama
from completion_ls.engines.shape import Llama3Rope, read_shape
from completion_ls.engines.weights import read_weights


@pytest.fixture
def folder(tiny: Callable, tmp_path: Path) -> Path:
    """A copy of a good folder, to be spoilt."""
    return Path(shutil.copytree(tiny("llama").folder, tmp_path / "model"))


def change(folder: Path, **values: Any) -> None:
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        Llama.read(folder)
    text = str(error.value)
    assert text.endswith("."), "a sentence"
    return text


def same(folder: Path, other: Path) -> bool:
    tokens = list(range(0, 90, 7))
    results = []
    for one in (folder, other):
        llama = Llama.read(one)
        kv = _Kv(llama)
        results.append(llama.forward(tokens, kv, len(tokens)))
    return torch.allclose(*results, atol=1e-5)


class _Kv:
    def __init__(self, llama: Llama) -> None:
        self.length = 0
        self.layers = [llama.kv.empty(64) for _ in range(llama.kv.layers)]


# config.json


def test_both_layouts_of_the_rope_parameters_are_read(folder: Path) -> None:
    change(folder, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    new = read_shape(folder)
    change(folder, rope_parameters=None, rope_theta=500000.0)
    assert read_shape(folder) == new and new.rope_theta == 500000.0

    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = Llama3Rope(32.0, 1.0, 4.0, 8192)
    change(folder, rope_scaling=scaling | {"rope_type": "llama3"})
    assert read_shape(folder).rope_scaling == expected
    assert read_shape(folder).rope_theta == 500000.0
    change(folder, rope_scaling=scaling | {"type": "llama3"})
    assert read_shape(folder).rope_scaling == expected
    change(
        folder,
        rope_scaling=None,
        rope_theta=None,
        rope_parameters=scaling | {"rope_type": "llama3", "rope_theta": 7e5},
    )
    assert read_shape(folder).rope_scaling == expected
    assert read_shape(folder).rope_theta == 7e5


@pytest.mark.parametrize(
    "values, words",
    [
        ({"architectures": ["MistralForCausalLM"]}, ["MistralForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["not supported"]),
        ({"architectures": None, "model_type": "gemma3_text"}, ["gemma3_text", "LlamaForCausalLM"]),
        ({"architectures": None, "model_type": None}, ["not supported"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["'yarn'", "'llama3'"]),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, ["'linear'"]),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["0.5"]),
        ({"rope_parameters": {"rope_type": "llama3"}}, ["'factor'"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["gptq", "quantised"]),
        ({"hidden_act": "gelu"}, ["'gelu'"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["sliding-window"]),
        ({"use_sliding_window": True}, ["sliding-window"]),
        ({"hidden_size": None}, ["'hidden_size'"]),
        ({"hidden_size": "large"}, ["'hidden_size'", "'large'"]),
        ({"num_hidden_layers": -3}, ["'num_hidden_layers'"]),
        ({"num_hidden_layers": 2.5}, ["'num_hidden_layers'"]),
        ({"num_key_value_heads": 4}, ["do not divide"]),
    ],
)
def test_configs_that_cannot_be_served(
    folder: Path, values: dict[str, Any], words: list[str]
) -> None:
    change(folder, **values)
    text = refusal(folder)
    assert all(word in text for word in words), text


def test_missing_and_damaged_configs(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    assert "no JSON object" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": ')
    assert "is not JSON" in refusal(folder)
    (folder / "config.json").unlink()
    assert "cannot be read" in refusal(folder)


def test_architectures_may_be_left_out(folder: Path) -> None:
    full = read_shape(folder)
    change(folder, architectures=None)
    assert read_shape(folder) == full


# weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted(folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    halves = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(halves, path)
    weights = read_weights(folder, read_shape(folder))
    assert weights.embedding.weight.dtype == torch.float32
    assert torch.equal(weights.embedding.weight, halves["model.embed_tokens.weight"].float())
    assert torch.equal(
        weights.layers[1].qkv.weight[-16:], halves["model.layers.1.self_attn.v_proj.weight"].float()
    )


def test_shards_are_read(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("llama")
    model.reference.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert same(tmp_path, model.folder)


def test_a_missing_or_wild_shard_is_refused(tiny: Callable, tmp_path: Path) -> None:
    tiny("llama").reference.save_pretrained(tmp_path, max_shard_size="50KB")
    shard = max(tmp_path.glob("*.safetensors"))
    kept = shard.read_bytes()
    shard.unlink()
    assert shard.name in refusal(tmp_path)
    shard.write_bytes(kept)
    index = tmp_path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(table))
    assert "outside its folder" in refusal(tmp_path)
    index.write_text("{}")
    assert "damaged" in refusal(tmp_path)


@pytest.mark.parametrize("left", [0, 4, 100, 20_000])
def test_truncated_weights_are_refused(folder: Path, left: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    assert "not a complete safetensors file" in refusal(folder)


def test_missing_weights_and_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "holds no model.safetensors" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    text = refusal(folder)
    assert "pytorch_model.bin" in text and "runs whatever code" in text


def test_tensors_must_be_those_of_the_config(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = load_file(path)
    save_file(whole | {"model.layers.0.self_attn.q_proj.qweight": torch.ones(3)}, path)
    assert "q_proj.qweight" in refusal(folder)
    save_file(whole | {"model.norm.weight": torch.ones(7)}, path)
    assert "[7]" in refusal(folder)
    save_file(whole | {"model.norm.weight": torch.ones(48, dtype=torch.int8)}, path)
    assert "int8" in refusal(folder)
    save_file({name: t for name, t in whole.items() if name != "model.norm.weight"}, path)
    assert "lack the tensor model.norm.weight" in refusal(folder)


def test_known_extra_tensors_are_ignored(folder: Path, tiny: Callable) -> None:
    path = folder / "model.safetensors"
    extra = {
        "lm_head.weight": torch.zeros(97, 48),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    save_file(load_file(path) | extra, path)
    assert same(folder, tiny("llama").folder)


def test_weight_bytes_count_tied_embeddings_once(tiny: Callable) -> None:
    folder = tiny("llama").folder
    on_disk = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert Llama.read(folder).weights.nbytes == on_disk


def test_replacing_the_file_does_not_touch_a_loaded_model(folder: Path) -> None:
    llama = Llama.read(folder)
    before = llama.forward([1, 2, 3], _Kv(llama), 1)
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(10)
    assert torch.equal(llama.forward([1, 2, 3], _Kv(llama), 1), before)
