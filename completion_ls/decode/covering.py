"""The unfinished word: choosing the first token given that its text begins with what was typed.

The last characters before the cursor need not end where a token ends: `compu` may be on its way to
` computer`, one token, which is never the answer to "what follows the tokens of ` compu`". So the
typed rest r of the last word is not given to the model as fixed tokens; instead every sequence of
tokens that covers r is a candidate, with the probability the model gives it:

    r = " compu"       beyond the root      " computer", " computing", …       p(v)
                       beyond " comp"       "uter", "utation", …               p(" comp") p(v)
                       beyond " comp" "u"   anything the tokenizer would not merge into the word

Sequences that do not reach beyond r form a tree. Its trunk, the tokenizer's own reading of r,
costs nothing, since the pass that reads the prompt gives the logits at each of its positions.
Other branches ("com" + "puter") need a pass each; they are looked into only where the model gives
their beginning some weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from completion_ls.decode.sampling import gumbel
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Sampling

Floats = npt.NDArray[np.floating]

NEGLIGIBLE = 1e-3
"""A branch with less than this part of the known mass is not looked into, when sampling."""
MOST_BRANCHES = 4
"""Most branches off the trunk that are looked into for one choice: each costs a pass."""
MOST_CHECKS = 256
"""Most candidates whose tokens are compared with the tokenizer's own."""

Branch = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """The choice: tokens whose text begins with r, and the log probability of each."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """Tokens read so far (their text is the beginning of r), and the model's view behind them."""

    branch: Branch
    rest: bytes
    logprobs: npt.NDArray[np.float64]
    """[vocabulary], of the next token."""
    path: tuple[float, ...]
    """Log probabilities of the branch's tokens."""
    weight: float
    """Their sum, at the sampling temperature."""


def choose_covering(
    text: bytes,
    trunk: Branch,
    trunk_logits: Floats,
    *,
    look_into: Callable[[Branch], Floats],
    allowed: Callable[[Branch], bool],
    vocabulary: Vocabulary,
    sampling: Sampling,
    position: int,
) -> Covered:
    """Tokens for the position `position` on (index in prompt + output), whose text begins with `text`.

    `trunk` are the tokens of a beginning of `text` and `trunk_logits` [len(trunk) + 1, vocabulary]
    the logits before each and behind them. `look_into` gives the logits behind another branch
    (a pass of the model); `allowed` says whether tokens are what the tokenizer would make of their
    text. At temperature 0 the most probable sequence is chosen, otherwise one is drawn, with noise
    that depends on seed, position and token only. `top_p` and `top_k` have no say in this choice.
    """
    temperature = sampling.temperature if sampling.temperature > 0 else 1.0
    nodes = _trunk(text, trunk, trunk_logits, vocabulary, temperature)
    choices = [_choices(node, vocabulary, sampling, temperature, position) for node in nodes]
    waiting = _offshoots(nodes, trunk, vocabulary, temperature)
    for _ in range(MOST_BRANCHES):
        waiting.sort(key=lambda offshoot: offshoot[0])
        if not waiting or not _worth(waiting[-1][0], nodes, choices, allowed, sampling):
            break
        weight, parent, token = waiting.pop()
        branch = (*parent.branch, token)
        node = _Node(
            branch,
            parent.rest[len(vocabulary.bytes_of(token)) :],
            _log_softmax(look_into(branch)),
            (*parent.path, float(parent.logprobs[token])),
            weight,
        )
        nodes.append(node)
        choices.append(_choices(node, vocabulary, sampling, temperature, position))
        waiting += _offshoots([node], (), vocabulary, temperature)
    _, covered = _best(nodes, choices, allowed)
    if covered is None:
        raise ValueError("No token of the model begins with what was typed.")
    return covered


@dataclass(frozen=True, slots=True)
class _Choices:
    """The candidates behind one node: ids, their weight, and their score (weight and noise)."""

    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]


def _trunk(
    text: bytes, trunk: Branch, logits: Floats, vocabulary: Vocabulary, temperature: float
) -> list[_Node]:
    nodes: list[_Node] = []
    rest, weight = text, 0.0
    path: tuple[float, ...] = ()
    for depth in range(len(trunk) + 1):
        logprobs = _log_softmax(logits[depth])
        nodes.append(_Node(trunk[:depth], rest, logprobs, path, weight))
        if depth < len(trunk):
            token = trunk[depth]
            weight += float(_tempered(logprobs, temperature)[token])
            path = (*path, float(logprobs[token]))
            rest = rest[len(vocabulary.bytes_of(token)) :]
    return nodes


def _choices(
    node: _Node,
    vocabulary: Vocabulary,
    sampling: Sampling,
    temperature: float,
    position: int,
) -> _Choices:
    # Behind all of r anything may follow, a special token such as the end of the text, too.
    ids = vocabulary.beyond(node.rest) if node.rest else np.arange(len(node.logprobs))
    ids = ids[ids < len(node.logprobs)]
    weights = node.weight + _tempered(node.logprobs, temperature)[ids]
    if sampling.temperature <= 0:
        return _Choices(ids, weights, weights)
    noise = gumbel(sampling.seed, position + len(node.branch), ids)
    return _Choices(ids, weights, weights + noise)


def _offshoots(
    nodes: list[_Node], trunk: Branch, vocabulary: Vocabulary, temperature: float
) -> list[tuple[float, _Node, int]]:
    """Tokens that leave the trunk and end inside r or with it: weight, node, token."""
    found = []
    for node in nodes:
        tempered = _tempered(node.logprobs, temperature)
        for token in vocabulary.inside(node.rest):
            on_trunk = len(node.branch) < len(trunk) and trunk[len(node.branch)] == token
            if not on_trunk and token < len(tempered):
                found.append((node.weight + float(tempered[token]), node, int(token)))
    return found


def _worth(
    weight: float,
    nodes: list[_Node],
    choices: list[_Choices],
    allowed: Callable[[Branch], bool],
    sampling: Sampling,
) -> bool:
    """Whether a branch of this weight, which bounds all that is behind it, could matter."""
    if sampling.temperature <= 0:
        return weight > _best(nodes, choices, allowed)[0]
    mass = sum(float(np.exp(one.weights).sum()) for one in choices)
    return bool(np.exp(weight) > NEGLIGIBLE * mass)


def _best(
    nodes: list[_Node], choices: list[_Choices], allowed: Callable[[Branch], bool]
) -> tuple[float, Covered | None]:
    """The candidate with the best score that the tokenizer agrees with, and that score. (Where it
    agrees with none of the first ones, the very best: there must be an answer.)"""
    owner = np.concatenate([np.full(len(one.ids), n) for n, one in enumerate(choices)])
    ids = np.concatenate([one.ids for one in choices])
    scores = np.concatenate([one.scores for one in choices])
    if not len(ids):
        return -np.inf, None
    likely = np.argpartition(-scores, min(MOST_CHECKS, len(scores)) - 1)[:MOST_CHECKS]
    ordered = likely[np.argsort(-scores[likely], kind="stable")]
    found = (n for n in ordered if allowed((*nodes[owner[n]].branch, int(ids[n]))))
    chosen = next(found, ordered[0])
    node, token = nodes[owner[chosen]], int(ids[chosen])
    covered = Covered((*node.branch, token), (*node.path, float(node.logprobs[token])))
    return float(scores[chosen]), covered


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _tempered(logprobs: npt.NDArray[np.float64], temperature: float) -> npt.NDArray[np.float64]:
    return logprobs if temperature == 1.0 else _log_softmax(logprobs / temperature)
