"""Writes and reads EXL2 weights: a matrix, and the folder of a model.

A matrix [outputs, inputs], as transformers has it, is stored by inputs. Those are put in an order
(the real converter puts first what matters most), and cut into groups of so many bits; a group has
a scale of 4 bits for each output, and one of float16 for all of these. The value of a number q of b
bits is

    (q - 2**(b - 1)) * (step + 1)**2 * q_scale_max / 256
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from support.exl2.words import pack_nibbles, pack_stream, unpack_nibbles, unpack_stream

BITS = (8, 6, 5, 4, 3, 2)
BLOCK = 32
"""A group's inputs, and all outputs, are a multiple of this; outputs are padded."""
STEPS = 16

CONFIG = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
)
SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Layers with the inputs of another, and so with the order of those."""


class Group(NamedTuple):
    """Inputs that follow each other and have one scale."""

    bits: int
    inputs: int


@dataclass(frozen=True)
class Exl2Matrix:
    """The tensors of a matrix, under their names in a file.

    q_weight: int32 [words, outputs], see `pack_stream`. q_scale: int32 [groups, outputs / 8], the
    steps, see `pack_nibbles`. q_scale_max: float16 [groups]. q_groups: int16 [2 * groups], the bits
    of each and its first word. q_invperm: int32 [inputs], where each input's row is stored. bias:
    float16 [outputs].
    """

    q_weight: Tensor
    q_scale: Tensor
    q_scale_max: Tensor
    q_groups: Tensor
    q_invperm: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], layer: str) -> Exl2Matrix:
        """The matrix of a layer among the tensors of a file."""
        names = ("q_weight", "q_scale", "q_scale_max", "q_groups", "q_invperm")
        found = {name: tensors[f"{layer}.{name}"] for name in names}
        return cls(**found, bias=tensors.get(f"{layer}.bias"))

    def tensors(self, layer: str) -> dict[str, Tensor]:
        """As they stand in a file."""
        named = {f"{layer}.{name}": tensor for name, tensor in vars(self).items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def even_groups(inputs: int, bits: int) -> list[Group]:
    """Groups of one block each."""
    return [Group(bits, BLOCK)] * (inputs // BLOCK)


def converter_groups(inputs: int, bits: int) -> list[Group]:
    """As a converter may choose them: a few more bits for the first inputs."""
    more = BITS[max(BITS.index(bits) - 1, 0)]
    return [Group(more, BLOCK), *even_groups(inputs - BLOCK, bits)]


def quantize(
    weight: Tensor,
    groups: Sequence[Group],
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Exl2Matrix:
    """Round a matrix [outputs, inputs] to the nearest numbers.

    order: int64 [inputs], which input each stored row is of. bias: [outputs]. Raises ValueError for
    groups that the kernels cannot do.
    """
    outputs, inputs = weight.shape
    _check(groups, inputs)
    if order is None:
        order = torch.arange(inputs)
    padding = (0, -outputs % BLOCK)
    rows = pad(weight.detach().float().T, padding)[order]
    words: list[Tensor] = []
    steps, units, places = [], [], []
    parts = torch.split(rows, [group.inputs for group in groups])
    for group, part in zip(groups, parts, strict=True):
        unit, step = _scale(part, group.bits)
        zero = 2 ** (group.bits - 1)
        numbers = (part / _value(unit, step).float()).round() + zero
        places += [group.bits, sum(map(len, words))]
        words.append(pack_stream(numbers.clamp(0, 2 * zero - 1), group.bits))
        steps.append(step)
        units.append(unit)
    return Exl2Matrix(
        q_weight=torch.cat(words),
        q_scale=pack_nibbles(torch.stack(steps)),
        q_scale_max=256 * torch.stack(units),
        q_groups=torch.tensor(places, dtype=torch.int16),
        q_invperm=order.argsort().to(torch.int32),
        bias=None if bias is None else pad(bias.detach().half(), padding),
    )


def _check(groups: Sequence[Group], inputs: int) -> None:
    bits = [group.bits for group in groups]
    if not set(bits) <= set(BITS) or bits != sorted(bits, reverse=True):
        raise ValueError(f"bits must be of {BITS} and must not grow from group to group: {bits}")
    if any(group.inputs % BLOCK for group in groups):
        raise ValueError(f"a group's inputs must be a multiple of {BLOCK}")
    if sum(group.inputs for group in groups) != inputs:
        raise ValueError(f"the groups are not of {inputs} inputs")


def _scale(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The smallest scales that reach all of a group's rows [inputs, outputs]: 1/256 of that of all
    outputs, float16 [], and the outputs' steps, int64 [outputs]."""
    reach = rows.abs().amax(0) / ((2**bits - 1) / 2)
    most = reach.max() / STEPS**2
    unit = most.half()
    if unit < most or unit == 0:
        unit = (unit.view(torch.int16) + 1).view(torch.float16)  # the next float16
    steps = (reach / unit.float()).sqrt().ceil().clamp(1, STEPS).long() - 1
    return unit, steps


def _value(unit: Tensor, steps: Tensor) -> Tensor:
    """What a number of 1 stands for, float16 of the shape of `steps`."""
    return ((steps + 1) * (steps + 1)).half() * unit


def dequantize(matrix: Exl2Matrix) -> Tensor:
    """What the numbers stand for, float16 [inputs, outputs], padding included."""
    groups, starts = matrix.q_groups[0::2].tolist(), matrix.q_groups[1::2].tolist()
    ends = [*starts[1:], len(matrix.q_weight)]
    units = matrix.q_scale_max * (1 / 256)
    steps = unpack_nibbles(matrix.q_scale)
    rows = []
    for number, (bits, start, end) in enumerate(zip(groups, starts, ends, strict=True)):
        numbers = unpack_stream(matrix.q_weight[start:end], bits) - 2 ** (bits - 1)
        rows.append(numbers.half() * _value(units[number], steps[number]))
    return torch.cat(rows)[matrix.q_invperm.long()]


def export(
    model: PreTrainedModel, folder: Path, bits: int, head_bits: int = 6, seed: int = 0
) -> None:
    """Write a Llama, Qwen2 or Qwen3 as an EXL2 model into a folder, which is made.

    Matrices have `bits` (a few inputs more), the head `head_bits`; inputs are in a random order of
    a seed.
    """
    random = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    tensors = {"model.embed_tokens.weight": state["model.embed_tokens.weight"].half()}
    orders: dict[str, Tensor] = {}
    for name, weight in state.items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and layer.endswith("norm"):
            tensors[name] = weight.half()
        elif kind == "weight" and layer.endswith("proj"):
            inputs = weight.shape[1]
            block, _, projection = layer.rpartition(".")
            source = f"{block}.{SAME_INPUT.get(projection, projection)}"
            if source not in orders:
                orders[source] = torch.randperm(inputs, generator=random)
            groups = converter_groups(inputs, bits)
            matrix = quantize(weight, groups, orders[source], state.get(f"{layer}.bias"))
            tensors |= matrix.tensors(layer)
    head = state["lm_head.weight"]
    tensors |= quantize(head, even_groups(head.shape[1], head_bits)).tensors("lm_head")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_config(model, folder, bits, head_bits)


def _write_config(model: PreTrainedModel, folder: Path, bits: int, head_bits: int) -> None:
    given = {name: getattr(model.config, name, None) for name in CONFIG}
    config = {
        "architectures": [type(model).__name__],
        **{name: value for name, value in given.items() if value is not None},
        "rope_theta": model.config.rope_parameters["rope_theta"],
        "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "exl2",
            "version": "0.3.2",
            "bits": float(bits),
            "head_bits": head_bits,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


def read_dequantized(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of an EXL2 folder as transformers computes it, with the weights that its numbers
    stand for."""
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = False  # the head was quantised, the embedding was not
    del config.quantization_config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=dtype, attn_implementation="eager"
    )
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = load_file(folder / "model.safetensors")
    state = {}
    for name, tensor in tensors.items():
        if name in shapes:
            state[name] = tensor[: shapes[name][0]]
        elif name.endswith(".q_weight"):
            layer = name.removesuffix(".q_weight")
            weight = dequantize(Exl2Matrix.of(tensors, layer)).T
            state[f"{layer}.weight"] = weight[: shapes[f"{layer}.weight"][0]]
    model.load_state_dict(state)
    model.train(False)
    return model
