"""What the CPU engine needs of a model, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from completion_ls.engines.tree import View


class KvShape(Protocol):
    """Sizes of the keys and values of one token."""

    @property
    def layers(self) -> int:
        """Layers that keep any."""

    @property
    def kv_heads(self) -> int:
        """Heads of each."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""


class Shape(KvShape, Protocol):
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
        """Per layer [2 (keys, values), kv_heads, capacity in tokens, head_dim]."""


class Model(Protocol):
    """Weights, and the pass through them."""

    @property
    def shape(self) -> Shape:
        """Its sizes."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are kept as."""

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
