"""Drafts: guesses at the next tokens, which one pass of the model then checks together.

A draft never changes what comes out. Each token is chosen from the model's own logits, with noise
that depends on its place and nothing else; a draft token that is the one chosen saves a pass, and
any other is forgotten. A source of drafts that makes texts slower is turned off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from completion_ls.decode.draft_length import LONG, MOST, DraftLength, PassCost, Trust
from completion_ls.decode.draft_worth import DraftWorth
from completion_ls.decode.lookup import Lookup, Recent
from completion_ls.engines.contract import DraftSource, Finish, Job, Sampling

_log = logging.getLogger(__name__)

TRUSTED = 2
"""A draft that was looked up goes before the draft model's from this match on."""
LOOKUP, MODEL = "lookup", "model"
FAILURES = 3
"""In so many answers in a row a draft model may fail, for want of memory, say, before it is given up."""


class Guesser(Protocol):
    """A model that guesses."""

    @property
    def cost(self) -> float:
        """That of one of its passes, relative to one of the model whose output it guesses."""

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        """At most `count` tokens that may follow `text`, the prompt and output of a job."""


TURNED_OFF = {
    LOOKUP: "drafts that are looked up cost more than they gain and are turned off: %s. "
    "`draft.lookup = false` leaves them out from the start, `draft.max_tokens = 0` all drafts",
    MODEL: "the draft model costs more than it gains and is turned off: %s. Name another one in "
    "draft.model, or none; `draft.max_tokens = 0` leaves out all drafts",
}


class Source:
    """Where drafts come from, and what became of them."""

    def __init__(self, name: str) -> None:
        self.worth = DraftWorth()
        self.has_failed = False
        self._name = name
        self._was_off = False
        self._drafts = self._proposed = self._checked = self._accepted = 0

    def count(self, proposed: int, checked: int, accepted: int) -> None:
        """Note what became of a draft."""
        self._drafts += 1
        self._proposed += proposed
        self._checked += checked
        self._accepted += accepted

    def measure(self, stretch: Stretch) -> None:
        """Note what a pass took. Where that turns the source off, the log says so, once."""
        turned_off = self.worth.note(
            drafted=stretch.drafted, seconds=stretch.seconds, tokens=stretch.tokens
        )
        if turned_off and not self._was_off:
            self._was_off = True
            _log.warning(TURNED_OFF[self._name], self._measured())

    def figures(self) -> DraftSource:
        """Totals, and whether it is used."""
        why = self._measured() if self.worth.is_off else ""
        if self.has_failed:
            why = f"it failed in {FAILURES} answers in a row"
        counts = self._drafts, self._proposed, self._checked, self._accepted
        return DraftSource(self._name, not why, why, *counts)

    def _measured(self) -> str:
        rates = self.worth.rates
        assert rates is not None
        return (
            f"{rates.drafted:.1f} tokens/s with drafts and {rates.plain:.1f} without, in "
            f"{self.worth.passes} passes"
        )


@dataclass(slots=True)
class Stretch:
    """From a pass at a place that has a draft to the next pass of the same job."""

    source: Source
    drafted: bool
    """Whether the draft was used."""
    seconds: float = 0.0
    tokens: int = 0


class Drafts:
    """The drafts of one engine: where they come from, and what was learnt of them."""

    def __init__(self, cost: PassCost, *, lookup: bool, model: Guesser | None, most: int) -> None:
        """`cost` is measured; at most `most` tokens are guessed for one pass."""
        self.cost = cost
        self._length = DraftLength(cost)
        self._sources = {LOOKUP: Source(LOOKUP)} if lookup else {}
        if model:
            self._sources[MODEL] = Source(MODEL)
        self._lookup = lookup
        self._recent = Recent()
        self._model = model
        self._most = min(most, MOST)
        self._failures = 0

    @property
    def model(self) -> Guesser | None:
        """The draft model, unless there is none or it was given up."""
        return self._model

    @property
    def figures(self) -> tuple[DraftSource, ...]:
        """Each source's."""
        return tuple(source.figures() for source in self._sources.values())

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
        model = self._model if self._is_asked(MODEL) and not drafts.without_model else None
        found = drafts.lookup.propose(most) if drafts.lookup and self._is_asked(LOOKUP) else None
        if found and (found.match >= TRUSTED or model is None):
            trust = Trust(found.source, found.match)
            if count := self._length.choose(trust, len(found.tokens)):
                is_used = drafts.begin(self._sources[LOOKUP])
                return (trust, found.tokens[:count]) if is_used else None
        if model:
            trust = Trust(MODEL, LONG)
            count = self._length.choose(trust, most, model.cost)
            if count and drafts.begin(self._sources[MODEL]):
                try:
                    tokens = model.propose(drafts.text, count, drafts.job.sampling)
                except Exception as error:  # a guess must never cost an answer
                    self._failed(error)
                    drafts.without_model = True
                    drafts.stretch = None
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
            self._sources[MODEL].has_failed = True

    def _is_asked(self, name: str) -> bool:
        return name in self._sources and self._sources[name].worth.is_asked()

    def settle(self, trust: Trust, proposed: int, checked: int, accepted: int) -> None:
        """Learn what became of a draft."""
        self._length.observe(trust, checked, accepted)
        name = MODEL if trust.source == MODEL else LOOKUP
        self._sources[name].count(proposed, checked, accepted)


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
    stretch: Stretch | None = None
    """Where the present pass has a draft, or would have had one: what it takes."""
    _trust: Trust | None = None
    _tokens: tuple[int, ...] = ()
    """The present draft, ..."""
    _accepted: int = 0
    """... and how many tokens of it came out."""

    def propose(self, most: int) -> tuple[int, ...]:
        """A draft of what comes next, of at most `most` tokens; perhaps none."""
        self._settle(self._accepted)
        self._measure()
        found = self.drafts.propose(self, most)
        if found:
            self._trust, self._tokens = found
        return self._tokens

    def begin(self, source: Source) -> bool:
        """There is a draft of this source for the next pass: whether it is used."""
        self.stretch = Stretch(source, source.worth.takes_draft())
        return self.stretch.drafted

    def spent(self, seconds: float) -> None:
        """Note what a step of the decode took, its draft included."""
        if self.stretch:
            self.stretch.seconds += seconds

    def produced(self, tokens: Sequence[int]) -> None:
        """Note tokens of the output."""
        if self.stretch:
            self.stretch.tokens += len(tokens)
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

    def end(self, finish: Finish | None = None) -> None:
        """The job has ended by itself, or was given up."""
        stopped = finish is Finish.STOP  # with a token that is no part of the output
        self._settle(self._accepted + (stopped and self._accepted < len(self._tokens)))
        if finish is None:
            self.stretch = None  # more might have come of it
        elif self.stretch:
            self.stretch.tokens += stopped
        self._measure()

    def _settle(self, checked: int) -> None:
        if self._trust and checked:
            self.drafts.settle(self._trust, len(self._tokens), checked, self._accepted)
        self._tokens, self._accepted = (), 0

    def _measure(self) -> None:
        stretch, self.stretch = self.stretch, None
        if stretch:
            stretch.source.measure(stretch)
