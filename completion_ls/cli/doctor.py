"""`completion-ls doctor`: one page on this set-up, and what to do where something is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from completion_ls.doctor.examine import Report, examine
from completion_ls.doctor.lines import Verdict
from completion_ls.models.store import silent

SIGNS: dict[Verdict, str] = {"ok": "✓", "remark": "!", "failed": "✗"}
PLAIN_SIGNS: dict[Verdict, str] = {"ok": "+", "remark": "!", "failed": "x"}
"""For terminals of few characters."""
WIDEST = 24
"""Characters of a name."""
STYLES: dict[Verdict, str] = {"ok": "green", "remark": "yellow", "failed": "bold red"}


def show(*, as_json: bool) -> int:
    """Print what was found; 1 where a line failed, else 0."""
    report = _watched()
    if as_json:
        lines = [asdict(line) for line in report.lines]
        print(
            json.dumps(
                {"ok": not report.failed, "lines": lines, "settings": report.settings}, indent=2
            )
        )
    else:
        _print(report)
    return 1 if report.failed else 0


def _watched() -> Report:
    """The report; meanwhile a terminal says what is looked at."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return examine(silent)
    with console.status("Looking") as status:

        def tell(text: str, fraction: float) -> None:
            share = f" ({fraction:.0%})" if fraction else ""
            status.update(Text(f"Looking: {text}{share}"))

        return examine(tell)


def _print(report: Report) -> None:
    console = Console(highlight=False, markup=False)
    signs = SIGNS if console.encoding.lower().startswith("utf") else PLAIN_SIGNS
    width = max(len(line.name) for line in report.lines)
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        console.print(group, style="bold")
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(min_width=min(width, WIDEST), max_width=WIDEST, overflow="fold")
        table.add_column(overflow="fold")
        for line in lines:
            verdict = Text(f"  {signs[line.verdict]} {line.verdict:<6}", STYLES[line.verdict])
            text = Text("\n".join([line.text, *line.details]))
            table.add_row(verdict, Text(line.name), text)
        console.print(table)
    remarks = sum(line.verdict == "remark" for line in report.lines)
    said = f"{remarks} remark{'' if remarks == 1 else 's'}"
    if failed := len(report.failed):
        count = "One line" if failed == 1 else f"{failed} lines"
        console.print(f"{count} failed, and each says what to do; {said}.", style=STYLES["failed"])
    else:
        console.print(f"Nothing failed; {said}.", style=STYLES["ok"])
