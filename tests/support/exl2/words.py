"""Numbers of a few bits in words of 32 bits."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 32


def pack_stream(numbers: Tensor, bits: int) -> Tensor:
    """One stream of bits down each column, each number's lowest bit first.

    [rows, columns] of numbers below 2**bits to int32 [rows * bits / 32, columns]. Raises ValueError
    where the rows do not fill whole words.
    """
    rows, columns = numbers.shape
    if rows * bits % WORD:
        raise ValueError(f"{rows} rows of {bits} bits do not fill whole words")
    places = torch.arange(bits).view(1, -1, 1)
    stream = (numbers.long().unsqueeze(1) >> places) & 1
    return _words(stream.reshape(-1, WORD, columns), dim=1)


def unpack_stream(words: Tensor, bits: int) -> Tensor:
    """The inverse of `pack_stream`: int32 [words, columns] to int64 [words * 32 / bits,
    columns]."""
    columns = words.shape[1]
    stream = (words.long().unsqueeze(1) >> torch.arange(WORD).view(1, -1, 1)) & 1
    places = torch.arange(bits).view(1, -1, 1)
    return (stream.reshape(-1, bits, columns) << places).sum(1)


def pack_nibbles(numbers: Tensor) -> Tensor:
    """Eight neighbours of a row in one word, the first lowest.

    [rows, columns] of numbers below 16 to int32 [rows, columns / 8].
    """
    rows = numbers.shape[0]
    places = torch.arange(4)
    stream = (numbers.long().unsqueeze(-1) >> places) & 1
    return _words(stream.reshape(rows, -1, WORD), dim=2)


def unpack_nibbles(words: Tensor) -> Tensor:
    """The inverse of `pack_nibbles`: int32 [rows, columns / 8] to int64 [rows, columns]."""
    numbers = (words.long().unsqueeze(-1) >> torch.arange(0, WORD, 4)) & 15
    return numbers.reshape(words.shape[0], -1)


def _words(stream: Tensor, dim: int) -> Tensor:
    """Words of 32 bits each along a dimension, which goes."""
    shape = [1] * stream.dim()
    shape[dim] = WORD
    unsigned = (stream << torch.arange(WORD).view(shape)).sum(dim)
    return torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned).to(torch.int32)
