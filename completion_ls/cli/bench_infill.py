"""`completion-ls bench infill`: how often the model and the rules write the right line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from completion_ls.bench.infill import (
    PAIRS,
    PREFIX,
    SUFFIX,
    Measured,
    Writer,
    measure,
    read_problems,
    sample,
)
from completion_ls.bench.infill_figures import (
    ArmFigures,
    Comparison,
    Estimate,
    Kind,
    arm_figures,
    compared,
    decided,
)
from completion_ls.bench.load_average import load_average
from completion_ls.cli.bench import FAILURES, failed, settings_of_an_engine_here
from completion_ls.wire.endpoint import DaemonConfig


def infill(options: argparse.Namespace) -> int:
    """Print the figures of a file of problems; returns the exit status."""
    try:
        settings = settings_of_an_engine_here()
        everything = read_problems(options.file)
        problems = sample(everything, options.problems, options.seed)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("loading", total=len(problems))
            # Here, since it imports torch before the first line of progress.
            from completion_ls.daemon.load import calm_openmp, load

            calm_openmp()
            loaded = load(
                DaemonConfig.of(settings), lambda text, _: bar.update(task, description=text)
            )
            try:
                began, load_before = time.perf_counter(), load_average()
                measured = measure(
                    Writer(loaded, settings),
                    problems,
                    options.cuts,
                    options.seed,
                    lambda done: bar.update(task, description="problems", completed=done),
                )
                took = time.perf_counter() - began
            finally:
                loaded.engine.close()
    except FAILURES as error:
        return failed(error)
    about = {
        "file": options.file.name,
        "problems": len(problems),
        "of": len(everything),
        "cuts": options.cuts,
        "seed": options.seed,
        "model": loaded.name,
        "fim": loaded.prompts.fim.name if loaded.prompts.fim else None,
        "seconds": took,
        "load_averages": [load_before, load_average()],
        "own_lines_passed": measured.own_lines_passed,
        "suffix_in_prompt": _below(measured),
    }
    arms = arm_figures(measured.results, options.seed)
    # A small window of the text below is often empty.
    shown = [one for one in measured.results if one.below or one.arm != SUFFIX.name]
    pairs = [
        *compared(shown, "suffix shown", SUFFIX.name, PREFIX.name, options.seed),
        *(
            one
            for what, with_it, without in PAIRS
            for one in compared(measured.results, what, with_it.name, without.name, options.seed)
        ),
    ]
    if options.json:
        found = {
            name: list(map(asdict, parts))
            for name, parts in (
                ("arms", arms),
                ("comparisons", pairs),
                ("results", measured.results),
            )
        }
        print(json.dumps(about | found, indent=2))
        return 0
    console = Console()
    for kind in Kind:
        own = [one for one in arms if one.kind is kind]
        if own:
            console.print(
                _arms_table(
                    f"Cursor at the {kind}" if kind is Kind.START else f"Cursor {kind}", own
                )
            )
            console.print(_pairs_table([one for one in pairs if one.kind is kind]))
    for note in _notes(about):
        console.print(note, highlight=False)
    return 0


def _arms_table(title: str, arms: list[ArmFigures]) -> Table:
    table = Table("arm", title=f"{title}: {arms[0].places} places, %")
    for column in ("exact match", "similarity", "pass@1", "text"):
        table.add_column(column, justify="right")
    for one in arms:
        shares = (_percent(part) for part in (one.exact, one.similarity, one.passed))
        table.add_row(one.arm, *shares, f"{100 * one.offered:.0f}")
    return table


def _pairs_table(pairs: list[Comparison]) -> Table:
    table = Table("gained by")
    for column in ("exact match", "similarity", "pass@1", "differ", "places"):
        table.add_column(column, justify="right")
    for one in pairs:
        gains = (_gain(part, one.functions) for part in (one.exact, one.similarity, one.passed))
        table.add_row(one.what, *gains, str(one.other_texts), str(one.places))
    return table


def _notes(about: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{about['file']}, {about['model']}: {about['problems']} of {about['of']} problems, up to "
        f"{about['cuts']} cuts each, seed {about['seed']}, {about['seconds']:.0f} s, greedy."
    )
    yield (
        "In brackets are intervals of 95 %: Wilson's for shares; for edit similarity, and for what is "
        "gained at the same places, a bootstrap over functions. A star: 0 is outside, and there "
        "are enough of them."
    )
    shown = about["suffix_in_prompt"].items()
    counts = ", ".join(f"{count} of {of} ({kind})" for kind, (count, of) in shown)
    form = f"the FIM format {about['fim']}" if about["fim"] else "no FIM format"
    yield f"The model has {form}. Text from below is in the prompts of {counts}."
    yield f"The problems' own lines passed in {about['own_lines_passed']} of {about['problems']}."
    before, after = about["load_averages"]
    if before is not None:
        yield f"Load average of the machine: {before:.1f} before, {after:.1f} after."


def _below(measured: Measured) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for result in measured.results:
        if result.arm == SUFFIX.name:
            count, of = found.get(result.kind, (0, 0))
            found[result.kind] = count + result.below, of + 1
    return found


def _percent(one: Estimate) -> str:
    value, low, high = (100 * part for part in (one.value, one.low, one.high))
    return f"{value:.1f} ({low:.0f}, {high:.0f})"


def _gain(one: Estimate, functions: int) -> str:
    value, low, high = (100 * part for part in (one.value, one.low, one.high))
    return f"{value:+.1f} ({low:.1f}, {high:.1f}){'*' * decided(one, functions)}"
