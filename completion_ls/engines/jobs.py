"""What all engines ask of a job, how far it is, and which one goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from completion_ls.decode.covering import Covered
from completion_ls.engines.contract import Event, Finish, Job, Lane, LaneJobs, Other
from completion_ls.engines.drafts import JobDrafts


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job in an engine, and how far it is."""

    job: Job
    lane: Lane
    reused: int = 0
    computed: int = 0
    output: list[int] = field(default_factory=list)
    first_tokens: int = 1
    """How many tokens of the output came with the prefill."""
    drafts: JobDrafts | None = None

    @property
    def prefilled(self) -> bool:
        """Whether there is output."""
        return bool(self.output)

    @property
    def begun(self) -> bool:
        """Whether a step was done for it."""
        return bool(self.reused or self.computed or self.output)

    @property
    def base(self) -> int:
        """Tokens of the prompt before the unfinished word, whose place the output takes."""
        return len(self.job.prompt) - (self.job.unfinished.tokens if self.job.unfinished else 0)

    @property
    def produced(self) -> int:
        """Tokens of the output; an unfinished word counts as one."""
        return len(self.output) - self.first_tokens + 1 if self.output else 0

    @property
    def still_given(self) -> tuple[int, ...]:
        """What is given of the output and is not there yet."""
        return self.job.given[len(self.output) :]

    @property
    def banned(self) -> frozenset[int]:
        """Stop tokens, as long as the job must not stop."""
        enough = self.produced >= self.job.min_new_tokens
        return frozenset() if enough else self.job.stop_token_ids

    @property
    def full(self) -> Finish | None:
        """LENGTH when the job has what it asked for."""
        return Finish.LENGTH if self.produced >= self.job.max_new_tokens else None

    def kept(self, found: Covered) -> tuple[int, ...]:
        """The tokens that take the place of the unfinished word, without a stop token at their end;
        they are the output's first."""
        self.first_tokens = len(found.tokens)
        return found.tokens[: len(found.tokens) - (found.tokens[-1] in self.job.stop_token_ids)]

    def covered(self, found: Covered, kept: tuple[int, ...]) -> Event:
        """What the step did in which these were kept, once they are in the output."""
        stopped = len(kept) < len(found.tokens)
        others = tuple(Other(0, one.tokens, one.logprobs) for one in found.others)
        return self.event(
            kept,
            found.logprobs[: len(kept)],
            Finish.STOP if stopped else self.full,
            found.logprobs[-1] if stopped else None,
            found.typed_logprob,
            others,
        )

    def event(
        self,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[float, ...] = (),
        finish: Finish | None = None,
        stop_logprob: float | None = None,
        typed_logprob: float | None = None,
        others: tuple[Other, ...] = (),
    ) -> Event:
        """What a step did for it."""
        counts = self.reused, self.computed
        stop = stop_logprob, typed_logprob
        return Event(self.job.id, tokens, logprobs, *counts, finish, *stop, others)


R = TypeVar("R", bound=RunningJob)


def first_of(jobs: Sequence[R]) -> R:
    """The next one of jobs of one front, in the order of their arrival or last step.

    In the lowest lane that has jobs, the newest one that is not prefilled goes first, so that a
    fresh keystroke never waits for an older one's decode; then the one whose last step is longest ago.
    """
    lane = min(running.lane for running in jobs)
    inside = [running for running in jobs if running.lane == lane]
    waiting = [running for running in inside if not running.prefilled]
    return waiting[-1] if waiting else inside[0]


def count_by_lane(jobs: Iterable[tuple[Lane, bool]]) -> dict[Lane, LaneJobs]:
    """Jobs by their lanes, from the lane of each and whether it has begun."""
    found = list(jobs)
    return {lane: LaneJobs(found.count((lane, False)), found.count((lane, True))) for lane in Lane}


def check_job(job: Job, max_context: int, vocabulary: int, *, has_tokenizer: bool) -> None:
    """Raise ValueError (a sentence) when a job is empty, does not fit into `max_context` tokens, names
    tokens that the model does not have, or has an unfinished word that nothing can be made of."""
    total = len(job.prompt) + job.max_new_tokens
    if not job.prompt or job.max_new_tokens < 1:
        raise ValueError("A job needs at least one prompt token and one token to produce.")
    if total > max_context:
        raise ValueError(
            f"The job has {len(job.prompt)} prompt tokens and asks for {job.max_new_tokens} "
            f"more, but the context holds {max_context}. Shorten one of them."
        )
    if job.given and (job.unfinished or len(job.given) > job.max_new_tokens):
        raise ValueError(
            "Tokens that are given must not be more than those to produce, nor go with an unfinished word."
        )
    ids = (*job.prompt, *job.given)
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise ValueError(
            f"The prompt has token ids outside 0 to {vocabulary - 1}; it was made with another "
            "model's tokenizer."
        )
    if job.unfinished and (not has_tokenizer or len(job.prompt) <= job.unfinished.tokens):
        raise ValueError(
            "An unfinished word needs a token before it, and a model with a tokenizer.json."
        )
