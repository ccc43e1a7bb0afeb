"""What all engines ask of a job, and which one goes on."""

from __future__ import annotations

from typing import Protocol, TypeVar

from completion_ls.engines.contract import Job, Lane


class Running(Protocol):
    """A job in an engine."""

    @property
    def job(self) -> Job:
        """What is to be done."""

    @property
    def lane(self) -> Lane:
        """Its present lane."""

    @property
    def prefilled(self) -> bool:
        """Whether there is output."""


R = TypeVar("R", bound=Running)


def next_job(jobs: dict[int, R]) -> R:
    """Whose turn it is, of jobs in the order of their arrival.

    In the lowest lane that has jobs, the newest one that is not prefilled goes first, so that a
    fresh keystroke never waits for an older one's decode; then they take turns (the one that is
    returned moves to the end).
    """
    lane = min(running.lane for running in jobs.values())
    inside = [running for running in jobs.values() if running.lane == lane]
    waiting = [running for running in inside if not running.prefilled]
    if waiting:
        return waiting[-1]
    first = inside[0]
    jobs[first.job.id] = jobs.pop(first.job.id)
    return first


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
    if not 0 <= min(job.prompt) <= max(job.prompt) < vocabulary:
        raise ValueError(
            f"The prompt has token ids outside 0 to {vocabulary - 1}; it was made with another "
            "model's tokenizer."
        )
    if job.unfinished and (not has_tokenizer or len(job.prompt) <= job.unfinished.tokens):
        raise ValueError(
            "An unfinished word needs a token before it, and a model with a tokenizer.json."
        )
