"""`completion-ls status`: the figures of every running daemon of this user, and what was accepted."""

from __future__ import annotations

import asyncio
import json
from itertools import zip_longest
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from completion_ls.cli.figures import IN_SECTIONS, NOTHING, Figures, mib
from completion_ls.cli.watched import Watched, panel
from completion_ls.lsp import count_file
from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.inquiry import Busy, figures_of

NAMED = frozenset({"model", "engine", "pid", "uptime_s", "loading"})
"""Figures that the frame around the sections tells."""


def show(*, as_json: bool) -> int:
    """Print a table (or JSON) for each daemon, and what was accepted; 1 where no daemon runs."""
    console = Console()
    found = asyncio.run(collect())
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        if not found:
            console.print(NOTHING)
        console.print(_render(found))
    return 0 if found else 1


async def collect() -> list[dict[str, Any]]:
    """The figures of every daemon that answers, with the counts of its model as `suggestions`."""
    found, counts = await _daemons(), count_file.read()
    for figures in found:
        if figures.get("model") in counts:
            figures["suggestions"] = counts[figures["model"]]
    return found


async def _daemons() -> list[dict[str, Any]]:
    answers = await asyncio.gather(*map(_figures_of, Endpoint.all()))
    return [figures for figures in answers if figures]


async def _figures_of(endpoint: Endpoint) -> dict[str, Any] | None:
    try:
        return await figures_of(endpoint)
    except (NoDaemon, Refused, Busy):
        return None


def _render(found: list[dict[str, Any]]) -> Group:
    counts = count_file.read()
    daemons = [part for one in found for part in (panel(Watched(one), 0.0), _rest(one))]
    return Group(*daemons, *([_suggestions(counts)] if counts else []))


def _rest(figures: Figures) -> Table:
    """What no section tells, in two columns; suggestions have a table of their own."""
    told = IN_SECTIONS | NAMED | {"suggestions"}
    cells = [
        (name.replace("_", " "), escape(_readable(name, value)))
        for name, value in figures.items()
        if name not in told
    ]
    half = (len(cells) + 1) // 2
    table = Table.grid(padding=(0, 1))
    for _ in range(2):
        table.add_column(overflow="fold", ratio=1)
        table.add_column(overflow="fold")
    for left, right in zip_longest(cells[:half], cells[half:], fillvalue=("", "")):
        table.add_row(*left, *right)
    return table


def _suggestions(counts: dict[str, dict[str, Any]]) -> Table:
    """What was accepted, by model: daemons come and go."""
    table = Table(title="suggestions", show_header=False, caption=escape(str(count_file.place())))
    for model, numbers in counts.items():
        table.add_row("model", escape(model))
        for name in (count_file.SINCE, *count_file.NAMES):
            table.add_row(name.replace("_", " "), escape(_readable(name, numbers.get(name, 0))))
        for judged, kept in zip(count_file.JUDGED, count_file.KEPT, strict=True):
            if numbers.get(judged):
                share = numbers.get(kept, 0) / numbers[judged]
                name = kept.replace("characters_kept", "kept")
                table.add_row(name.replace("_", " "), _readable("_share", share))
        table.add_section()
    return table


def _readable(name: str, value: Any) -> str:
    if name.endswith(("_bytes", "_bytes_limit")):
        return mib(value)
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    if "_ms" in name:
        return f"{value:.1f} ms"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and name != "pid" else str(value)
