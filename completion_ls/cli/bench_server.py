"""`completion-ls bench server`: what typing costs a server that many share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from completion_ls.bench.load_average import load_average
from completion_ls.bench.server_cost import ARMS, capacity, measure
from completion_ls.bench.server_figures import (
    Figures,
    Line,
    Rates,
    Team,
    arithmetic,
    as_dict,
    medians,
    rows,
    summarize,
    verdicts,
)
from completion_ls.bench.trace import Stretch, cut, read_trace, recorded_gaps
from completion_ls.cli.bench import FAILURES, failed, need, saying
from completion_ls.config.sources import resolve_strict

MOST_GAP_S = 2.0
"""A longer pause of the recording is no typing."""


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
    try:
        need("xllamacpp", "bench server")
        settings = resolve_strict()
        trace = read_trace(options.trace)
        gaps = recorded_gaps(trace.times, most_s=MOST_GAP_S)
        stretch = cut(trace, start=options.start, keystrokes=options.keystrokes, gaps_s=gaps)
        before = load_average()
        figures = medians([_round(stretch, options.slots) for _ in range(options.rounds)])
        if options.passes_per_second is None:
            with saying() as say:
                say("how many passes a second the server does")
                rates = Rates.measured(capacity(settings, options.slots))
        else:
            rates = Rates.given(options.passes_per_second, options.prompt_tokens_per_second)
    except FAILURES as error:
        return failed(error)
    keys_per_s = len(stretch.gaps_s) / (sum(stretch.gaps_s) or 1.0)
    team = Team(options.users, options.typing_share)
    lines = arithmetic(figures, keys_per_s, team, rates)
    about = {
        "trace": options.trace.name,
        "start": stretch.first,
        "keystrokes": len(stretch.transactions),
        "rounds": options.rounds,
        "slots": options.slots,
        "model": settings.model.name,
        "load_averages": [before, load_average()],
    }
    if options.json:
        print(json.dumps(about | as_dict(figures, lines), indent=2))
        return 0
    console = Console()
    console.print(_costs(figures))
    console.print(_arithmetic(figures, lines))
    for note in (*(text for text, _ in verdicts(figures)), *_notes(about)):
        console.print(note, highlight=False)
    return 0


def _round(stretch: Stretch, slots: int) -> list[Figures]:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks = {arm.name: bar.add_task(arm.text, total=len(stretch.gaps_s)) for arm in ARMS}
        found = measure(
            stretch, ARMS, slots, lambda arm, done: bar.update(tasks[arm], completed=done)
        )
    return [summarize(one) for one in found]


def _costs(figures: list[Figures]) -> Table:
    table = Table("a key", title="What a key costs the server, measured")
    for one in figures:
        table.add_column(one.arm, justify="right")
    for row in rows(figures):
        table.add_row(*row)
    return table


def _arithmetic(figures: list[Figures], lines: list[Line]) -> Table:
    table = Table("", title="From keys to users")
    for one in figures:
        table.add_column(one.arm, justify="right")
    table.add_column("how it is known")
    for line in lines:
        values = line.values if len(line.values) > 1 else line.values * len(figures)
        table.add_row(line.text, *map(_number, values), line.known)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _notes(about: dict[str, object]) -> Iterator[str]:
    yield from (f"{arm.name}: {arm.text}." for arm in ARMS)
    yield (
        f"{about['keystrokes']} keys of {about['trace']} from number {about['start']} on, {about['model']} "
        f"in llama.cpp's server with {about['slots']} slots, medians of {about['rounds']} rounds; the "
        "recording's own gaps, pauses cut to 2 s, and no key before the one before has its first text."
    )
    yield (
        "Counted by the server (/metrics). A pass that serves several requests counts once for each; one "
        "that reads a part of a prompt counts as one, though it takes longer. How much is decoded before the "
        "next key depends on the server's speed: a faster one decodes more that nobody reads."
    )
    if (load := about["load_averages"]) != [None, None]:
        yield f"Load averages of the machine before and after: {load}."
