"""Drafts: guesses at the next tokens, which one pass of the model then checks together.

A draft never changes what comes out. Each token is chosen from the model's own logits, with noise
that depends on its place and nothing else; a draft token that is the one chosen saves a pass, and
any other is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from completion_ls.decode.draft_length import LONG, MOST, DraftLength, PassCost, Trust
from completion_ls.decode.lookup import Lookup, Recent
from completion_ls.engines.contract import Job, Sampling

_log = logging.getLogger(__name__)

TRUSTED = 2
"""A draft that was looked up goes before the draft model's from this match on."""
MODEL = "model"
FAILURES = 3
"""In so many answers in a row a draft model may fail, for want of memory, say, before it is given up."""


class Guesser(Protocol):
    """A model that guesses."""

    @property
    def cost(self) -> float:
        """That of one of its passes, relative to one of the model whose output it guesses."""

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        """At most `count` tokens that may follow `text`, the prompt and output of a job."""


@dataclass(slots=True)
class DraftFigures:
    """Totals of draft tokens."""

    checked: int = 0
    accepted: int = 0


class Drafts:
    """The drafts of one engine: where they come from, and what was learnt of them."""

    def __init__(self, cost: PassCost, *, lookup: bool, model: Guesser | None, most: int) -> None:
        """`cost` is measured; at most `most` tokens are guessed for one pass."""
        self.figures = DraftFigures()
        self._length = DraftLength(cost)
        self._lookup = lookup
        self._recent = Recent()
        self._model = model
        self._most = min(most, MOST)
        self._failures = 0

    def of(self, job: Job, prompt: Sequence[int]) -> JobDrafts:
        """The drafts of one job, whose output is put behind `prompt`."""
        # Who asks for a fresh answer has had it before, and will have it again.
        recent = Recent() if job.fresh else self._recent
        found = recent.lookup(job.document, prompt) if self._lookup else None
        return JobDrafts(self, job, list(prompt) if self._model else [], found)

    def propose(self, drafts: JobDrafts, most: int) -> tuple[Trust, tuple[int, ...]] | None:
        """The best draft of at most `most` tokens; None where none pays."""
        most = min(most, self._most)
        if most < 1:
            return None
        model = None if drafts.without_model else self._model
        found = drafts.lookup.propose(most) if drafts.lookup else None
        if found and (found.match >= TRUSTED or model is None):
            trust = Trust(found.source, found.match)
            if count := self._length.choose(trust, len(found.tokens)):
                return trust, found.tokens[:count]
        if model:
            trust = Trust(MODEL, LONG)
            count = self._length.choose(trust, most, model.cost)
            if count:
                try:
                    tokens = model.propose(drafts.text, count, drafts.job.sampling)
                except Exception as error:  # a guess must never cost an answer
                    self._failed(error)
                    drafts.without_model = True
                    return None
                self._failures = 0
                return (trust, tokens) if tokens else None
        return None

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        left_out = self._failures == FAILURES
        what = "again and is left out" if left_out else "and is left out of this answer"
        _log.warning("the draft model failed %s: %s", what, type(error).__name__)
        if left_out:
            self._model = None

    def settle(self, trust: Trust, checked: int, accepted: int) -> None:
        """Learn what became of a draft."""
        self._length.observe(trust, checked, accepted)
        self.figures.checked += checked
        self.figures.accepted += accepted


@dataclass(slots=True)
class JobDrafts:
    """The drafts of one job, one after the other."""

    drafts: Drafts
    job: Job
    text: list[int]
    """For a draft model: what the output is put behind, and the output so far."""
    lookup: Lookup | None
    without_model: bool = False
    """The draft model has failed here."""
    _trust: Trust | None = None
    _tokens: tuple[int, ...] = ()
    """The present draft, ..."""
    _accepted: int = 0
    """... and how many tokens of it came out."""

    def propose(self, most: int) -> tuple[int, ...]:
        """A draft of what comes next, of at most `most` tokens; perhaps none."""
        self._settle(self._accepted)
        found = self.drafts.propose(self, most)
        if found:
            self._trust, self._tokens = found
        return self._tokens

    def produced(self, tokens: Sequence[int]) -> None:
        """Note tokens of the output."""
        for token in tokens:
            if self._accepted < len(self._tokens):
                right = self._tokens[self._accepted] == token
                self._accepted += right
                if not right or self._accepted == len(self._tokens):
                    self._settle(self._accepted + (not right))
        if self.text:
            self.text += tokens
        if self.lookup:
            self.lookup.extend(tokens)

    def end(self, *, stopped: bool = False) -> None:
        """The job has ended; if it `stopped`, with a token that is no part of the output."""
        self._settle(self._accepted + (stopped and self._accepted < len(self._tokens)))

    def _settle(self, checked: int) -> None:
        if self._trust and checked:
            self.drafts.settle(self._trust, checked, self._accepted)
        self._tokens, self._accepted = (), 0
