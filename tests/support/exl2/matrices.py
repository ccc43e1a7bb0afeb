"""EXL2 matrices, as the compiled module makes them of a layer's tensors and multiplies with them.

A matrix has a row for each input and a column for each output. Functions with the names of the
compiled module's have its arguments, in its order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from support.exl2.checks import given, require, require_dtype, require_reference
from support.exl2.words import WORD, pack_nibbles, unpack_nibbles

BLOCK = 32
"""The kernels read this many rows at a time, all of them of the same bits and group."""

_handles = itertools.count(1)  # 0 says that there is no matrix
_matrices: dict[int, Matrix] = {}


@dataclass(frozen=True)
class Matrix:
    """A dequantised matrix: `weight` [inputs, outputs] and `bias` [outputs] are float64 that hold
    float16 values exactly.

    Products are of float64, so that a row's result does not depend on the rows beside it.
    """

    weight: Tensor
    bias: Tensor | None

    @property
    def inputs(self) -> int:
        """How many rows it has."""
        return self.weight.shape[0]

    @property
    def outputs(self) -> int:
        """How many columns it has."""
        return self.weight.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        """[rows, inputs] to float64 [rows, outputs], with the bias."""
        product = x.double() @ self.weight
        return product if self.bias is None else product + self.bias


def matrix_of(handle: int) -> Matrix:
    """The matrix of a handle. Raises RuntimeError where there is none (any more)."""
    require(handle in _matrices, f"there is no matrix {handle}")
    return _matrices[handle]


def make_group_map(q_groups: Tensor, num_qrows: int) -> Tensor:
    """For each row of a matrix its group, and how many rows of the group are left, itself included.

    q_groups: int16 [2 * groups], bits and first word of each group. num_qrows: words of a column.
    Returns int16 [2 * inputs].
    """
    require_dtype("q_groups", q_groups, torch.int16)
    bits = q_groups[0::2].tolist()
    starts = [*q_groups[1::2].tolist(), num_qrows]
    mapped: list[int] = []
    for group, (start, end) in enumerate(itertools.pairwise(starts)):
        rows = (end - start) * WORD // bits[group]
        for left in range(rows, 0, -1):
            mapped += [group, left]
    return torch.tensor(mapped, dtype=torch.int16)


def make_q_matrix(
    q_weight: Tensor,
    q_perm: Tensor,
    q_invperm: Tensor,
    q_scale: Tensor,
    q_scale_max: Tensor,
    q_groups: Tensor,
    q_group_map: Tensor,
    gptq_qzeros: Tensor,
    gptq_scales: Tensor,
    gptq_g_idx: Tensor,
    bias: Tensor,
    temp_dq: Tensor,
    max_dq_rows: int,
) -> int:
    """Make a matrix; returns its handle.

    q_weight: int32 [words, outputs]. q_perm, q_invperm: int16 [inputs], or not given. q_scale:
    int32 [groups, outputs / 8]. q_scale_max: float16 [groups], 1/256 of what the file says. bias:
    float16 [outputs], or not given. Raises RuntimeError for tensors that do not fit together.
    """
    require_reference(not q_scale.is_meta, "GPTQ matrices")
    require_dtype("q_weight", q_weight, torch.int32)
    require_dtype("q_perm", q_perm, torch.int16)
    require_dtype("q_invperm", q_invperm, torch.int16)
    require_dtype("q_scale", q_scale, torch.int32)
    require_dtype("q_scale_max", q_scale_max, torch.float16)
    require_dtype("q_groups", q_groups, torch.int16)
    require_dtype("q_group_map", q_group_map, torch.int16)
    require_dtype("bias", bias, torch.float16)
    _require_groups_in_order(q_groups, q_group_map)
    inputs, outputs = len(q_group_map) // 2, q_weight.shape[1]
    order = given(q_perm)
    require(order is None or len(order) == inputs, "q_perm does not fit q_groups")
    require(q_scale.shape[1] * 8 == outputs, "q_scale does not fit q_weight")
    require(len(q_scale_max) == len(q_scale), "q_scale_max does not fit q_scale")
    require(len(q_groups) == 2 * len(q_scale), "q_groups does not fit q_scale")
    require(bias.is_meta or len(bias) == outputs, "bias does not fit q_weight")
    require(
        temp_dq.is_meta or len(temp_dq) >= outputs * min(max_dq_rows, inputs),
        "temp_dq is too small for the matrix",
    )
    stored = _stored_rows(q_weight, q_scale, q_scale_max, q_groups, q_group_map)
    weight = stored
    if order is not None:
        weight = torch.empty_like(stored)
        weight[order.long() & 0xFFFF] = stored
    handle = next(_handles)
    _matrices[handle] = Matrix(weight.double(), None if bias.is_meta else bias.double())
    return handle


def _require_groups_in_order(q_groups: Tensor, q_group_map: Tensor) -> None:
    bits = q_groups[0::2].tolist()
    require(bits == sorted(bits, reverse=True), "groups of more bits must come first")
    rows = torch.bincount(q_group_map[0::2].long())
    require(not bool((rows % BLOCK).any()), f"a group's rows must be a multiple of {BLOCK}")


def _stored_rows(
    q_weight: Tensor, q_scale: Tensor, q_scale_max: Tensor, q_groups: Tensor, q_group_map: Tensor
) -> Tensor:
    """The rows in the order of the file, float16 [inputs, outputs]."""
    group, left = q_group_map.view(-1, 2).long().unbind(1)
    bits = q_groups[0::2].long()[group]
    place = torch.bincount(group)[group] - left
    position = q_groups[1::2].long()[group] * WORD + place * bits
    require(int((position + bits).max()) == WORD * len(q_weight), "q_groups does not fit q_weight")
    # A number may begin in one word and end in the next.
    words = pad(q_weight.long() & 0xFFFFFFFF, (0, 0, 0, 1))
    word = position // WORD
    pair = words[word] | (words[word + 1] << WORD)
    numbers = (pair >> (position % WORD)[:, None]) & (2**bits - 1)[:, None]
    steps = unpack_nibbles(q_scale) + 1
    scale = (steps * steps).half() * q_scale_max[:, None]
    return (numbers - 2 ** (bits - 1)[:, None]).half() * scale[group]


def free_q_matrix(handle: int) -> None:
    """Forget a matrix."""
    _matrices.pop(handle, None)


def reconstruct(handle: int, output: Tensor) -> None:
    """Write a matrix into `output`, float16 [inputs, outputs]."""
    matrix = matrix_of(handle)
    require(output.shape == matrix.weight.shape, "the output does not have the matrix's shape")
    require_dtype("output", output, torch.float16)
    output.copy_(matrix.weight)


def gemm_half_q_half(a: Tensor, handle: int, c: Tensor, force_cuda: bool) -> None:
    """Write the product of `a`, float16 [rows, inputs], with a matrix into `c`, float16
    [rows, outputs]. `force_cuda` chooses among the compiled kernels only."""
    matrix = matrix_of(handle)
    require_dtype("a", a, torch.float16)
    require_dtype("c", c, torch.float16)
    require(a.shape[1] == matrix.inputs, "a does not fit the matrix")
    require(c.shape == (len(a), matrix.outputs), "c does not fit the product")
    c.copy_(matrix.apply(a))


def tensor_remap(tensor: Tensor, index: Tensor) -> None:
    """Put the columns of `tensor`, int32 [rows, columns], in the order of `index`, int32
    [columns], in place."""
    require_dtype("tensor", tensor, torch.int32)
    require_dtype("index", index, torch.int32)
    require(tensor.shape[1] == len(index), "index does not fit tensor")
    tensor.copy_(tensor[:, index.long()])


def tensor_remap_4bit(tensor: Tensor, index: Tensor) -> None:
    """As `tensor_remap`, with eight columns of four bits in each word: int32 [rows, columns /
    8]."""
    require_dtype("tensor", tensor, torch.int32)
    require_dtype("index", index, torch.int32)
    require(tensor.shape[1] * 8 == len(index), "index does not fit tensor")
    tensor.copy_(pack_nibbles(unpack_nibbles(tensor)[:, index.long()]))
