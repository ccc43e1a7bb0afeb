"""EXL2 models of a given shape that take almost no disk: what is large in them is a hole in the file.

How fast a model is depends on its shape, not on what it has learnt. Small tensors are as a converter
writes them. The packed numbers and the embedding read as zeros, with which all computes to zero; once a
model is loaded, `fill` makes them random where they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.exl2.weights import SAME_INPUT

GROUP = 128
"""Inputs of a group, as the converter has them at four bits."""
HEAD_BITS = 6
SPREAD = 0.02
"""The standard deviation of a weight."""
TOKENS = 151665
"""Tokens that Qwen2.5's tokenizer has; its models have rows for a few more."""
END = "<|endoftext|>"
MOST_DISK = 3 * 10**9
ITEM = {"F16": 2, "I16": 2, "I32": 4}

Array = npt.NDArray[Any]
ZEROS: Array = np.zeros(0)
"""A hole that stays one, since zeros are what it is to hold."""


@dataclass(frozen=True)
class Shape:
    """Counts of a Qwen2: elements, layers, heads, and rows of the embedding."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    rows: int
    tokens: int = TOKENS

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Names, inputs and outputs of the matrices of a layer."""
        keys = self.hidden // self.heads * self.kv_heads
        yield "self_attn.q_proj", self.hidden, self.hidden
        yield "self_attn.k_proj", self.hidden, keys
        yield "self_attn.v_proj", self.hidden, keys
        yield "self_attn.o_proj", self.hidden, self.hidden
        yield "mlp.gate_proj", self.hidden, self.inner
        yield "mlp.up_proj", self.hidden, self.inner
        yield "mlp.down_proj", self.inner, self.hidden


SHAPES = {
    "32b": Shape("Qwen2.5-Coder-32B", 5120, 27648, 64, 40, 8, 152064),
    "14b": Shape("Qwen2.5-Coder-14B", 5120, 13824, 48, 40, 8, 152064),
    "7b": Shape("Qwen2.5-Coder-7B", 3584, 18944, 28, 28, 4, 152064),
    "1.5b": Shape("Qwen2.5-Coder-1.5B", 1536, 8960, 28, 12, 2, 151936),
    "0.5b": Shape("Qwen2.5-Coder-0.5B", 896, 4864, 24, 14, 2, 151936),
    "tiny": Shape("tiny", 256, 512, 2, 4, 2, 512, tokens=500),
    "tinier": Shape("tinier", 128, 256, 1, 4, 2, 512, tokens=500),
}
DRAFTS = {"32b": "1.5b", "14b": "1.5b", "7b": "1.5b", "1.5b": "0.5b", "tiny": "tinier"}
"""Targets, from large to small, and the draft that each is measured with."""


def bits_of_groups(inputs: int, bits: int) -> list[int]:
    """The bits of each group. Four are so on average, scales included: a tenth of the inputs have five
    and a few more have three."""
    groups = inputs // GROUP
    if bits != 4 or groups < 5:
        return [bits] * groups
    fives = max(1, groups // 10)
    threes = fives + round(groups / 32)
    return [5] * fives + [4] * (groups - fives - threes) + [3] * threes


def write_sparse(folder: Path, shape: Shape, *, holes: bool = True) -> Path:
    """Write a model of 4 bits into a folder, which is made, unless it is there; without `holes`, its
    packed numbers and its embedding are random. Raises OSError where the disk would really give it
    gigabytes."""
    last = folder / "tokenizer_config.json"
    if last.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    tensors = list(_tensors(shape, random))
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, dims, _ in tensors:
        start, end = end, end + ITEM[dtype] * math.prod(dims)
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = file.tell()
        file.truncate(begin + end)
        for name, dtype, dims, data in tensors:
            if data is None and not holes:
                data = _random(random, dtype, dims)
            if data is not None and data is not ZEROS:
                assert data.nbytes == ITEM[dtype] * math.prod(dims), name
                _write_at(file, begin + header[name]["data_offsets"][0], data)
    if path.stat().st_blocks * 512 > MOST_DISK:
        path.unlink()
        raise OSError(f"The disk of {folder} keeps no holes in files; name a folder on another.")
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    _tokenizer(shape.tokens).save(str(folder / "tokenizer.json"))
    last.write_text(json.dumps({"eos_token": END}))
    return folder


@torch.inference_mode()
def fill(model: Any) -> None:
    """Make a loaded model's packed numbers and its embedding random, each where it is."""
    for module in model.modules_dict.values():
        packed = (getattr(module, "q_tensors", None) or {}).get("q_weight")
        if packed is not None:
            packed.random_(-(2**31), 2**31 - 1)
        embedding = getattr(module, "embedding", None)
        if embedding is not None:
            rows = torch.randn(4096, embedding.weight.shape[1]).half()
            for part in embedding.weight.data.split(len(rows)):
                part.copy_(rows[: len(part)])


def _tensors(
    shape: Shape, random: np.random.Generator
) -> Iterator[tuple[str, str, tuple[int, ...], Array | None]]:
    """Names, dtypes, shapes, and values but where there is to be a hole."""
    hidden = shape.hidden
    ones = np.ones(hidden, np.float16)
    yield "model.embed_tokens.weight", "F16", (shape.rows, hidden), None
    for layer in range(shape.layers):
        block = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{block}{norm}.weight", "F16", (hidden,), ones
        orders: dict[str, Array] = {}
        for name, inputs, outputs in shape.matrices():
            part, _, projection = name.rpartition(".")
            source = f"{part}.{SAME_INPUT.get(projection, projection)}"
            if source not in orders:
                orders[source] = random.permutation(inputs).astype(np.int32)
            yield from _matrix(block + name, orders[source], outputs, 4)
            if projection in ("q_proj", "k_proj", "v_proj"):
                yield f"{block}{name}.bias", "F16", (outputs,), ZEROS
    yield "model.norm.weight", "F16", (hidden,), ones
    yield from _matrix("lm_head", np.arange(hidden, dtype=np.int32), shape.rows, HEAD_BITS)


def _matrix(
    name: str, order: Array, outputs: int, bits: int
) -> Iterator[tuple[str, str, tuple[int, ...], Array | None]]:
    outputs += -outputs % 32
    groups = bits_of_groups(len(order), bits)
    words = [GROUP * one // 32 for one in groups]
    starts = np.cumsum([0, *words[:-1]])
    places = np.stack([groups, starts], 1).astype(np.int16)
    # Steps are zeros, which stand for one; so a number's worth is a 256th of this.
    scales = [256 * SPREAD * math.sqrt(12) / 2**one for one in groups]
    yield f"{name}.q_weight", "I32", (sum(words), outputs), None
    yield f"{name}.q_scale", "I32", (len(groups), outputs // 8), ZEROS
    yield f"{name}.q_invperm", "I32", (len(order),), order
    yield f"{name}.q_groups", "I16", (2 * len(groups),), places
    yield f"{name}.q_scale_max", "F16", (len(groups),), np.array(scales, np.float16)


def _random(random: np.random.Generator, dtype: str, dims: tuple[int, ...]) -> Array:
    if dtype == "F16":
        return random.standard_normal(dims).astype(np.float16)
    return random.integers(-(2**31), 2**31, dims).astype(np.int32)


def _write_at(file: BinaryIO, offset: int, data: Array) -> None:
    file.seek(offset)
    file.write(data.tobytes())


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.rows,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "exl2",
            "version": "0.3.2",
            "bits": 4.0,
            "head_bits": HEAD_BITS,
        },
    }


def _tokenizer(tokens: int) -> Tokenizer:
    """One of so many byte-level tokens, which puts none of them together."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = ("".join(text) for length in count(1) for text in product(characters, repeat=length))
    vocabulary = {END: 0} | {text: id for id, text in enumerate(islice(texts, tokens - 1), 1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return tokenizer


def disk_bytes(folder: Path) -> int:
    """What the files of a folder really take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())
