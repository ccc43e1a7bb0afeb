"""The forward pass on compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from completion_ls.engines.model import KvShape
from completion_ls.engines.native import (
    MOST_GROUP,
    MOST_SIZE,
    MULTIPLE,
    Native,
    NativeAttention,
    NativeLinear,
    Seen,
    kv_shape,
)
from completion_ls.engines.shape import LlamaShape
from completion_ls.engines.tree import View
from completion_ls.engines.weights import LlamaWeights, WeightKind


@dataclass(frozen=True, slots=True)
class _Block:
    attention_norm: Tensor
    qkv: NativeLinear
    attend: NativeAttention
    out: NativeLinear
    mlp_norm: Tensor
    gate_up: NativeLinear
    down: NativeLinear


def can_attend(shape: LlamaShape) -> bool:
    """Whether the compiled functions have attention for a model of this shape."""
    fits = shape.head_dim % MULTIPLE == 0 and shape.head_dim <= MOST_SIZE
    return fits and shape.heads <= MOST_GROUP * shape.kv_heads


def can_compute(shape: LlamaShape, weights: WeightKind) -> bool:
    """Whether the compiled functions can do a model of this shape with weights kept in this way."""
    inputs = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    even = weights != "bf16" or all(size % MULTIPLE == 0 for size in inputs)
    return weights != "float32" and even and can_attend(shape)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The layers of one model as `native` takes them."""

    blocks: tuple[_Block, ...]
    norm: Tensor
    head: NativeLinear
    eps: float
    kv: KvShape

    @classmethod
    def of(cls, shape: LlamaShape, weights: LlamaWeights, native: Native) -> Compiled | None:
        """None where the compiled functions cannot do this model."""
        head = native.prepare(weights.head)
        if head is None or not can_attend(shape):
            return None
        blocks = []
        for layer in weights.layers:
            linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
            qkv, out, gate_up, down = (native.prepare(linear) for linear in linears)
            if not (qkv and out and gate_up and down):
                return None
            attend = native.attention(shape, layer.q_norm, layer.k_norm)
            blocks.append(
                _Block(layer.attention_norm, qkv, attend, out, layer.mlp_norm, gate_up, down)
            )
        return cls(tuple(blocks), weights.norm, head, shape.norm_eps, kv_shape(shape))

    def forward(
        self,
        x: Tensor,
        caches: Sequence[Tensor],
        past: int,
        view: View,
        cos: Tensor,
        sin: Tensor,
        logits_of: int,
    ) -> Tensor:
        """`x` [tokens, hidden] through all layers; the logits of the last `logits_of`."""
        seen = Seen.of(view)
        for block, cache in zip(self.blocks, caches, strict=True):
            qkv = block.qkv(x, block.attention_norm, self.eps)
            y = block.attend(qkv, cos, sin, cache, past, seen)
            if block is self.blocks[-1]:  # from here on only what is asked for
                if logits_of == 0:
                    return x.new_empty(0, self.head.outputs)
                x, y = x[-logits_of:], y[-logits_of:]
            block.out(y, add_to=x)
            gate_up = block.gate_up(x, block.mlp_norm, self.eps)
            block.down(gate_up, gated=True, add_to=x)
        return self.head(x, self.norm, self.eps)
