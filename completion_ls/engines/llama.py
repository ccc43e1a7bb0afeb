"""The forward pass of Llama-like models on a CPU. On torch what is added up is float32."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from completion_ls.engines.compiled import Compiled
from completion_ls.engines.linear import Float32Linear
from completion_ls.engines.model import KvShape, KvStore
from completion_ls.engines.native import Native
from completion_ls.engines.shape import LlamaShape, read_shape
from completion_ls.engines.tree import View
from completion_ls.engines.weight_cache import load_weights
from completion_ls.engines.weights import LayerWeights, LlamaWeights, WeightKind

_log = logging.getLogger(__name__)


class Llama:
    """Weights and shape of one model; stateless but for those."""

    def __init__(
        self, shape: LlamaShape, weights: LlamaWeights, native: Native | None = None
    ) -> None:
        """With `native` the passes run on compiled code where the weights allow it."""
        self.shape = shape
        self.weights = weights
        self._frequencies = _rope_frequencies(shape)
        self._group = shape.heads // shape.kv_heads
        self.native = native
        self._compiled = Compiled.of(shape, weights, native) if native else None
        plain = KvShape(shape.layers, shape.kv_heads, shape.head_dim, torch.float32)
        self.kv = self._compiled.kv if self._compiled else plain
        if self._compiled is None and not isinstance(weights.head, Float32Linear):
            _log.warning(
                "There is no compiled code for this model on this machine (a C compiler is needed, and "
                'heads of a multiple of 16), so it is slow; engine.weights = "float32" may be faster.'
            )

    @classmethod
    def read(
        cls, folder: Path, kind: WeightKind = "float32", native: Native | None = None
    ) -> Llama:
        """Read a Hugging Face folder. Raises ValueError (a sentence) when it cannot be served."""
        shape = read_shape(folder)
        return cls(shape, load_weights(folder, shape, kind), native)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.weights.nbytes

    @property
    def is_compiled(self) -> bool:
        """Whether passes run on compiled code."""
        return self._compiled is not None

    def use_threads(self, threads: int) -> None:
        """Use so many threads from now on, in the whole process."""
        torch.set_num_threads(threads)
        if self.native:
            self.native.use_threads(threads)

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int], kv: KvStore, logits_of: int, view: View | None = None
    ) -> Tensor:
        """As `Model.forward`."""
        past, count = kv.length, len(tokens)
        view = view or View.line(past, count)
        x = self.weights.embedding.rows(torch.tensor(tokens))
        cos, sin = self._rotation(view.positions)
        if self._compiled:
            return self._compiled.forward(x, kv.layers, past, view, cos, sin, logits_of)
        mask = view.mask()
        if mask is not None:
            mask = mask.repeat(self._group, 1)
        for layer, cache in zip(self.weights.layers, kv.layers, strict=True):
            q = self._write(layer, self._norm(x, layer.attention_norm), cache, past, cos, sin)
            if logits_of == 0 and layer is self.weights.layers[-1]:
                return x.new_empty(0, self.shape.vocabulary)
            seen = cache[:, None, :, : past + count]
            x += layer.out(self._attend(q, seen, mask))
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x += layer.down(silu(gate).mul_(up))
        return self.weights.head(self._norm(x[-logits_of:], self.weights.norm))

    def _write(
        self, layer: LayerWeights, x: Tensor, cache: Tensor, past: int, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Put keys and values of `x` into the cache; returns queries [count, heads, head_dim]."""
        count, size = len(x), self.shape.head_dim
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qkv = layer.qkv(x).view(count, heads + 2 * kv_heads, size)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(qk[:, :heads], layer.q_norm), self._norm(qk[:, heads:], layer.k_norm)
            qk = torch.cat((q, k), dim=1)
        swapped = torch.cat((qk[..., size // 2 :], qk[..., : size // 2]), dim=-1)
        qk = (qk * cos).addcmul_(swapped, sin)
        cache[0, :, past : past + count] = qk[:, heads:].transpose(0, 1)
        cache[1, :, past : past + count] = v.transpose(0, 1)
        return qk[:, :heads]

    def _attend(self, q: Tensor, seen: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of `q` over `seen`, [2, 1, kv_heads, tokens, head_dim]; [count, heads * head_dim].

        Query heads that share a key head become rows of one attention over it: keys and values are
        read once and never expanded, and it was the fastest of the ways measured (SDPA with
        enable_gqa, plain products) except at a few rows, where all are about equal.
        """
        count, heads, size = q.shape
        kv_heads, group = self.shape.kv_heads, self._group
        q = q.view(count, kv_heads, group, size).permute(1, 2, 0, 3)
        y = scaled_dot_product_attention(
            q.reshape(1, kv_heads, group * count, size), seen[0], seen[1], attn_mask=mask
        )
        return y.view(kv_heads, group, count, size).permute(2, 0, 1, 3).reshape(count, heads * size)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.shape.norm_eps)

    def _rotation(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [count, 1, head_dim] for these positions, ready for halves swapped."""
        angles = torch.outer(torch.tensor(positions).float(), self._frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rope_frequencies(shape: LlamaShape) -> Tensor:
    """Angle per position for each pair of a head, [head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    # Llama 3: waves longer than the old context are stretched, short ones kept, those between
    # blended by where they lie.
    turns = scaling.original_context * frequencies / (2 * math.pi)
    spread = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / spread).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor
