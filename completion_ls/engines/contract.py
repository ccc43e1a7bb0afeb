"""The engine contract: the one deep interface between the scheduler and whatever computes tokens.

It is step-shaped so that a library with a generator of its own and our CPU loop look the same from
outside: jobs are added, `step` moves them on by one bounded piece of work and says what happened.
One thread steps an engine and nothing else touches it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol


class Lane(IntEnum):
    """Which of a front's jobs is served first: a lower lane never waits for a higher one, except for a
    step in progress."""

    KEY = 0
    """A keystroke: somebody is waiting for ghost text."""
    MANUAL = 1
    """Asked for by hand: somebody is waiting and knows it."""
    BACKGROUND = 2
    """Work ahead of the user."""


class Finish(StrEnum):
    """Why a job ended."""

    STOP = "stop"
    """The model produced one of the job's stop tokens (which is not part of the output)."""
    LENGTH = "length"
    """`max_new_tokens` were produced."""
    NO_ROOM = "no_room"
    """It gave way: its KV would cost that of what is being typed, or more urgent work needs the room."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from the logits. Temperature 0 is greedy; `top_k` 0 means no limit."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The last word of a prompt, which may go on: the output must begin with its text.

    `text` is the word in UTF-8; the last `tokens` tokens of the prompt are the tokenizer's reading
    of it, or of a beginning of it. The output starts in the word's place: its first tokens spell
    `text` and what follows, split as the model likes best (decode/covering.py).
    """

    text: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """One continuation to compute.

    `prompt` holds at least one token id, and one before those of an `unfinished` word; `prompt` and
    `max_new_tokens` together must fit the engine's `max_context` (in tokens), otherwise `add`
    raises ValueError.
    """

    id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0
    """No stop token is chosen before so many tokens were."""
    sampling: Sampling = Sampling()
    lane: Lane = Lane.KEY
    unfinished: Unfinished | None = None
    fresh: bool = False
    """Compute everything, as an engine that was just loaded would."""
    front: Hashable = None
    """Whose job it is: fronts share the engine by the rule of `engines/turns.py`."""
    document: str = ""
    """Whose text it is: drafts are looked for in the earlier suggestions of the same document."""
    given: tuple[int, ...] = ()
    """The output's first tokens, at most `max_new_tokens`: they are not chosen, only computed, several
    in a pass, so that events tell how probable they are. Not with an `unfinished` word."""
    others: int = 0
    """So many other choices are told with each choice, the most probable ones."""


@dataclass(frozen=True, slots=True)
class Other:
    """Tokens that could stand in the place of what was chosen, from index `place` of the job's output
    on, and the natural-log probability of each."""

    place: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """What one step did for one job.

    `reused` and `computed` count the prompt's tokens so far: taken from a cached KV, and put
    through the model for this job. After the prefill they add up to the prompt's length, except
    where it ends in an unfinished word: tokens of it that no choice depends on are not computed,
    other ways to split it, and what the next keystroke may need, are.
    `tokens` are the ids produced in this step, `logprobs` their natural-log probabilities under
    the target model's own distribution (before temperature and filters).
    """

    job_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reused: int
    computed: int
    finish: Finish | None = None
    stop_logprob: float | None = None
    """With STOP, the natural-log probability of the stop token."""
    typed_logprob: float | None = None
    """Where the tokens take the place of an unfinished word: that of what was typed of it. What they
    spell beyond it has the sum of their own less this."""
    others: tuple[Other, ...] = ()
    """Other choices, where the job asks for them: the more probable one first in each place."""


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Drafts of one source ("lookup" or "model"), totals: how many there were, of how many tokens, how
    many of these were compared with what the model chose, and how many were right."""

    name: str
    is_on: bool
    why_off: str
    """Empty where it is on."""
    drafts: int
    proposed: int
    checked: int
    accepted: int


@dataclass(frozen=True, slots=True)
class LaneJobs:
    """Jobs on one lane now: those that wait for their first step, and those that have begun."""

    waiting: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the engine was loaded; sizes in bytes."""

    passes: int
    prompt_tokens_reused: int
    prompt_tokens_computed: int
    tokens_generated: int
    jobs_active: int
    sequences_cached: int
    sequences_in_use: int
    """Those of them that belong to a job (exllamav2: pages, like these): none where there is no job."""
    kv_bytes: int
    kv_bytes_limit: int
    weight_bytes: int
    drafting: tuple[DraftSource, ...]
    """The sources that its settings allow."""
    lanes: Mapping[Lane, LaneJobs]
    """All of them, also those without jobs."""
    kv_by_document: Mapping[str, int]
    """Bytes of `kv_bytes` by the document (`Job.document`) of the job that used them last."""
    card_bytes: int | None = None
    """What is in use of the card's memory, by any program; None where there is no card, ..."""
    card_bytes_limit: int | None = None
    """... and all that it has."""

    @property
    def draft_tokens_checked(self) -> int:
        """Of all sources."""
        return sum(source.checked for source in self.drafting)

    @property
    def draft_tokens_accepted(self) -> int:
        """Of all sources."""
        return sum(source.accepted for source in self.drafting)


class JobFailed(Exception):
    """Raised by `Engine.step` when one job's work failed. That job is dropped; the others go on."""

    def __init__(self, job_id: int, cause: Exception) -> None:
        super().__init__(f"Job {job_id} failed: {cause}")
        self.job_id = job_id
        self.cause = cause


class Engine(Protocol):
    """Computes jobs in steps. Not thread-safe: one thread owns it."""

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, that one job may have."""

    @property
    def passes(self) -> int:
        """Forward passes of the model so far."""

    def add(self, job: Job) -> None:
        """Accept a job. Raises ValueError (a sentence) when it is empty or does not fit."""

    def cancel(self, job_id: int) -> None:
        """Drop a job: no event of it follows. Its KV stays for reuse. Unknown ids are ignored."""

    def promote(self, job_id: int, lane: Lane) -> None:
        """Move a job to another lane. Unknown ids are ignored."""

    def favour(self, front: Hashable) -> None:
        """The user types at this front, or has come there: its jobs go first, and its KV is given up last."""

    def step(self) -> list[Event]:
        """Do one bounded piece of work (a prefill chunk or one decode pass) for the jobs whose turn
        it is (engines/turns.py). Returns no events when there is nothing to do."""

    def stats(self) -> EngineStats:
        """Totals so far."""

    def close(self) -> None:
        """Free what the engine holds."""
