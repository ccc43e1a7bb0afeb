"""What the forms of weights cost in quality: perplexity on code that no model was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from completion_ls.engines.kv import KvCache
from completion_ls.engines.llama import Llama


@dataclass(frozen=True, slots=True)
class Quality:
    """Perplexity of one form of the weights, and the bytes that it takes."""

    kind: str
    perplexity: float
    nbytes: int


def logits(model: Llama, text: Sequence[int], places: int) -> Tensor:
    """Those behind each of the last tokens of a text, [places, vocabulary]."""
    kv = KvCache(model.kv, 0).acquire(text, len(text))
    assert kv is not None
    return model.forward(text, kv, places)


def perplexity(model: Llama, texts: Sequence[Sequence[int]]) -> float:
    """Of the tokens of `texts`, each after those before it in its text."""
    total = 0.0
    for text in texts:
        chances = torch.log_softmax(logits(model, text[:-1], len(text) - 1), -1)
        total -= float(chances.gather(1, torch.tensor(text[1:])[:, None]).sum())
    return math.exp(total / sum(len(text) - 1 for text in texts))
