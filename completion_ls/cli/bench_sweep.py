"""`completion-ls bench sweep`: what each choice does to the engine's speed."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from completion_ls.bench.sweep import TOKENS, Report, measure
from completion_ls.bench.sweep_figures import Question, Row
from completion_ls.cli.bench import FAILURES, failed, need, saying, settings_of_an_engine_here
from completion_ls.cli.bench_protocol import busy_notes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST = ("", "first token, ms", "from", "to")
HEAD = (
    *("", "tokens/s", "from", "to", "accepted", "a pass", "c", "pass"),
    *("speed-up", "predicted", "with pass"),
)
NO_TIMES = ("", "accepted", "a pass")
"""Columns that say nothing of time."""
MEANINGLESS = "* not meaningful"
NONE = "–"
NARROWEST = 116
"""Columns of text, below which the tables could not be read."""


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
    try:
        if options.plot:
            need("matplotlib", "--plot")
        settings = settings_of_an_engine_here()
        with saying() as say:
            report = asyncio.run(
                measure(
                    settings,
                    rounds=options.rounds,
                    ladder=options.ladder,
                    force=options.force,
                    say=say,
                )
            )
    except FAILURES as error:
        return failed(error)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    elif options.markdown:
        print("\n".join(markdown(report)))
    else:
        _print(report)
    if options.plot:  # last: where it cannot be written, the figures are not lost
        plot(options.plot, report)
    return 0


def title(question: Question, *, is_meaningful: bool) -> str:
    """That of its table."""
    marked = question.rows and not is_meaningful
    return f"{question.title}; {MEANINGLESS}" if marked else question.title


def head(question: Question, *, is_meaningful: bool) -> tuple[str, ...]:
    """The names of a table's columns."""
    names = FIRST if question.of_prompts else HEAD
    if is_meaningful:
        return names
    return tuple(name if name in NO_TIMES else f"{name} *" for name in names)


def table(question: Question, *, is_meaningful: bool) -> list[tuple[str, ...]]:
    """The names of its columns and its rows, without the columns that have nothing in them."""
    lines = [head(question, is_meaningful=is_meaningful), *rows(question)]
    filled = [column for column in zip(*lines, strict=True) if set(column[1:]) != {NONE}]
    return list(zip(*filled, strict=True))


def rows(question: Question) -> Iterator[tuple[str, ...]]:
    """What stands below `head`: medians, and the rounds' smallest and largest."""
    for row in question.rows:
        if question.of_prompts:
            yield (row.name, *(f"{value:,.0f}" for value in row.first_ms))
            continue
        low, high = row.spread
        yield (
            row.name,
            *(f"{rate:.1f}" for rate in (row.tokens_per_s, low, high)),
            _percent(row.acceptance),
            _number(row.accepted_per_pass),
            _number(row.draft_cost),
            _number(row.pass_cost),
            _number(row.speed_up) if row.arm != row.base_arm else NONE,
            _number(row.predicted),
            _number(row.predicted_with_pass),
        )


def notes(report: Report) -> Iterator[str]:
    """What the columns say, and what the figures depend on."""
    facts = report.facts
    yield (
        f"{report.model}, {facts.kind}, completion-ls {report.version}: {TOKENS} tokens behind 512 of "
        f"code and {TOKENS} behind 512 of prose, where nothing else is said; medians of {report.rounds} "
        "rounds, in each of which all rows of a table had their turn; warm, and the prompt's KV kept. "
        "What is drawn is another text in each round."
    )
    yield (
        "Accepted: draft tokens that were right where all before them were (α); a pass: how many came "
        "out of one on average. c: what a draft token costs, and pass: what a pass costs that is as wide "
        "as here, relative to one of one token."
    )
    yield (
        "Predicted: (1-α^(k+1))/((1-α)(ck+1)), over the lengths k that drafts had. The formula takes it "
        "that a pass of k+1 tokens costs what one of one costs; with pass has the measured cost instead. "
        "Speed-ups are against the same without drafts, in the stages against the first one."
    )
    drafted = [row for row in report.questions[0].rows if row.arm.source != "none"]
    if facts.is_meaningful and all(row.speed_up <= 1 for row in drafted):
        yield "No draft of these is faster than none here."
    if differing := [
        f"{question.title}: {row.name}"
        for question in report.questions
        for row in question.rows
        if row.same_text is False
    ]:
        yield (
            f"The text was not that without drafts: {'; '.join(dict.fromkeys(differing))}. Nearly equal "
            "choices can tip where a pass is another."
        )
    elif any(row.same_text for question in report.questions for row in question.rows):
        yield "Drafts have left all texts as they are."
    yield from busy_notes(report.busy, report.forced)
    if not facts.is_meaningful:
        yield f"{MEANINGLESS}: reference kernels on a CPU."


def markdown(report: Report) -> Iterator[str]:
    """The same as tables of Markdown, and the notes below them."""
    for question in report.questions:
        yield f"**{title(question, is_meaningful=report.facts.is_meaningful)}**"
        yield ""
        if question.rows:
            columns, *lines = table(question, is_meaningful=report.facts.is_meaningful)
            yield "| " + " | ".join(columns) + " |"
            yield "|" + "---|" * len(columns)
            for row in lines:
                yield "| " + " | ".join(row) + " |"
            yield ""
        for line in left_out(question):
            yield f"- {line}"
        if question.left_out:
            yield ""
    yield from notes(report)


def left_out(question: Question) -> Iterator[str]:
    """Rows that there are not, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for name, reason in question.left_out:
        names.setdefault(reason, []).append(name)
    for reason, together in names.items():
        yield f"Left out: {', '.join(together)}. {reason}"


def plot(file: Path, report: Report) -> None:
    """Write a PNG: tokens a second and acceptance over the length of drafts, and tokens a second over the
    context; bars are from the smallest to the largest of the rounds. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = {question.title.partition(" (")[0]: question for question in report.questions}
    by_length, by_context = found["Draft length"], found["Context"]
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    unmeant = "" if report.facts.is_meaningful else " (times not meaningful)"
    figure.suptitle(f"{report.model}, {report.facts.kind}{unmeant}")
    speeds, accepted, contexts = figure.subplots(1, 3)

    fixed = [row for row in by_length.rows if row.arm.length]
    lengths = [row.arm.length for row in fixed]
    _line(speeds, lengths, fixed, by_length.title.partition(" (")[2].rstrip(")"))
    plain = next(row for row in by_length.rows if row.arm.source == "none")
    speeds.axhline(plain.tokens_per_s, color="gray", linestyle="--", label="none")
    speeds.set(xlabel="draft length", ylabel="tokens/s behind the first", ylim=(0, None))
    speeds.legend()

    shares = [100 * (row.acceptance or 0.0) for row in fixed]
    accepted.plot(lengths, shares, "o-", label="accepted, %")
    accepted.set(xlabel="draft length", ylabel="draft tokens accepted, %", ylim=(0, 100))
    beside = accepted.twinx()
    means = [row.accepted_per_pass or 0.0 for row in fixed]
    beside.plot(lengths, means, "s--", color="C1", label="accepted a pass")
    beside.set(ylabel="accepted a pass", ylim=(0, None))
    handles = [*accepted.get_lines(), *beside.get_lines()]
    accepted.legend(handles=handles, loc="lower right")
    for axes in (speeds, accepted):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])

    for drafted in (False, True):
        chosen = [row for row in by_context.rows if (row.arm.source != "none") == drafted]
        name = by_context.title.partition("; ")[2].rstrip(")") if drafted else "none"
        _line(contexts, [row.arm.context for row in chosen], chosen, name)
    ticks = sorted({row.arm.context for row in by_context.rows})
    contexts.set_xscale("log", base=2)
    contexts.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    contexts.set(xlabel="context, tokens", ylabel="tokens/s behind the first", ylim=(0, None))
    contexts.legend()
    figure.savefig(file, format="png", dpi=110)


def _line(axes: Axes, places: Sequence[int], points: Sequence[Row], name: str) -> None:
    rates = [row.tokens_per_s for row in points]
    below = [row.tokens_per_s - row.spread[0] for row in points]
    above = [row.spread[1] - row.tokens_per_s for row in points]
    axes.errorbar(places, rates, [below, above], fmt="o-", capsize=3, label=name)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _print(report: Report) -> None:
    screen = Console()
    console = Console(highlight=False, width=max(NARROWEST, screen.width))
    for question in report.questions:
        if question.rows:
            console.print(_on_screen(question, report.facts.is_meaningful))
        else:
            console.print(question.title, style="italic")
        for line in left_out(question):
            console.print(line)
        console.print()
    for note in notes(report):
        console.print(note)


def _on_screen(question: Question, is_meaningful: bool) -> Table:
    columns, *lines = table(question, is_meaningful=is_meaningful)
    shown = Table(
        columns[0],
        title=title(question, is_meaningful=is_meaningful),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in columns[1:]:
        shown.add_column(name, justify="right")
    for line in lines:
        shown.add_row(*line)
    return shown
