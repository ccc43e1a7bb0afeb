"""`completion-ls bench protocol`: the engine's speed, by a rule that is always the same."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from completion_ls.bench.protocol import MOST_BUSY, ROUNDS, TOKENS, Report, Result, measure
from completion_ls.cli.bench import FAILURES, failed, need, saying, settings_of_an_engine_here

HEAD = ("", "context", "tokens/s", "from", "to", "first token")


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
    try:
        if options.plot:
            need("matplotlib", "--plot")
        settings = settings_of_an_engine_here()
        with saying() as say:
            report = asyncio.run(measure(settings, force=options.force, say=say))
        if options.plot:
            plot(options.plot, report)
    except FAILURES as error:
        return failed(error)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    elif options.markdown:
        print("\n".join(markdown(report)))
    else:
        _print(report)
    return 0


def rows(report: Report) -> Iterator[tuple[str, ...]]:
    """The table below HEAD: medians, and the rounds' smallest and largest."""
    for result in report.results:
        low, high = result.spread
        yield (
            result.case.name,
            f"{result.context:,}",
            f"{result.tokens_per_s:.1f}",
            f"{low:.1f}",
            f"{high:.1f}",
            f"{1e3 * result.first_s:,.0f} ms",
        )


def notes(report: Report) -> Iterator[str]:
    """What the figures depend on."""
    yield (
        f"{report.model}, {report.engine['kind']}, completion-ls {report.version}: {TOKENS} tokens behind a "
        f"fixed prompt, the median of {ROUNDS} rounds, KV dropped before each, the engine warm."
    )
    short = [result for result in report.results if result.context < result.case.context]
    for result in short:
        yield (
            f"{result.case.name} has {result.context:,} tokens of context and not "
            f"{result.case.context:,}: more the engine does not hold."
        )
    yield from busy_notes(report.busy, report.forced)


def busy_notes(busy: tuple[float, float], forced: bool) -> Iterator[str]:
    """What other work the machine had before and after, and whether that spoils the figures."""
    before, after = busy
    yield f"Processors at other work: {before:.2f} before, {after:.2f} after."
    if forced:
        yield "Measured although other work loaded the machine (--force): compare nothing with this."
    elif max(busy) > MOST_BUSY:
        yield "Other work came up meanwhile: measure again before you compare."


def markdown(report: Report) -> Iterator[str]:
    """The same as a table of Markdown, and the notes below it."""
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + "---|" * len(HEAD)
    for row in rows(report):
        yield "| " + " | ".join(row) + " |"
    yield ""
    yield from notes(report)


def plot(file: Path, report: Report) -> None:
    """Write a PNG: tokens a second of both results, each round a point. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = [_label(result) for result in report.results]
    axes.bar(names, [result.tokens_per_s for result in report.results], width=0.5)
    for name, result in zip(names, report.results, strict=True):
        rates = [one.tokens_per_s for one in result.rounds]
        axes.plot([name] * len(rates), rates, "k.")
    axes.set(ylabel="tokens/s behind the first", title=report.model)
    figure.savefig(file, format="png", dpi=110)


def _label(result: Result) -> str:
    return f"{result.case.name}\n{result.context:,} tokens of {result.case.text}"


def _print(report: Report) -> None:
    table = Table(*HEAD[:1])
    for name in HEAD[1:]:
        table.add_column(name, justify="right")
    for row in rows(report):
        table.add_row(*row)
    console = Console()
    console.print(table)
    for note in notes(report):
        console.print(note, highlight=False)
