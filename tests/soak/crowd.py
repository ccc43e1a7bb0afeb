"""Twenty people type at once on one daemon: does the one in front notice, and does everybody get a share?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from completion_ls.config.sources import resolve_strict
from completion_ls.daemon.statistics import percentile
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig
from soak.outcome import Outcome
from soak.typists import Typist

FIRST = 20
"""Where in the recording the one in front begins."""
MOST_RATIO = 2.0
LEAST_SHARE = 0.4
"""Of the engine's time that the others have on average nobody has less: turns are long, so that in some
minutes each has a few."""


async def crowd(fronts: int, seconds: float, rounds: int, say: Callable[[str], None]) -> Outcome:
    """The same stretches of the recording are typed by one person alone and by one in front of a crowd,
    in rounds of `seconds` each, so that what else the machine does meets both."""
    # Two windows, so that neither finds what the other was told.
    alone, front = (Typist.at(place, start=FIRST, patient=True) for place in (1, 2))
    others = [Typist.at(9 + n, start=FIRST + 29 * n % 560) for n in range(1, fronts)]
    everyone = [alone, front, *others]
    engine = EngineClient(DaemonConfig.of(resolve_strict()))
    try:
        for number, one in enumerate(everyone):
            say(f"opening window {number + 1} of {len(everyone)}")
            await one.begin()
        for one in (alone, front):
            await one.type(seconds=5)
        for one in (alone, front):
            one.taken()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            alone.come()
            await alone.type(seconds=seconds)
            front.come()
            await asyncio.gather(*(one.type(seconds=seconds) for one in (front, *others)))
        figures = (await engine.status()).figures
    finally:
        for one in everyone:
            await one.stop()
        await engine.close()
    return _outcome(fronts, alone, front, others, figures)


def _outcome(
    fronts: int, alone: Typist, front: Typist, others: list[Typist], figures: dict[str, Any]
) -> Outcome:
    shares = sorted(figures["engine_seconds_by_front"])[: len(others)]
    p95_alone, p95_front = (percentile(one.waits_s, 95) for one in (alone, front))
    ratio = p95_front / p95_alone if p95_alone else math.inf
    texts = [one.with_text for one in others]
    keys = sum(len(one.waits_s) for one in others)
    answered = sum(not math.isinf(wait) for one in others for wait in one.waits_s)
    problems = []
    if ratio > MOST_RATIO:
        problems.append(f"In front of the crowd, p95 is {ratio:.2f} times that of one alone.")
    if len(shares) < len(others) or shares[0] < LEAST_SHARE * fmean(shares):
        problems.append(
            f"Somebody had {shares[0]:.1f} s of the engine, the mean is {fmean(shares):.1f} s."
        )
    if failed := figures["jobs_failed"]:
        problems.append(f"{failed} jobs failed.")
    problems += sorted({error for one in (alone, front, *others) for error in one.errors})
    return Outcome(
        f"{fronts} windows at once",
        len(front.waits_s) + keys,
        tuple(problems),
        max(front.waits_s),
        (
            ("keys alone, in front", f"{len(alone.waits_s)}, {len(front.waits_s)}"),
            ("first text alone", _times(alone.waits_s)),
            ("first text in front", _times(front.waits_s)),
            ("ratio of p95", f"{ratio:.2f}"),
            (
                "texts of each of the others",
                f"{min(texts)} to {max(texts)}, median {median(texts):g}",
            ),
            ("keys of the others answered before the next", f"{answered} of {keys}"),
        ),
    )


def _times(waits_s: list[float]) -> str:
    return ", ".join(f"p{p} {1e3 * percentile(waits_s, p):.1f} ms" for p in (50, 90, 95, 99))
