"""What the CPU engine needs of a model, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from completion_ls.engines.tree import View


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a model keeps of one token: in each layer, for each key head, a row for its key and one
    for its value."""

    layers: int
    heads: int
    width: int
    """Elements of a row."""
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return self.layers * 2 * self.heads * self.width * self.dtype.itemsize

    def empty(self, tokens: int) -> Tensor:
        """Room for the rows of one layer, [2 (keys, values), heads, tokens, width]."""
        return torch.empty(2, self.heads, tokens, self.width, dtype=self.dtype)


class Shape(Protocol):
    """Sizes of a model."""

    @property
    def vocabulary(self) -> int:
        """Tokens it knows."""

    @property
    def context(self) -> int:
        """Most tokens of a text."""


class KvStore(Protocol):
    """Keys and values of one sequence, made for so many tokens that the next pass fits."""

    @property
    def length(self) -> int:
        """Tokens whose keys and values are there."""

    @property
    def layers(self) -> Sequence[Tensor]:
        """Per layer [2 (keys, values), heads, capacity in tokens, width] of a `KvShape`."""


class Model(Protocol):
    """Weights, and the pass through them."""

    @property
    def shape(self) -> Shape:
        """Its sizes."""

    @property
    def kv(self) -> KvShape:
        """What it keeps of a token."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    @property
    def is_compiled(self) -> bool:
        """Whether passes run on compiled code."""

    def use_threads(self, threads: int) -> None:
        """Use so many threads from now on, in the whole process."""

    def forward(
        self, tokens: Sequence[int], kv: KvStore, logits_of: int, view: View | None = None
    ) -> Tensor:
        """Put `tokens` through the model after the `kv.length` tokens that `kv` holds; with a `view`
        they stand elsewhere in the text and see only a part of those.

        Writes the new keys and values behind those (the caller raises `kv`'s length afterwards, so
        a pass that fails leaves no trace). Returns the logits of the last `logits_of` tokens,
        [logits_of, vocabulary]; 0 spares the output layer.
        """
