"""Norms, rotary positions, and the blocks of a decoder layer as the compiled module computes them.

Sums are of float64 and round to float16 where the kernels write to memory. Functions with the
names of the compiled module's have its arguments, in its order; only what Llama, Qwen2 and Qwen3
need is covered.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from support.exl2.checks import given, require, require_dtype, require_reference
from support.exl2.matrices import Matrix, matrix_of

NEOX = 2
"""The style of rotary positions in which a head's first half turns with its second."""
MOST = 65504.0
"""The largest float16."""

_handles = itertools.count(1)
_attention_blocks: dict[int, AttentionBlock] = {}
_mlp_blocks: dict[int, MlpBlock] = {}


@dataclass(frozen=True)
class RmsNorm:
    """`weight`: float16 [hidden]."""

    weight: Tensor
    epsilon: float

    def apply(self, x: Tensor) -> Tensor:
        """[..., hidden] to float64 of the same shape."""
        x = x.double().clamp(-MOST, MOST)
        mean = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.epsilon) * self.weight.double()


@dataclass(frozen=True)
class HeadNorm:
    """A norm of each head, with its mean taken off first unless `rms`. `weight`: float16 [heads,
    head width]."""

    weight: Tensor
    epsilon: float
    rms: bool

    def apply(self, x: Tensor) -> Tensor:
        """[..., heads, head width] to float64 of the same shape."""
        x = x.double()
        if not self.rms:
            x = x - x.mean(-1, keepdim=True)
        mean = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.epsilon) * self.weight.double()


@dataclass(frozen=True)
class AttentionBlock:
    """A layer's attention without the attention itself, which is flash-attn's."""

    norm: RmsNorm
    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    query_norm: HeadNorm | None
    key_norm: HeadNorm | None
    heads: int
    kv_heads: int
    head_width: int
    rotated_width: int
    max_rows: int


@dataclass(frozen=True)
class MlpBlock:
    """A layer's gated MLP."""

    norm: RmsNorm
    gate: Matrix
    up: Matrix
    down: Matrix
    max_rows: int


def rms_norm(x: Tensor, w: Tensor, y: Tensor, epsilon: float) -> None:
    """Write the norm of `x` into `y`, both [rows, hidden]; `w` is float16 [hidden]."""
    require_dtype("w", w, torch.float16)
    require(x.dim() == 2 and x.shape[1] == len(w), "w does not fit x")
    require(x.shape == y.shape, "y does not fit x")
    y.copy_(RmsNorm(w, epsilon).apply(x))


def token_positions(batch: int, tokens: int, past_len: int, past_lens: Tensor | None) -> Tensor:
    """Where the tokens of a batch stand in their sequences, int64 [batch, tokens].

    A sequence's first stands at `past_len` plus its element of `past_lens`, int32 [batch]; -1 for
    `past_len` says that only the latter counts.
    """
    require(past_len != -1 or past_lens is not None, "past_lens is not given")
    start = torch.full((batch,), 0 if past_len == -1 else past_len)
    if past_lens is not None:
        require(past_lens.shape == (batch,), "past_lens does not fit the batch")
        start = start + past_lens.long()
    if past_len == -1:
        start = start.clamp(min=0)
    return (start[:, None] + torch.arange(tokens)).clamp(min=0)


def rotate(x: Tensor, sin: Tensor, cos: Tensor, positions: Tensor) -> Tensor:
    """Turn heads to their positions.

    x: [batch, tokens, heads, head width]. sin, cos: float16 [1, 1, table, rotated width].
    positions: [batch, tokens]. Returns float64 of the shape of x. Raises RuntimeError for a
    position that the table does not have: the kernel would read what stands behind it in memory.
    """
    last, table, width = int(positions.max()), sin.shape[-2], sin.shape[-1]
    require(last < table, f"position {last} is outside of the table of {table} positions")
    x = x.double()
    sin_at, cos_at = (one.view(table, width)[positions].unsqueeze(2).double() for one in (sin, cos))
    turning, rest = x[..., :width], x[..., width:]
    low, high = turning.chunk(2, -1)
    turned = turning * cos_at + torch.cat((-high, low), -1) * sin_at
    return torch.cat((turned, rest), -1)


def make_q_attn(
    layernorm: Tensor,
    layernorm_bias: Tensor,
    layernorm_is_rms: bool,
    headnorm_is_rms: bool,
    norm_epsilon: float,
    q_q_proj: int,
    q_k_proj: int,
    q_v_proj: int,
    q_o_proj: int,
    temp_state: Tensor,
    temp_dq: Tensor,
    max_rows: int,
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    has_residual: bool,
    rope_style: int,
    sincos_size: int,
    q_norm: Tensor,
    k_norm: Tensor,
    post_layernorm: Tensor,
    post_layernorm_bias: Tensor,
    residual_fp32: bool,
    use_graphs: bool,
) -> int:
    """Make an attention block of matrices; returns its handle."""
    require_reference(layernorm_is_rms and not layernorm.is_meta, "blocks without an RMS norm")
    require_reference(has_residual and not residual_fp32, "another residual than one of float16")
    require_reference(post_layernorm.is_meta, "norms behind a block")
    require_reference(rope_style == NEOX, "this style of rotary positions")
    require_dtype("layernorm", layernorm, torch.float16)
    query, key, value, output = (matrix_of(h) for h in (q_q_proj, q_k_proj, q_v_proj, q_o_proj))
    for name, matrix in (("q_proj", query), ("k_proj", key), ("v_proj", value)):
        require(matrix.inputs == len(layernorm) == hidden_size, f"{name} does not fit the norm")
    require(output.outputs == hidden_size, "o_proj does not fit the norm")

    def head_norm(weight: Tensor) -> HeadNorm | None:
        return None if weight.is_meta else HeadNorm(weight, norm_epsilon, headnorm_is_rms)

    handle = next(_handles)
    _attention_blocks[handle] = AttentionBlock(
        norm=RmsNorm(layernorm, norm_epsilon),
        query=query,
        key=key,
        value=value,
        output=output,
        query_norm=head_norm(q_norm),
        key_norm=head_norm(k_norm),
        heads=num_heads,
        kv_heads=num_kv_heads,
        head_width=head_dim,
        rotated_width=sincos_size,
        max_rows=max_rows,
    )
    return handle


def free_q_attn(handle: int) -> None:
    """Forget an attention block."""
    _attention_blocks.pop(handle, None)


def q_attn_forward_1(
    handle: int,
    x: Tensor,
    batch_size: int,
    q_len: int,
    past_len: int,
    past_lens: Tensor,
    q_temp: Tensor,
    k_temp: Tensor,
    v_temp: Tensor,
    sin: Tensor,
    cos: Tensor,
    loras: list[int],
    loras_temp: Tensor,
) -> None:
    """Write queries, keys and values of the hidden states into q_temp, k_temp and v_temp.

    x: float16 [batch, tokens, hidden]. past_lens: int32 [batch], or not given. q_temp, k_temp,
    v_temp: float16, contiguous, an element for each output of the block's matrices and each token.
    Raises RuntimeError where the kernels would write or read beyond what they were given.
    """
    block = _attention_block(handle)
    require_reference(not loras, "LoRAs")
    require_dtype("past_lens", past_lens, torch.int32)
    require_dtype("sin", sin, torch.float16)
    require_dtype("cos", cos, torch.float16)
    require(sin.shape == cos.shape, "the tables of sines and cosines differ")
    require(sin.shape[-1] == block.rotated_width, "the table of sines does not fit the heads")
    rows = batch_size * q_len
    _require_rows(x, rows, block.query.inputs, block.max_rows)
    positions = token_positions(batch_size, q_len, past_len, given(past_lens))
    state = block.norm.apply(x.view(rows, -1)).half()

    def project(matrix: Matrix, heads: int) -> Tensor:
        return matrix.apply(state).half().view(batch_size, q_len, heads, block.head_width)

    query, key = project(block.query, block.heads), project(block.key, block.kv_heads)
    value = project(block.value, block.kv_heads)
    if block.query_norm is not None:
        query = block.query_norm.apply(query).half()
    if block.key_norm is not None:
        key = block.key_norm.apply(key).half()
    _write("q_temp", q_temp, rotate(query, sin, cos, positions))
    _write("k_temp", k_temp, rotate(key, sin, cos, positions))
    _write("v_temp", v_temp, value)


def q_attn_forward_2(
    handle: int,
    x: Tensor,
    attn_output: Tensor,
    batch_size: int,
    q_len: int,
    loras: list[int],
    loras_temp: Tensor,
) -> None:
    """Add the projection of attn_output, float16 [batch, tokens, heads * head width], to the hidden
    states `x`, float16 [batch, tokens, hidden], in place."""
    block = _attention_block(handle)
    require_reference(not loras, "LoRAs")
    rows = batch_size * q_len
    _require_rows(x, rows, block.output.outputs, block.max_rows)
    require_dtype("attn_output", attn_output, torch.float16)
    require(attn_output.numel() == rows * block.output.inputs, "attn_output does not fit o_proj")
    _add(x, block.output.apply(attn_output.reshape(rows, -1)))


def _attention_block(handle: int) -> AttentionBlock:
    require(handle in _attention_blocks, f"there is no attention block {handle}")
    return _attention_blocks[handle]


def _require_rows(x: Tensor, rows: int, hidden: int, max_rows: int) -> None:
    require_dtype("x", x, torch.float16)
    require(x.is_contiguous() and x.numel() == rows * hidden, "x does not have the block's shape")
    require(rows <= max_rows, f"{rows} rows do not fit into scratch space of {max_rows} rows")


def _write(name: str, target: Tensor, result: Tensor) -> None:
    require_dtype(name, target, torch.float16)
    require(target.is_contiguous(), f"{name} must be contiguous")
    require(target.numel() == result.numel(), f"{name} does not have room for each token")
    target.copy_(result.reshape(target.shape))


def _add(x: Tensor, result: Tensor) -> None:
    x.copy_(x.double() + result.view(x.shape))


def make_q_mlp(
    layernorm: Tensor,
    layernorm_bias: Tensor,
    layernorm_is_rms: bool,
    norm_epsilon: float,
    q_gate: int,
    q_up: int,
    q_down: int,
    temp_state: Tensor,
    temp_a: Tensor,
    temp_b: Tensor,
    temp_dq: Tensor,
    max_rows: int,
    act_gelu: bool,
    has_residual: bool,
    post_layernorm: Tensor,
    post_layernorm_bias: Tensor,
    residual_fp32: bool,
    use_graphs: bool,
) -> int:
    """Make an MLP block of matrices; returns its handle."""
    require_reference(layernorm_is_rms and not layernorm.is_meta, "blocks without an RMS norm")
    require_reference(has_residual and not residual_fp32, "another residual than one of float16")
    require_reference(post_layernorm.is_meta, "norms behind a block")
    require_reference(q_gate != 0 and not act_gelu, "another MLP than one with a gate of SiLU")
    require_dtype("layernorm", layernorm, torch.float16)
    gate, up, down = (matrix_of(handle) for handle in (q_gate, q_up, q_down))
    require(gate.inputs == len(layernorm), "gate_proj does not fit the norm")
    require(up.inputs == len(layernorm), "up_proj does not fit the norm")
    require(gate.outputs == up.outputs == down.inputs, "down_proj does not fit the others")
    handle = next(_handles)
    _mlp_blocks[handle] = MlpBlock(RmsNorm(layernorm, norm_epsilon), gate, up, down, max_rows)
    return handle


def free_q_mlp(handle: int) -> None:
    """Forget an MLP block."""
    _mlp_blocks.pop(handle, None)


def q_mlp_forward_(handle: int, x: Tensor, loras: list[int], loras_temp: Tensor) -> None:
    """Add the MLP of the hidden states `x`, float16 [..., hidden], to them in place."""
    require(handle in _mlp_blocks, f"there is no MLP block {handle}")
    block = _mlp_blocks[handle]
    require_reference(not loras, "LoRAs")
    hidden = block.up.inputs
    rows = x.numel() // hidden
    _require_rows(x, rows, hidden, block.max_rows)
    state = block.norm.apply(x.view(rows, hidden)).half()
    gate, up = block.gate.apply(state).half(), block.up.apply(state).half()
    _add(x, block.down.apply(silu(gate.double()).half() * up))
