"""Whether drafts of one source are worth their time, by the time that passes really take.

`draft_length` goes by costs that were measured when the model was loaded. What a draft costs later,
on a machine with other work, on a hot card, behind a long text, shows only here: some of the places
that have a draft, drawn by lot, are left to a plain pass, and the tokens per second of both are
compared. Neighbours in time share the machine's noise. A source that loses nearly all of many rounds
is turned off; where it does well it is only looked at now and then. No clock: times are given.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

DRAFTED, PLAIN = 32, 16
"""Passes with and without a draft that make a round."""
MARGIN = 1.1
"""A round is lost where a token takes so many times longer with drafts than without."""
ROUNDS, LOST = 12, 11
"""Drafts are turned off when so many of the last rounds were lost."""
CALM = 4
"""After so many rounds (or all there were) of which none was lost there is a rest, ..."""
FIRST_REST, REST = 256, 1024
"""... in which every draft is used, for so many of them; there is one at the start, too."""
OFF = 8192
"""After so many passes without the source there is a round with it again."""


class Rates(NamedTuple):
    """Tokens per second at places that have a draft."""

    drafted: float
    plain: float


@dataclass(slots=True)
class _Sum:
    """Passes of one kind."""

    passes: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, other: _Sum) -> None:
        self.passes += other.passes
        self.seconds += other.seconds
        self.tokens += other.tokens

    @property
    def rate(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


@dataclass(slots=True)
class _Round:
    drafted: _Sum = field(default_factory=_Sum)
    plain: _Sum = field(default_factory=_Sum)

    @property
    def is_full(self) -> bool:
        return self.drafted.passes >= DRAFTED and self.plain.passes >= PLAIN

    @property
    def is_lost(self) -> bool:
        return MARGIN * self.drafted.rate < self.plain.rate


class DraftWorth:
    """What is known of one source in one engine. Texts do not depend on it, only passes do."""

    def __init__(self) -> None:
        self._lot = random.Random(0)
        self._rounds: deque[_Round] = deque(maxlen=ROUNDS)
        self._round = _Round()
        self._rest = FIRST_REST
        self._is_off = False
        self._off = 0
        """Passes without it that are still to come."""

    @property
    def is_off(self) -> bool:
        """Whether it was found to cost more than it gains."""
        return self._is_off

    @property
    def passes(self) -> int:
        """With a draft, in the rounds that the judgement rests on."""
        return sum(one.drafted.passes for one in self._rounds)

    @property
    def rates(self) -> Rates | None:
        """What these rounds measured; None before the first."""
        if not self._rounds:
            return None
        drafted, plain = _Sum(), _Sum()
        for one in self._rounds:
            drafted.add(one.drafted)
            plain.add(one.plain)
        return Rates(drafted.rate, plain.rate)

    def is_asked(self) -> bool:
        """Whether to look for a draft of this source for the next pass."""
        if not self._off:
            return True
        self._off -= 1
        return False

    def takes_draft(self) -> bool:
        """There is a draft for the next pass: whether to use it. Otherwise the pass is to be plain, so
        that there is something to compare with."""
        if self._rest:
            self._rest -= 1
            return True
        return self._lot.random() >= PLAIN / (DRAFTED + PLAIN)

    def note(self, *, drafted: bool, seconds: float, tokens: int) -> bool:
        """Learn what a pass at such a place took, its draft included, and how many tokens it gave;
        returns whether that turned the source off."""
        if self._rest or self._off:
            return False
        part = self._round.drafted if drafted else self._round.plain
        part.add(_Sum(1, seconds, tokens))
        return self._round.is_full and self._judge()

    def _judge(self) -> bool:
        done, self._round = self._round, _Round()
        if self._is_off and done.is_lost:
            self._off = OFF
            return False
        if self._is_off:
            self._is_off = False
            self._rounds.clear()
        self._rounds.append(done)
        if sum(one.is_lost for one in self._rounds) >= LOST:
            self._is_off, self._off = True, OFF
            return True
        if not any(one.is_lost for one in list(self._rounds)[-CALM:]):
            self._rest = REST
        return False
