"""The unfinished word, covered with the probabilities that a server tells.

A local engine sees the logits of all tokens (decode/covering.py). A server tells those of the most
probable ones, which is enough to know the best way to cover a word wherever that way is more probable than
the least of what was told: no token that was left out can be better. Where it is not, more are asked for,
up to what the server tells at most. Then what was told decides, and the tokenizer's own reading of the word,
of which a token's probability is guessed from what was left over.

What a server has told of a place stays true, so the keys of one word need no more than the first one's
request, mostly.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import itemgetter

import numpy as np

from completion_ls.decode.covering import Branch, Covered, Covering, Floats, Node
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Job, Sampling

KEPT = 256
"""Places of which is known what may follow."""
UNTOLD = -1e4
"""The log probability of a token of which nothing was told: it is not chosen."""
TOP = 20
"""So many probabilities are asked for first. (vLLM tells no more, unless it is told to.)"""
MORE = 1000
"""And so many where these do not decide."""
MOST_TOLD = MORE + 1
"""More is not kept, whatever is told: the one that was chosen may stand beside the most probable ones."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What a server has told of the next token at a place: the most probable ones' log probabilities."""

    logprobs: Mapping[int, float]
    is_all: bool = False
    """Whether the server tells no more."""

    @property
    def least(self) -> float:
        """No token that was left out is more probable than this."""
        return min(self.logprobs.values())

    @property
    def left_over(self) -> float:
        """The probability of all that was left out."""
        return max(1e-9, 1.0 - sum(map(math.exp, self.logprobs.values())))


class Places:
    """What is known of places, by the tokens before them; the oldest are forgotten."""

    def __init__(self) -> None:
        self._told: OrderedDict[Ids, Told] = OrderedDict()

    def get(self, before: Ids) -> Told | None:
        """What was told of this place, if anything."""
        found = self._told.get(before)
        if found:
            self._told.move_to_end(before)
        return found

    def put(self, before: Ids, told: Told) -> None:
        """Note it, unless more was told before."""
        if len(told.logprobs) > MOST_TOLD:
            best = nlargest(MOST_TOLD, told.logprobs.items(), key=itemgetter(1))
            told = Told(dict(best), told.is_all)
        known = self._told.get(before)
        if known is None or len(told.logprobs) >= len(known.logprobs):
            self._told[before] = told
        elif told.is_all:  # though it told more before: it is not asked again and again
            self._told[before] = replace(known, is_all=True)
        self._told.move_to_end(before)
        while len(self._told) > KEPT:
            self._told.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Unknown(Exception):
    """The choice depends on these places, behind the place where the word begins; with `more`, on more of
    what may stand there than was told."""

    branches: tuple[Branch, ...]
    more: bool


class WordChoice:
    """One word to cover, and what is known of the places in it."""

    def __init__(self, job: Job, places: Places, vocabulary: Vocabulary, size: int) -> None:
        """`size` is the number of the vocabulary's tokens."""
        assert job.unfinished is not None
        self.before = job.prompt[: len(job.prompt) - job.unfinished.tokens]
        self._text = job.unfinished.text
        self._reading = vocabulary.read(self._text.decode())
        self._places = places
        self._vocabulary = vocabulary
        self._size = size
        self._sampling: Sampling = job.sampling
        self._banned = job.stop_token_ids if job.min_new_tokens > 0 else frozenset()
        self.is_exact = True
        """Whether the choice made was certain to be that of a local engine."""

    def choose(self) -> Covered:
        """The tokens that take the word's place. Raises Unknown where the server must be asked first."""
        covering = Covering(
            self._text,
            self._known,
            self._look_into,
            self._vocabulary,
            self._sampling,
            len(self.before),
            # The last one stands for all that was not told.
            banned=self._banned | {self._size},
        )
        if self._known(()) is None:
            raise Unknown(((),), more=False)
        nodes = covering.nodes()
        found = covering.choose()
        open_ended = [node.branch for node in nodes if self._might_be_better(node, nodes, found)]
        unsure = [branch for branch in open_ended if not self._told(branch).is_all]
        if unsure:
            raise Unknown(tuple(unsure), more=True)
        self.is_exact = not open_ended
        if self._sampling.temperature > 0:
            self.is_exact = all(
                len(self._told(node.branch).logprobs) >= self._size for node in nodes
            )
        return found

    def _might_be_better(self, node: Node, nodes: Sequence[Node], found: Covered) -> bool:
        """Whether a token that was not told at this place might be a better choice."""
        told = self._told(node.branch)
        if len(told.logprobs) >= self._size:
            return False
        if self._sampling.temperature > 0:
            # Chance decides among all of them: enough that few are left out.
            mass = sum(float(np.exp(one.weights).sum()) for one in nodes)
            return math.exp(node.weight) * told.left_over > max(0.01, mass)
        return node.weight + told.least > sum(found.logprobs)

    def _told(self, branch: Branch) -> Told:
        told = self._places.get((*self.before, *branch))
        assert told is not None
        return told

    def _known(self, branch: Branch) -> Floats | None:
        told = self._places.get((*self.before, *branch))
        if told is None:
            return None
        logits = np.full(self._size + 1, UNTOLD)
        ids = [token for token in told.logprobs if token < self._size]
        logits[ids] = [told.logprobs[token] for token in ids]
        left_over = told.left_over
        depth = len(branch)
        if self._reading[:depth] == branch and depth < len(self._reading):
            next_of_reading = self._reading[depth]
            if next_of_reading not in told.logprobs:
                rest = max(1, self._size - len(told.logprobs))
                guess = min(told.least, math.log(left_over / rest))
                logits[next_of_reading] = guess
                left_over = max(1e-12, left_over - math.exp(guess))
        # All together are 1 again.
        logits[self._size] = math.log(left_over)
        return logits

    def _look_into(self, branches: Sequence[Branch]) -> Sequence[Floats]:
        raise Unknown(tuple(branches[:1]), more=False)
