"""Choosing one token from logits, with noise that depends on nothing but seed, position and token.

The Gumbel-max trick: the token with the largest `logit / temperature + noise` is a draw from the
softmax. The noise of a token comes from a counter-based generator keyed by (seed, position, token),
not from a stream, so a draw is the same whatever was computed before, after or beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from completion_ls.engines.contract import Sampling

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


def choose(
    logits: Floats, sampling: Sampling, position: int, banned: frozenset[int] = frozenset()
) -> tuple[int, float]:
    """The token at index `position` of prompt + output, and its natural-log probability.

    `logits` is one row, [vocabulary]. The probability is that of the unmodified logits; `banned`
    tokens are not chosen. Raises
    ValueError when there is no usable largest logit (NaN or infinity from a broken model).
    """
    largest = logits.max()
    if not np.isfinite(largest):
        raise ValueError(
            "The model's logits are not finite numbers; its weights are probably damaged. "
            "Fetch the model again."
        )
    allowed = logits
    if banned:
        allowed = logits.copy()
        allowed[[token for token in banned if token < len(logits)]] = -np.inf
    greedy = sampling.temperature <= 0
    token = int(allowed.argmax()) if greedy else _draw(allowed, sampling, position)
    return token, logprob_of(logits, token)


def logprob_of(logits: Floats, token: int) -> float:
    """The natural-log probability of a token; `logits` is one row, [vocabulary]."""
    largest = logits.max()
    total = np.exp(logits - largest).sum(dtype=np.float64)
    return float(logits[token] - largest) - float(np.log(total))


def others(
    logits: Floats, count: int, chosen: int, banned: frozenset[int] = frozenset()
) -> list[tuple[int, float]]:
    """The `count` most probable tokens but `chosen` and `banned` ones, the more probable first (of equal
    ones the lower id), and their natural-log probabilities; `logits` is one row, [vocabulary]."""
    few = min(len(logits), count + 1 + len(banned))
    likely = np.argpartition(-logits, few - 1)[:few]
    ranked = (int(token) for token in likely[np.lexsort((likely, -logits[likely]))])
    found = [token for token in ranked if token != chosen and token not in banned][:count]
    return [(token, logprob_of(logits, token)) for token in found]


def candidates(logits: Floats, sampling: Sampling) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Token ids that pass `top_k` and then `top_p`, ascending, and their logits / temperature.

    `top_p` keeps the smallest set of most probable tokens whose probabilities (at this temperature,
    among the `top_k`) reach it; the token that crosses the line is kept. Of equal logits the lower
    id goes first. Temperature must be above 0.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    ids: Ids = np.arange(len(scaled), dtype=np.int64)
    if 0 < sampling.top_k < len(scaled):
        least = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        ids = np.flatnonzero(scaled >= least)
        ids = ids[np.argsort(-scaled[ids], kind="stable")[: sampling.top_k]]
    if sampling.top_p < 1:
        chances = np.exp(scaled[ids] - scaled[ids].max())
        chances /= chances.sum()
        # All tokens below this chance together stay under 1 - top_p, so none of them is in the
        # nucleus; leaving them out first makes the sort short.
        likely = chances >= (1 - sampling.top_p) / len(ids)
        ids, chances = ids[likely], chances[likely]
        # By logit: logits that differ may give equal chances.
        order = np.argsort(-scaled[ids], kind="stable")
        before = np.cumsum(chances[order]) - chances[order]
        ids = ids[order[before < sampling.top_p]]
    ids = np.sort(ids)
    return ids, scaled[ids]


def gumbel(seed: int, position: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each token id, a pure function of (seed, position, id)."""
    # splitmix64: its n-th output is _mix(key + n * golden). The key of this position is itself an
    # output of the generator keyed by the seed.
    key = _mix(np.array([(_hash(seed) + position * int(_GOLDEN)) & _WORD], dtype=np.uint64))
    bits = _mix(key + (ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    # 53 bits and a half: never 0 and never 1, so both logarithms are finite.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(-np.log(-np.log(uniform)))


def _draw(logits: Floats, sampling: Sampling, position: int) -> int:
    ids, scaled = candidates(logits, sampling)
    return int(ids[np.argmax(scaled + gumbel(sampling.seed, position, ids))])


def _hash(seed: int) -> int:
    return int(_mix(np.array([(seed + int(_GOLDEN)) & _WORD], dtype=np.uint64))[0])


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's output function; unsigned 64-bit arithmetic wraps around as it must."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
