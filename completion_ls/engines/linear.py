"""Linear layers in the forms that weights are kept in, and their products on torch.

A layer is called with x, float32 [rows, inputs], and gives float32 [rows, outputs]. Passes of few
tokens go through `native` instead, where that can be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

INT8, INT4, BF16 = range(3)
"""The kinds as `kernels.c` numbers them."""
GROUP = 32
"""Weights of four bits share a scale and a least value in groups of so many inputs."""
HIGH = 256
"""Inputs of sixteen bits are two bytes: this many times the first, and the second."""


@lru_cache(maxsize=1)
def bytes_multiply_exactly() -> bool:
    """Whether torch's product of bytes is that of the whole numbers. On x86 without VNNI it is not:
    there the sum of two products stops at the largest number of 16 bits."""
    most = torch.full((64, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(most, most) == 64 * 127**2).all())


def _product_of_bytes(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [rows, inputs] by `weight` [outputs, inputs], all int8; int32 [rows, outputs]."""
    if bytes_multiply_exactly():
        return torch._int_mm(x, weight.t())
    # Weights of seven bits are small enough: 2 * 255 * 64 < 2**15.
    halves = torch._int_mm(x, (weight >> 1).t())
    return halves.mul_(2).add_(torch._int_mm(x, (weight & 1).t()))


@dataclass(frozen=True, slots=True)
class Float32Linear:
    """`weight` is [outputs, inputs], `bias` [outputs]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as float32, for a layer that is a table of embeddings."""
        return self.weight[ids]


@dataclass(frozen=True, slots=True)
class Bf16Linear:
    """`weight` is [outputs, inputs] in bfloat16."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight.float(), self.bias)

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as float32."""
        return self.weight[ids].float()


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """`weight` [outputs, inputs] of whole numbers in units of `scale` [outputs].

    Inputs become whole numbers as well, row by row, of as many bits as keep the sums exact in 32
    bits: so a row's products are the same in a pass of one row and of a thousand, and the error is
    far below that of bfloat16.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True)
        limit = torch.tensor(self.limit)
        values = (x * torch.where(largest > 0, limit / largest, 0)).round_().to(torch.int32)
        high = (values + HIGH // 2) >> 8
        low = values - high * HIGH
        sums = _product_of_bytes(torch.cat((high, low)).to(torch.int8), self.weight)
        total = sums[: len(x)].mul_(HIGH).add_(sums[len(x) :])
        y = total.float().mul_((largest / limit) * self.scale)
        return y if self.bias is None else y.add_(self.bias)

    @property
    def limit(self) -> float:
        """The largest whole number of an input."""
        return float(min(127 * HIGH, (2**31 - 1) // (127 * self.inputs)))

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as float32."""
        return self.weight[ids].float().mul_(self.scale[ids, None])

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Int8Linear:
        """The nearest whole numbers, the largest of a row being 127."""
        scale = weight.abs().amax(1).div_(127)
        units = torch.where(scale > 0, scale, 1)
        return cls(weight.div(units[:, None]).round_().to(torch.int8), scale, bias)


@dataclass(frozen=True, slots=True)
class Int4Linear:
    """`weight` [outputs, inputs / 2]: two whole numbers from 0 to 15 a byte, the first of one half
    of a group in the low bits, that of the other in the high ones. A weight is the group's scale
    times its number, and the group's least: `pairs` [outputs, inputs / GROUP, 2]."""

    weight: Tensor
    pairs: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._floats(), self.bias)

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return 2 * self.weight.shape[1]

    def _floats(self) -> Tensor:
        packed = self.weight.view(self.outputs, -1, GROUP // 2)
        numbers = torch.cat((packed & 15, packed >> 4), dim=-1).float()
        return numbers.mul_(self.pairs[..., :1]).add_(self.pairs[..., 1:]).view(self.outputs, -1)

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Int4Linear:
        """The nearest numbers between the least and the largest of each group."""
        groups = weight.view(len(weight), -1, GROUP)
        least, most = groups.aminmax(dim=-1, keepdim=True)
        scale = (most - least) / 15
        numbers = ((groups - least) / torch.where(scale > 0, scale, 1)).round_().to(torch.uint8)
        first, second = numbers.chunk(2, dim=-1)
        packed = (first | second << 4).view(len(weight), -1)
        return cls(packed, torch.cat((scale, least), dim=-1), bias)


Linear = Float32Linear | Bf16Linear | Int8Linear | Int4Linear
Table = Float32Linear | Bf16Linear | Int8Linear
