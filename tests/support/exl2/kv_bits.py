"""Keys and values of fewer bits, and pages of the cache, as the compiled module handles them.

Functions with the names of the compiled module's have its arguments, in its order. A cache is
[batch, tokens, heads, width of a head]; one with pages has a batch of one, and its tokens are those
of all pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from support.exl2.checks import require, require_dtype

BLOCK = 512
"""The kernels handle this many neighbouring elements of a cache at a time."""
VECTOR = 32
"""A scale is for so many elements; a Hadamard transform mixes every second one of twice as many."""

KEY_BITS = {4: 4, 6: 8, 8: 8}
VALUE_BITS = {4: 4, 6: 4, 8: 8}


def _hadamard(x: Tensor) -> Tensor:
    """The Hadamard transform, without its factor, of the even and of the odd elements of each 64,
    in sums of float16. Its own inverse but for a factor of 32."""
    mixed = x.view(-1, VECTOR, 2)
    step = 1
    while step < VECTOR:
        halves = mixed.view(-1, VECTOR // (2 * step), 2, step, 2)
        low, high = halves.unbind(2)
        mixed = torch.stack((low + high, low - high), 2)
        step *= 2
    return mixed.view(x.shape)


def quantize(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Numbers of 4 or 8 bits, and scales, of neighbouring elements.

    x: float16 [elements], a multiple of 64. Returns uint8 [elements * bits / 8] and float16
    [elements / 32].
    """
    zero = 2.0 ** (bits - 1)
    mixed = _hadamard(x).view(-1, VECTOR)
    most = mixed.abs().amax(-1, keepdim=True)
    shares = (mixed / most).float() * zero + zero
    # A vector of zeros gives 0 / 0, which converts to the number 0.
    rounded = torch.nan_to_num(shares.half().float().round(), nan=0.0)
    numbers = rounded.clamp(0, 2 * zero - 1).to(torch.uint8).view(-1)
    if bits == 4:
        numbers = numbers[0::2] | (numbers[1::2] << 4)
    return numbers, (most / zero).view(-1)


def dequantize(numbers: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The inverse of `quantize`, as near as it gets: float16 [elements]."""
    if bits == 4:
        numbers = torch.stack((numbers & 15, numbers >> 4), -1).view(-1)
    signed = numbers.to(torch.int16) - 2 ** (bits - 1)
    mixed = signed.view(-1, VECTOR).half() * scales.view(-1, 1)
    return _hadamard(mixed.view(-1)) * (1 / VECTOR)


@dataclass(frozen=True)
class _Part:
    """Keys or values: the cache itself, its scales, and float16 elements of the same places."""

    numbers: Tensor
    scales: Tensor
    floats: Tensor
    bits: int

    def store(self, places: slice) -> None:
        numbers, scales = quantize(self.floats.view(-1)[places], self.bits)
        self.numbers.view(-1)[self._bytes(places)] = numbers
        self.scales.view(-1)[self._vectors(places)] = scales

    def fetch(self, places: slice) -> None:
        numbers = self.numbers.view(-1)[self._bytes(places)]
        scales = self.scales.view(-1)[self._vectors(places)]
        self.floats.view(-1)[places] = dequantize(numbers, scales, self.bits)

    def _bytes(self, places: slice) -> slice:
        return slice(places.start * self.bits // 8, places.stop * self.bits // 8)

    def _vectors(self, places: slice) -> slice:
        return slice(places.start // VECTOR, places.stop // VECTOR)


def fp16_to_q_kv(
    k_in: Tensor,
    k_out: Tensor,
    k_scales: Tensor,
    v_in: Tensor,
    v_out: Tensor,
    v_scales: Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: Tensor,
    block_table: Tensor,
    wbits: int,
) -> None:
    """Quantise what was written to the float16 caches k_in and v_in.

    Without pages (page_size 0) that is `width` tokens from `offset`; with pages, `width` tokens
    behind cache_seqlens, int32 [batch], in the pages of block_table, int32 [batch, pages]. Blocks
    that reach beyond these are stored whole.
    """
    keys = _part(k_out, k_scales, k_in, KEY_BITS[wbits])
    values = _part(v_out, v_scales, v_in, VALUE_BITS[wbits])
    if page_size:
        places = _written(k_in, width, page_size, cache_seqlens, block_table)
    else:
        places = _plain(k_in, batch_size, offset, width)
    for one in places:
        keys.store(one)
        values.store(one)


def q_to_fp16_kv(
    k_in: Tensor,
    k_out: Tensor,
    k_scales: Tensor,
    v_in: Tensor,
    v_out: Tensor,
    v_scales: Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: Tensor,
    block_table: Tensor,
    wbits: int,
) -> None:
    """Dequantise into the float16 caches k_out and v_out what the attention is to read: `width`
    tokens from `offset` without pages, cache_seqlens tokens with them (see `fp16_to_q_kv`)."""
    keys = _part(k_in, k_scales, k_out, KEY_BITS[wbits])
    values = _part(v_in, v_scales, v_out, VALUE_BITS[wbits])
    if page_size:
        places = _read(k_out, page_size, cache_seqlens, block_table)
    else:
        places = _plain(k_out, batch_size, offset, width)
    for one in places:
        keys.fetch(one)
        values.fetch(one)


def _part(numbers: Tensor, scales: Tensor, floats: Tensor, bits: int) -> _Part:
    require_dtype("the quantised cache", numbers, torch.uint8)
    require_dtype("the cache's scales", scales, torch.float16)
    require_dtype("the float16 cache", floats, torch.float16)
    require(numbers.shape[:3] == floats.shape[:3], "the caches differ in shape")
    require(numbers.numel() * 8 == floats.numel() * bits, "the cache is not of so many bits")
    require(scales.numel() * VECTOR == floats.numel(), "the scales do not fit the cache")
    return _Part(numbers, scales, floats, bits)


def _token_width(cache: Tensor) -> int:
    return cache.shape[2] * cache.shape[3]


def _tokens_a_block(cache: Tensor) -> int:
    """The fewest tokens that are whole blocks."""
    return BLOCK // math.gcd(BLOCK, _token_width(cache))


def _plain(cache: Tensor, batch_size: int, offset: int, width: int) -> Iterator[slice]:
    step, token = _tokens_a_block(cache), _token_width(cache)
    require(offset % step == 0 and width % step == 0, "without pages, blocks must be whole")
    for row in range(batch_size):
        start = (row * cache.shape[1] + offset) * token
        yield _checked(cache, slice(start, start + width * token))


def _written(
    cache: Tensor, width: int, page_size: int, cache_seqlens: Tensor, block_table: Tensor
) -> Iterator[slice]:
    step = _tokens_a_block(cache)
    for page, length in _pages(page_size, cache_seqlens, block_table):
        first = length - length % step
        yield from _in_page(cache, page_size, page, first, length + width)


def _read(
    cache: Tensor, page_size: int, cache_seqlens: Tensor, block_table: Tensor
) -> Iterator[slice]:
    for page, length in _pages(page_size, cache_seqlens, block_table):
        yield from _in_page(cache, page_size, page, 0, length)


def _pages(page_size: int, cache_seqlens: Tensor, block_table: Tensor) -> Iterator[tuple[int, int]]:
    """Each page of each sequence, and where the sequence ends, counted from the page's start."""
    require_dtype("cache_seqlens", cache_seqlens, torch.int32)
    require_dtype("block_table", block_table, torch.int32)
    require(len(cache_seqlens) == len(block_table), "cache_seqlens does not fit block_table")
    for length, pages in zip(cache_seqlens.tolist(), block_table.tolist(), strict=True):
        for number, page in enumerate(pages):
            yield page, length - number * page_size


def _in_page(cache: Tensor, page_size: int, page: int, first: int, end: int) -> Iterator[slice]:
    """The blocks of a page that hold its tokens from `first` to `end`, as far as it has these."""
    token = _token_width(cache)
    first, end = max(first, 0), min(end, page_size)
    if first < end:
        blocks = -(-(end - first) * token // BLOCK)
        start = (page * page_size + first) * token
        yield _checked(cache, slice(start, start + blocks * BLOCK))


def _checked(cache: Tensor, places: slice) -> slice:
    inside = places.start >= 0 and places.stop <= cache.numel()
    require(inside, "tokens are outside of the cache")
    return places


def count_match(a: Tensor, b: Tensor, max_a: int) -> int:
    """How many tokens of `a` and `b`, int64 [1, tokens], agree from the start, at most `max_a`."""
    require_dtype("a", a, torch.int64)
    require_dtype("b", b, torch.int64)
    most = max(min(max_a, b.shape[1]), 0)
    require(most <= a.shape[1], "max_a is more than there are tokens")
    differ = (a[0, :most] != b[0, :most]).nonzero()
    return int(differ[0]) if len(differ) else most


def cache_rotate(cache: Tensor, order: Tensor, temp: Tensor) -> None:
    """Move pages within a cache [pages, elements], in place: into each page of `order`, int32, what
    was in the next, and into the last what was in the first. `temp` has the size of a page."""
    require(cache.dim() > 1, "cache must have two dimensions at least")
    require(order.dim() == 1, "order must have one dimension")
    require_dtype("order", order, torch.int32)
    page = cache[0].numel() * cache.element_size()
    require(temp.numel() * temp.element_size() == page, "temp does not have the size of a page")
    pages = order.tolist()
    require(all(0 <= one < len(cache) for one in pages), "order has a page that is not there")
    first = cache[pages[0]].clone()
    for one, following in pairwise(pages):
        cache[one] = cache[following]
    cache[pages[-1]] = first
