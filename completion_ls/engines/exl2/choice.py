"""Choosing tokens from logits that are on the card.

A row of logits has a hundred thousand numbers and more. The most probable token is found where they are, and
only that comes to the CPU; to draw one, the row comes as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from completion_ls.decode.sampling import choose
from completion_ls.engines.contract import Sampling


class Choices:
    """The choices that one pass allows, row by row."""

    def __init__(self, rows: Tensor, sampling: Sampling) -> None:
        """`rows` are logits [positions, vocabulary], float32."""
        self._rows = rows
        self._sampling = sampling
        self._greedy = _most_probable(rows) if sampling.temperature <= 0 else []

    def at(
        self, row: int, position: int, banned: frozenset[int] = frozenset()
    ) -> tuple[int, float]:
        """As `choose` with that row."""
        if self._greedy:
            token, logprob = self._greedy[row]
            if token not in banned and math.isfinite(logprob):
                return token, logprob
        return choose(self._rows[row].cpu().numpy(), self._sampling, position, banned)

    def logprob_of(self, row: int, token: int) -> float:
        """As `logprob_of` with that row."""
        return float(self._rows[row].log_softmax(-1)[token])

    def others(
        self, row: int, count: int, chosen: int, banned: frozenset[int]
    ) -> list[tuple[int, float]]:
        """As `others` with that row; they are found on the card."""
        if not count:
            return []
        logprobs = self._rows[row].log_softmax(-1)
        best, ids = logprobs.topk(min(len(logprobs), count + 1 + len(banned)))
        found = zip(ids.tolist(), best.tolist(), strict=True)
        return [one for one in found if one[0] != chosen and one[0] not in banned][:count]


def _most_probable(rows: Tensor) -> list[tuple[int, float]]:
    """The tokens of highest logits, and their natural-log probabilities."""
    best, ids = rows.max(-1)
    logprobs = (best - rows.logsumexp(-1)).double()
    found: Iterator[tuple[float, float]] = zip(
        *torch.stack((ids.double(), logprobs)).cpu().tolist(), strict=True
    )
    return [(int(token), logprob) for token, logprob in found]
