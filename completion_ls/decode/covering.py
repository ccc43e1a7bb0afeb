"""The unfinished word: choosing the first tokens given that their text begins with what was typed.

The last characters before the cursor need not end where a token ends: `compu` may be on its way to
` computer`, one token, which is never the answer to "what follows the tokens of ` compu`". So the
typed rest r of the last word is not given to the model as fixed tokens; instead every sequence of
tokens that covers r is a candidate, with the probability the model gives it:

    r = " compu"       beyond the root      " computer", " computing", …       p(v)
                       beyond " comp"       "uter", "utation", …               p(" comp") p(v)
                       beyond " comp" "u"   anything the tokenizer would not merge into the word

Sequences that do not reach beyond r are branches of a tree. A branch is looked into where the model
gives it enough weight to matter. Behind some of them the logits are known: the pass that read the
prompt gives those of the tokenizer's own reading of r, and earlier keystrokes have left others. The
rest of what matters goes through the model in one small batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
import numpy.typing as npt

from completion_ls.decode.sampling import gumbel
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Sampling

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

NEGLIGIBLE = 1e-5
"""A branch with less than this part of the known mass is not looked into, when sampling."""
MOST_BRANCHES = 32
"""Most branches that are looked into for one choice."""
BATCH = 8
"""So many go through the model together: the one whose turn it is, and the next ones."""
MOST_CHECKS = 256
"""Most candidates whose tokens are compared with the tokenizer's own."""

Branch = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """The choice: tokens whose text begins with r, and the log probability of each."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    typed_logprob: float = 0.0
    """That of r itself, by all ways to spell it that were looked into: what comes behind r has the
    sum of `logprobs` less this."""
    others: tuple[Covered, ...] = ()
    """The next best choices, where they are asked for."""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens read so far (their text is the beginning of r), and what may follow them."""

    branch: Branch
    path: tuple[float, ...]
    """Log probabilities of the branch's tokens."""
    weight: float
    """Their sum, at the sampling temperature."""
    logprobs: Floats
    """[vocabulary], of the next token."""
    ids: Ids
    """The candidates behind this node: tokens that reach beyond r, ..."""
    weights: npt.NDArray[np.float64]
    """... and the log weight of each: that of the branch and its own."""


@dataclass(frozen=True, slots=True)
class _Offshoot:
    """A branch that was not looked into. Its weight is a bound for all that is behind it."""

    weight: float
    branch: Branch
    path: tuple[float, ...]
    rest: bytes


@dataclass(frozen=True, slots=True)
class Covering:
    """One choice to make: the word, and what the model and the tokenizer say of it.

    `known` gives the logits [vocabulary] behind a branch where they are there, and always those
    behind the empty one; `look_into` computes them for several branches (a pass of the model).
    `position` is the index of the first token in prompt + output. Only tokens that the tokenizer
    itself would make of a text are chosen.
    """

    text: bytes
    known: Callable[[Branch], Floats | None]
    look_into: Callable[[Sequence[Branch]], Sequence[Floats]]
    vocabulary: Vocabulary
    sampling: Sampling
    position: int
    banned: frozenset[int] = frozenset()
    """Tokens that are not chosen, though they may follow all of r."""
    others: int = 0
    """So many other choices are wanted, too, of those that were looked into."""

    def choose(self) -> Covered:
        """The most probable sequence at temperature 0, otherwise one drawn with noise that depends
        on seed, position and token only. `top_p` and `top_k` have no say in this choice."""
        nodes = self.nodes()
        found = self._best(nodes)[1]
        if found is None:
            raise ValueError("No token of the model begins with what was typed.")
        others = []
        if self.others:
            ranked = (one for _, one, fits in self._ranked(nodes) if fits and one != found)
            others = list(islice(ranked, self.others))
        return replace(found, typed_logprob=self._typed(nodes), others=tuple(others))

    def nodes(self) -> list[Node]:
        """All branches that matter for the choice, with their candidates.

        They are taken by weight, whether their logits are known or not: the choice must not depend
        on what earlier keystrokes have left.
        """
        root = self.known(())
        assert root is not None
        nodes: list[Node] = []
        found: dict[Branch, Floats] = {}
        may_begin = lru_cache(maxsize=None)(self.vocabulary.may_begin)
        waiting = self._add(nodes, _Offshoot(0.0, (), (), self.text), root)
        while len(nodes) <= MOST_BRANCHES:
            least = self._least(nodes)
            waiting = [one for one in waiting if one.weight > least and may_begin(one.branch)]
            if not waiting:
                break
            waiting.sort(key=lambda one: (-one.weight, one.branch))
            first = waiting.pop(0)
            logits = found.get(first.branch)
            if logits is None:
                logits = self.known(first.branch)
            if logits is None:
                branches = [first.branch, *(one.branch for one in waiting[: BATCH - 1])]
                branches = [one for one in branches if one not in found and not self._is_known(one)]
                found.update(zip(branches, self.look_into(branches), strict=True))
                logits = found[first.branch]
            waiting += self._add(nodes, first, logits)
        if not any(len(node.ids) for node in nodes):
            self._follow_reading(nodes)
        return nodes

    def _follow_reading(self, nodes: list[Node]) -> None:
        """Where what was looked into ends inside r (a text that the model did not expect at all):
        behind the tokenizer's own reading of r there is always something."""
        reading = self.vocabulary.read(self.text.decode())
        beginnings = [reading[:length] for length in range(1, len(reading) + 1)]
        missing = [branch for branch in beginnings if not self._is_known(branch)]
        found = dict(zip(missing, self.look_into(missing), strict=True)) if missing else {}
        by_branch = {node.branch: node for node in nodes}
        rest = self.text
        for branch in beginnings:
            rest = rest[len(self.vocabulary.bytes_of(branch[-1])) :]
            if branch in by_branch:
                continue
            before, token = by_branch[branch[:-1]], branch[-1]
            logits = found.get(branch)
            if logits is None:
                logits = self.known(branch)
            assert logits is not None
            weight = before.weight + float(self._tempered(before.logprobs)[token])
            path = (*before.path, float(before.logprobs[token]))
            self._add(nodes, _Offshoot(weight, branch, path, rest), logits)
            by_branch[branch] = nodes[-1]

    def _typed(self, nodes: list[Node]) -> float:
        total = 0.0
        for node in nodes:
            rest = self.text[sum(map(len, map(self.vocabulary.bytes_of, node.branch))) :]
            if not rest and node.branch:
                continue  # the node before it has counted the token that ends r
            inside = self.vocabulary.inside(rest) if rest else ()
            ends = [token for token in inside if self.vocabulary.bytes_of(int(token)) == rest]
            ids = np.concatenate([node.ids, np.array(ends, np.int64)])
            ids = ids[ids < len(node.logprobs)]
            total += float(np.exp(sum(node.path) + node.logprobs[ids].astype(np.float64)).sum())
        return float(np.log(min(1.0, total))) if total else 0.0

    def _is_known(self, branch: Branch) -> bool:
        return self.known(branch) is not None

    def _add(self, nodes: list[Node], one: _Offshoot, logits: Floats) -> list[_Offshoot]:
        """Look at what is behind a branch; returns the branches that go on from it inside r."""
        logprobs = logits - _log_total(logits)
        tempered = self._tempered(logprobs)
        # Behind all of r anything may follow, a special token such as the end of the text, too.
        ids = self.vocabulary.beyond(one.rest) if one.rest else np.arange(len(logits))
        ids = ids[ids < len(logits)]
        if self.banned:
            ids = ids[~np.isin(ids, list(self.banned))]
        weights = one.weight + tempered[ids].astype(np.float64)
        nodes.append(Node(one.branch, one.path, one.weight, logprobs, ids, weights))
        return [
            _Offshoot(
                one.weight + float(tempered[token]),
                (*one.branch, int(token)),
                (*one.path, float(logprobs[token])),
                one.rest[len(self.vocabulary.bytes_of(int(token))) :],
            )
            for token in self.vocabulary.inside(one.rest)
            if token < len(logits)
        ]

    def _tempered(self, logprobs: Floats) -> Floats:
        temperature = self.sampling.temperature
        if temperature in (0.0, 1.0):
            return logprobs
        tempered = logprobs / temperature
        return np.asarray(tempered - _log_total(tempered))

    def _least(self, nodes: list[Node]) -> float:
        """The weight above which a branch could matter."""
        if self.sampling.temperature <= 0:
            return self._best(nodes)[0]
        mass = sum(float(np.exp(node.weights).sum()) for node in nodes)
        return float(np.log(NEGLIGIBLE * mass)) if mass else -np.inf

    def _best(self, nodes: list[Node]) -> tuple[float, Covered | None]:
        """The candidate with the best score that the tokenizer agrees with, and that score. (Where
        it agrees with none of the first ones, the very best, as if it were worth nothing: there
        must be an answer.)"""
        very_best = None
        for score, covered, fits in self._ranked(nodes):
            very_best = very_best or covered
            if fits:
                return score, covered
        return -np.inf, very_best

    def _ranked(self, nodes: list[Node]) -> Iterator[tuple[float, Covered, bool]]:
        """The best candidates with their scores, the best one first, and whether the tokenizer would
        read their text so."""
        scores = [node.weights for node in nodes]
        if self.sampling.temperature > 0:
            scores = [node.weights + self._noise(node) for node in nodes]
        starts = np.cumsum([0, *(len(part) for part in scores)])
        score = np.concatenate(scores)
        seen = set[int]()
        for count in sorted({min(4, len(score)), min(MOST_CHECKS, len(score))} - {0}):
            likely = np.argpartition(-score, count - 1)[:count]
            for place in map(int, likely[np.lexsort((likely, -score[likely]))]):
                if place in seen:
                    continue
                seen.add(place)
                number = int(np.searchsorted(starts, place, side="right")) - 1
                node = nodes[number]
                token = int(node.ids[place - starts[number]])
                covered = Covered((*node.branch, token), (*node.path, float(node.logprobs[token])))
                yield float(score[place]), covered, self.vocabulary.is_canonical(covered.tokens)

    def _noise(self, node: Node) -> npt.NDArray[np.float64]:
        return gumbel(self.sampling.seed, self.position + len(node.branch), node.ids)


def _log_total(logits: Floats) -> float:
    largest = logits.max()
    return float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
