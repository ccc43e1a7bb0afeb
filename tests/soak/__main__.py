"""Everything that is done to the product for a long time, and the report: `scripts/soak`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from completion_ls import __version__
from fuzz import run as fuzz
from soak import crowd, faults, long
from soak.outcome import Outcome
from support.apart import folders

Say = Callable[[str], None]
Part = Callable[[], list[Outcome]]

MOST_LINES = 8
"""So many problems of a kind are printed; all are in the JSON."""

errors = Console(stderr=True)


def parts(short: bool, seed: int, say: Say) -> dict[str, Part]:
    """What is done, by name. A `short` soak does the same for minutes."""

    async def crowds() -> list[Outcome]:
        return [await (crowd.crowd(8, 15, 2, say) if short else crowd.crowd(20, 30, 8, say))]

    async def hours() -> list[Outcome]:
        return [
            await long.hours(0.02 if short else 1, say),
            await long.keystrokes(1_000 if short else 100_000, say),
            await long.traced_keys(200 if short else 2_000, say),
            await long.documents(300 if short else 10_000, say),
            await long.large_file(5_000_000, 60 if short else 300, say),
        ]

    return {
        "crowd": lambda: asyncio.run(crowds()),
        "long": lambda: asyncio.run(hours()),
        "faults": lambda: asyncio.run(faults.run(1 if short else 5, seed, say)),
        "fuzz": lambda: fuzz.run(1 if short else 8, seed, _found),
    }


def _found(text: str) -> None:
    """Say an input that was too much, whole."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    """Run it; the exit status is 1 where something was lost."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", help="crowd, long, faults, fuzz (all of them unless named)"
    )
    parser.add_argument("--short", action="store_true", help="minutes rather than an hour")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    given = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder,
        errors.status("") if errors.is_terminal else contextlib.nullcontext() as status,
    ):
        apart(Path(folder))
        known = parts(
            given.short, given.seed, lambda text: status.update(text[:100]) if status else None
        )
        if unknown := set(given.parts) - known.keys():
            parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        outcomes = [one for name in given.parts or known for one in known[name]()]
    minutes = (time.monotonic() - began) / 60
    machine = (
        f"{psutil.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    )
    title = f"completion-ls {__version__}, {machine}, seed {given.seed}, {minutes:.0f} minutes"
    Console(width=None if sys.stdout.isatty() else 110).print(table(title, outcomes))
    if given.json:
        report = {"title": title, "outcomes": [asdict(outcome) for outcome in outcomes]}
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(outcome.problems for outcome in outcomes))


def apart(folder: Path) -> None:
    """Use settings, sockets and logs of our own, and the user's models only."""
    os.environ.update(folders(folder))
    (folder / "config.toml").write_text("[daemon]\nidle_exit_s = 5\n")


def table(title: str, outcomes: list[Outcome]) -> Table:
    """The report for people."""
    found = Table(title=title, title_justify="left", show_lines=True)
    for column, justify in (("what", "left"), ("tried", "right"), ("longest wait", "right")):
        found.add_column(column, justify=justify)  # type: ignore[arg-type]
    found.add_column("what came of it")
    found.caption = (
        "Longest wait: of an editor, for what needs no model, or for first text in a crowd."
    )
    for outcome in outcomes:
        wait = "" if outcome.slowest_s is None else f"{outcome.slowest_s:.2f} s"
        lines = [f"{name}: {value}" for name, value in outcome.figures]
        lines += [f"LOST: {problem}" for problem in outcome.problems[:MOST_LINES]]
        if (more := len(outcome.problems) - MOST_LINES) > 0:
            lines.append(f"and {more} more")
        if not outcome.problems:
            lines.append("nothing lost")
        found.add_row(outcome.name, str(outcome.tried), wait, escape("\n".join(lines)))
    return found


if __name__ == "__main__":
    sys.exit(main())
