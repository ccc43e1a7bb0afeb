"""`completion-ls bench calibrate`: how probable a text must be to be shown unasked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from completion_ls.bench.calibrate import Calibration, Row, ask, calibrate, starts
from completion_ls.bench.infill import Writer
from completion_ls.bench.load_average import load_average
from completion_ls.bench.shown import Worth
from completion_ls.bench.trace import read_trace
from completion_ls.cli.bench import FAILURES, failed, settings_of_an_engine_here
from completion_ls.config.settings import CompletionSettings
from completion_ls.wire.endpoint import DaemonConfig


def run(options: argparse.Namespace) -> int:
    """Print a model's reliability and what thresholds are worth; returns the exit status."""
    try:
        settings = settings_of_an_engine_here()
        trace = read_trace(options.trace)
        begins = starts(len(trace.transactions), options.stretches, options.keystrokes)
        total = options.stretches * options.keystrokes
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("loading", total=total)
            # Here, since it imports torch before the first line of progress.
            from completion_ls.daemon.load import calm_openmp, load

            calm_openmp()
            loaded = load(
                DaemonConfig.of(settings), lambda text, _: bar.update(task, description=text)
            )
            try:
                bar.update(task, description="keys")
                writer = Writer(loaded, settings)
                asked = [
                    ask(writer, trace, start, options.keystrokes, lambda: bar.advance(task))
                    for start in begins
                ]
            finally:
                loaded.engine.close()
            bar.update(task, description="thresholds")
            found = calibrate(asked, settings)
    except FAILURES as error:
        return failed(error)
    about = {
        "model": loaded.name,
        "trace": options.trace.name,
        "starts": begins,
        "keystrokes": options.keystrokes,
        "keys": found.keys,
    }
    if options.table:
        _write_table(options.table, about, found)
    best = found.best(options.cost)
    if options.json:
        figures = {
            "bins": list(map(asdict, found.bins)),
            "rows": list(map(_row, found.rows)),
            "cost": options.cost,
            "best": best.show_above,
        }
        print(json.dumps(about | figures, indent=2))
        return 0
    console = Console()
    console.print(_reliability(found))
    console.print(_thresholds(found, options.cost, best))
    for note in _notes(about, found, options.cost, best):
        console.print(note, highlight=False)
    return 0


def _write_table(file: Path, about: dict[str, Any], found: Calibration) -> None:
    """As models/reliability.py reads it: the points, and what they were measured on."""
    points = [[point.probability, point.right] for point in found.points]
    lines = ",\n".join(f"    {point}" for point in points)
    measured = about | {"starts": about["starts"][: (len(about["starts"]) + 1) // 2]}
    file.write_text(
        f'{{\n  "measured_on": {json.dumps(measured)},\n  "points": [\n{lines}\n  ]\n}}\n'
    )


def _row(row: Row) -> dict[str, Any]:
    parts = {"chosen_on": row.chosen_on.as_dict(), "held_out": row.held_out.as_dict()}
    return {"show_above": row.show_above} | parts


def _reliability(found: Calibration) -> Table:
    table = Table(title="Beginnings of first lines: how probable, and how often right, %")
    for column in ("probability", "mean", "right", "beginnings"):
        table.add_column(column, justify="right")
    for one in found.bins:
        right = (100 * part for part in (one.right.value, one.right.low, one.right.high))
        table.add_row(
            f"{100 * one.low:.0f} to {100 * one.high:.0f}",
            f"{100 * one.mean:.1f}",
            "{:.1f} ({:.0f}, {:.0f})".format(*right),
            f"{one.count}",
        )
    return table


def _thresholds(found: Calibration, cost: float, best: Row) -> Table:
    table = Table(title="What a threshold is worth: held out (chosen on)")
    table.add_column("show_above", justify="right")
    for column in ("saved", "shown, %", "right, %", "characters right, %", "length", "utility"):
        table.add_column(column, justify="right")
    for row in found.rows:
        pairs = zip(_cells(row.held_out, cost), _cells(row.chosen_on, cost), strict=True)
        mark = "*" if row is best else ""
        table.add_row(f"{row.show_above:.2f}{mark}", *(f"{a} ({b})" for a, b in pairs))
    return table


def _cells(one: Worth, cost: float) -> Iterator[str]:
    yield f"{100 * one.saved_share:.1f}"
    yield f"{100 * one.shown_share:.0f}"
    yield f"{100 * one.precision:.0f}"
    yield f"{100 * one.characters_precision:.0f}"
    yield f"{one.length:.1f}"
    yield f"{100 * one.utility(cost):.1f}"


def _notes(about: dict[str, Any], found: Calibration, cost: float, best: Row) -> Iterator[str]:
    yield (
        f"{about['trace']}, {about['model']}: {len(about['starts'])} stretches of "
        f"{about['keystrokes']} keys; the first {found.keys} keys make the table and choose, the "
        "others are held out."
    )
    yield (
        "Saved: characters, less one key for each acceptance, for 100 keys typed. Utility: the same "
        f"less {cost:g} for each key at which what is shown begins with a wrong line."
    )
    own = CompletionSettings.model_fields["show_above"].default
    yield f"Of most utility (*) is {best.show_above:g}; the default is {own:g}."
    if (load := load_average()) is not None:
        yield f"Load average of the machine: {load:.1f}."
