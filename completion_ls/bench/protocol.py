"""The measuring rule for one engine's speed, always the same, so that figures can be compared.

A fixed prompt is continued by 100 tokens, three times; the median counts. Before each round the KV is
dropped: the prompt is read cold. The engine is warm: it has been loaded, and has generated before.
There are two results: the *short-context peak*, behind 512 tokens of English technical prose, and
*8K steady*, behind 8,192 tokens of code, where each token has to read their KV, too. The prose is
`prose.txt`, the code is this package's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from statistics import median
from typing import Any

import psutil
from tokenizers import Tokenizer

from completion_ls import __version__
from completion_ls.bench.engine import code_tokens
from completion_ls.bench.load_average import load_average
from completion_ls.bench.sides import Generation, OwnSide, own
from completion_ls.config.settings import Settings
from completion_ls.models import local

TOKENS = 100
ROUNDS = 3
WARM_UP = 64
"""Tokens of the prompt, and of the output, of the first generation, which does not count."""
MOST_BUSY = 0.25
"""With more processors at other work than this, figures say little about the engine."""
SAMPLE_S = 1.0
"""So long the machine is looked at, before and after, while the engine does nothing."""


class Busy(Exception):
    """Other work loads the machine; the message says how much."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is continued: a kind of text, of so many tokens."""

    name: str
    text: str
    context: int


PEAK = Case("short-context peak", "prose", 512)
STEADY = Case("8K steady", "code", 8192)
CASES = (PEAK, STEADY)


@dataclass(frozen=True, slots=True)
class Round:
    """One continuation: the seconds to its first token, and the tokens a second after that."""

    first_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The rounds of a case. `context` is smaller than the case's where the model knows fewer positions."""

    case: Case
    context: int
    rounds: tuple[Round, ...]

    @property
    def tokens_per_s(self) -> float:
        """The median over the rounds."""
        return median(one.tokens_per_s for one in self.rounds)

    @property
    def first_s(self) -> float:
        """The median over the rounds."""
        return median(one.first_s for one in self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest tokens a second."""
        rates = [one.tokens_per_s for one in self.rounds]
        return min(rates), max(rates)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tokens_per_s": self.tokens_per_s, "first_s": self.first_s}


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement. `busy` are the processors at other work before and after; `forced`: it was
    measured although they were too many."""

    model: str
    engine: dict[str, Any]
    draft: dict[str, Any]
    threads: int
    results: tuple[Result, ...]
    busy: tuple[float, float]
    load_averages: tuple[float | None, float | None]
    forced: bool
    version: str = __version__

    @property
    def is_loaded(self) -> bool:
        """Whether the machine was too busy for the figures to count."""
        return max(self.busy) > MOST_BUSY

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        results = [result.as_dict() for result in self.results]
        return asdict(self) | {"results": results, "is_loaded": self.is_loaded}


async def measure(settings: Settings, *, force: bool, say: Callable[[str], None]) -> Report:
    """Measure the engine of these settings; `say` hears what is being done. Raises Busy, unless forced,
    EngineFailed, models.ModelError and ValueError, all sentences."""
    say("looking at the machine")
    before, average = await checked_busy(force), load_average()
    say("preparing the model")
    model = await asyncio.to_thread(local.prepare, settings.model.name)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    texts = {"prose": prose_tokens(tokenizer), "code": code_tokens(tokenizer)}
    say("loading the engine")
    async with own(model.name, settings) as engine:
        say("warming up")
        await engine.generate(texts["code"][:WARM_UP], WARM_UP)
        results = [await _case(engine, case, texts[case.text], say) for case in CASES]
        say("looking at the machine")
        after = await busy_processors()
        return Report(
            model=model.name,
            engine=settings.engine.model_dump(),
            draft=settings.draft.model_dump(),
            threads=engine.threads,
            results=tuple(results),
            busy=(before, after),
            load_averages=(average, load_average()),
            forced=force and before > MOST_BUSY,
        )


def prose_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Those of the prose, as many as the shorter case has. Raises ValueError where they are fewer."""
    text = files("completion_ls").joinpath("bench/prose.txt").read_text("utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if len(ids) < PEAK.context:
        raise ValueError(
            f"The text that is measured with has {len(ids)} tokens of this model, and needs "
            f"{PEAK.context}."
        )
    return tuple(ids[: PEAK.context])


async def checked_busy(force: bool) -> float:
    """As `busy_processors`. Raises Busy where they are too many, unless forced."""
    busy = await busy_processors()
    if busy > MOST_BUSY and not force:
        raise Busy(
            f"Other work keeps {busy:.1f} processors busy, so the figures would say little. Wait "
            "until it is done, or add --force."
        )
    return busy


async def busy_processors() -> float:
    """How many of the machine's processors work, during a second in which we do not."""
    share = await asyncio.to_thread(psutil.cpu_percent, SAMPLE_S)
    return share / 100 * (psutil.cpu_count() or 1)


def summary(done: Generation) -> Round:
    """One round's figures. Raises ValueError where there was nothing behind the first token."""
    if not done.rest or done.rest_s <= 0:
        raise ValueError("The engine gave no token behind the first.")
    return Round(done.first_s, done.rest / done.rest_s)


async def _case(
    engine: OwnSide, case: Case, text: Sequence[int], say: Callable[[str], None]
) -> Result:
    context = min(case.context, engine.max_context - TOKENS)
    if len(text) < context:
        raise ValueError(
            f"The {case.text} that is measured with has {len(text)} tokens of this model, and needs "
            f"{context}."
        )
    rounds = []
    for number in range(ROUNDS):
        say(f"{case.name}: round {number + 1} of {ROUNDS}")
        rounds.append(summary(await engine.generate(text[:context], TOKENS)))
    return Result(case, context, tuple(rounds))
