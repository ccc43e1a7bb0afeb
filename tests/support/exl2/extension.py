"""The module that stands for `exllamav2_ext`.

It has what loading a model, its forward and the handling of its cache call; what only exllamav2's
own samplers, LoRAs, converters and several GPUs need is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from support.exl2.checks import require
from support.exl2.kv_bits import cache_rotate, count_match, fp16_to_q_kv, q_to_fp16_kv
from support.exl2.layers import (
    free_q_attn,
    free_q_mlp,
    make_q_attn,
    make_q_mlp,
    q_attn_forward_1,
    q_attn_forward_2,
    q_mlp_forward_,
    rms_norm,
)
from support.exl2.matrices import (
    free_q_matrix,
    gemm_half_q_half,
    make_group_map,
    make_q_matrix,
    reconstruct,
    tensor_remap,
    tensor_remap_4bit,
)


def stloader_read(filename: str, offset: int, size: int, target: Tensor) -> None:
    """Read `size` bytes of a file, from `offset`, into a contiguous tensor of that size. Raises
    RuntimeError where the file ends before."""
    require(target.is_contiguous(), "target must be contiguous")
    require(target.numel() * target.element_size() == size, "target does not have that size")
    with Path(filename).open("rb") as file:
        file.seek(offset)
        read = bytearray(file.read(size))
    require(len(read) == size, f"{filename} is too short")
    if size:
        target.view(-1).view(torch.uint8).copy_(torch.frombuffer(read, dtype=torch.uint8))


def make_module(name: str, *functions: Callable[..., Any], **constants: str) -> ModuleType:
    """A module of functions, and of a few constants, that is nowhere on disk."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None)  # who looks for the module expects one
    vars(module).update({function.__name__: function for function in functions}, **constants)
    return module


def extension_module() -> ModuleType:
    """The reference for `exllamav2_ext`."""
    return make_module(
        "exllamav2_ext",
        cache_rotate,
        count_match,
        fp16_to_q_kv,
        free_q_attn,
        free_q_matrix,
        free_q_mlp,
        gemm_half_q_half,
        make_group_map,
        make_q_attn,
        make_q_matrix,
        make_q_mlp,
        q_attn_forward_1,
        q_attn_forward_2,
        q_mlp_forward_,
        q_to_fp16_kv,
        reconstruct,
        rms_norm,
        stloader_read,
        tensor_remap,
        tensor_remap_4bit,
    )
