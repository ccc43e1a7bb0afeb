"""The three functions of flash-attn that exllamav2 calls.

Sums are of float64. Queries are [batch, tokens, heads, width]; keys and values have a divisor of
the queries' heads. A causal mask is aligned at the end: the last query sees all keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from support.exl2.checks import require, require_dtype

PAGE = 256
"""The size of a page is a multiple of this."""
WIDEST = 256
"""The widest head that flash-attn has kernels for."""


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """q: [queries, heads, width]; k, v: [keys, key heads, width]; the result is as q."""
    queries, heads, width = q.shape
    keys, kv_heads, _ = k.shape
    require(q.dtype in (torch.float16, torch.bfloat16), "queries must be float16 or bfloat16")
    require(k.dtype == v.dtype == q.dtype, "queries, keys and values must have one dtype")
    require(k.shape == v.shape and k.shape[2] == width, "queries, keys and values do not fit")
    require(heads % kv_heads == 0, "the queries' heads must be a multiple of the keys'")
    require(width % 8 == 0 and width <= WIDEST, f"there is no kernel for heads of {width}")
    each = heads // kv_heads
    k, v = (one.double().repeat_interleave(each, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * (width**-0.5 if scale is None else scale)
    if causal:
        last = torch.arange(queries)[:, None] + keys - queries
        scores = scores.masked_fill(torch.arange(keys) > last, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of each sequence of a batch to its own keys and values."""
    require(len(q) == len(k) == len(v), "queries, keys and values have batches of their own")
    rows = zip(q, k, v, strict=True)
    return torch.stack([_attend(*row, softmax_scale, causal) for row in rows])


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """As `flash_attn_func`, with the sequences one behind the other: q is [queries, heads, width],
    and cu_seqlens_q, int32 [batch + 1], says where each starts; the same for keys and values."""
    require_dtype("cu_seqlens_q", cu_seqlens_q, torch.int32)
    require_dtype("cu_seqlens_k", cu_seqlens_k, torch.int32)
    require(len(cu_seqlens_q) == len(cu_seqlens_k), "queries and keys have batches of their own")
    queries = torch.split(q, cu_seqlens_q.diff().tolist())
    keys, values = (torch.split(one, cu_seqlens_k.diff().tolist()) for one in (k, v))
    rows = zip(queries, keys, values, strict=True)
    return torch.cat([_attend(*row, softmax_scale, causal) for row in rows])


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention to a cache of pages, [pages, page size, key heads, width].

    cache_seqlens: int32 [batch], the tokens that are in the cache. block_table: int32 [batch, pages
    of a sequence]. k, v: [batch, new tokens, key heads, width] are appended to the cache first, in
    place. Raises RuntimeError for a token that has no page.
    """
    require_dtype("cache_seqlens", cache_seqlens, torch.int32)
    require_dtype("block_table", block_table, torch.int32)
    pages, page_size = k_cache.shape[:2]
    require(page_size % PAGE == 0, f"the size of a page must be a multiple of {PAGE}")
    require(len(cache_seqlens) == len(block_table) == len(q), "the batch's sizes differ")
    require((k is None) == (v is None), "keys are given without values")
    outputs = []
    for row, length in enumerate(cache_seqlens.tolist()):
        new = 0 if k is None else k.shape[1]
        places = _places(block_table[row], length + new, page_size, pages)
        if k is not None and v is not None:
            k_cache.view(-1, *k_cache.shape[2:])[places[length:]] = k[row]
            v_cache.view(-1, *v_cache.shape[2:])[places[length:]] = v[row]
        keys, values = k_cache.flatten(0, 1)[places], v_cache.flatten(0, 1)[places]
        outputs.append(_attend(q[row], keys, values, softmax_scale, causal))
    return torch.stack(outputs)


def _places(table: Tensor, tokens: int, page_size: int, pages: int) -> Tensor:
    """Where a sequence's tokens stand among those of all pages, int64 [tokens]."""
    require(tokens <= len(table) * page_size, "block_table is too short for the sequence")
    used = table[: -(-tokens // page_size)].long()
    require(not bool(((used < 0) | (used >= pages)).any()), "a page is outside of the cache")
    within = torch.arange(page_size)
    return (used[:, None] * page_size + within).flatten()[:tokens]
