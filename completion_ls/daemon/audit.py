"""Recomputing one answer in so many from scratch: whatever was reused, it must be the same.

Everything that makes a keystroke cheap (kept KV, kept logits, work ahead of the user) may only make
it cheap. The audit computes an answer again on the background lane with nothing reused, and
compares. A different token that the model finds equally good is a tie, which floating-point sums
in another order decide either way, and no mismatch. Only greedy answers are audited: with noise a tie
is not seen from the probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from completion_ls.engines.contract import Event, Finish, Job, Lane

TIE = 1e-3
"""Natural-log probabilities that are closer are equal."""
STOPPED = -1
"""Stands for a stop token: which one it was does not show."""


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens of a job, and the log probability of each; a stop token that ended it is STOPPED."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    first: int = 0
    """How many came with the prefill: those of an unfinished word were chosen together."""

    def __add__(self, event: Event) -> Output:
        tokens, logprobs = event.tokens, event.logprobs
        if event.stop_logprob is not None:
            tokens, logprobs = (*tokens, STOPPED), (*logprobs, event.stop_logprob)
        return Output(self.tokens + tokens, self.logprobs + logprobs, self.first or len(tokens))

    def differs(self, other: Output) -> int | None:
        """The index of the first other token, as far as both go."""
        pairs = enumerate(zip(self.tokens, other.tokens, strict=False))
        return next((index for index, (one, two) in pairs if one != two), None)

    def score(self, index: int) -> float:
        """The log probability of the choice to which a token belongs."""
        return sum(self.logprobs[: self.first]) if index < self.first else self.logprobs[index]


@dataclass(slots=True)
class _Repeat:
    job: Job
    expected: Output
    found: Output = Output()


class Audit:
    """Chooses the answers and counts. `every` 0 is never."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._answers = 0
        self._running: dict[int, _Repeat] = {}
        self.audited = self.ties = self.mismatches = 0

    @property
    def busy(self) -> bool:
        """Whether an answer is being repeated."""
        return bool(self._running)

    def due(self, job: Job) -> bool:
        """Whether the answer to a job, which is complete now, is one to repeat. While another is
        being repeated none is: they only get on while nobody types."""
        if not self._every or self._running or job.sampling.temperature > 0:
            return False
        self._answers += 1
        return self._answers % self._every == 0

    def repeat(self, job: Job, output: Output, id: int) -> Job:
        """The job, under an id of its own, that computes an answer again."""
        self._running[id] = _Repeat(job, output)
        count = max(1, len(output.tokens) - output.first + 1)
        return replace(job, id=id, fresh=True, lane=Lane.BACKGROUND, max_new_tokens=count)

    def owns(self, id: int) -> bool:
        """Whether a job is one of the audit's."""
        return id in self._running

    def advance(self, event: Event) -> None:
        """Take an event of a job of the audit; with the last one it is judged."""
        one = self._running[event.job_id]
        one.found += event
        if event.finish is None:
            return
        del self._running[event.job_id]
        if event.finish is Finish.NO_ROOM:
            return
        self.audited += 1
        index = one.expected.differs(one.found)
        if index is None:
            # Less, not more: the front may have had enough.
            self.mismatches += len(one.found.tokens) < len(one.expected.tokens)
        elif abs(one.expected.score(index) - one.found.score(index)) < TIE:
            self.ties += 1
        else:
            self.mismatches += 1

    def drop(self, id: int) -> None:
        """Forget a job that failed."""
        self._running.pop(id, None)

    def figures(self) -> dict[str, int]:
        """For `status`."""
        return {
            "audited": self.audited,
            "audit_ties": self.ties,
            "audit_mismatches": self.mismatches,
        }
