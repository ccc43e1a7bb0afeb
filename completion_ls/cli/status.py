"""`completion-ls status`: the figures of every running daemon of this user."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from completion_ls.wire.connection import Connection, NoDaemon, Refused
from completion_ls.wire.endpoint import Endpoint
from completion_ls.wire.messages import GetStatus, Status

ANSWER_TIMEOUT_S = 5.0
REFRESH_S = 0.5


def show(*, as_json: bool, watch: bool) -> int:
    """Print a table (or JSON) for each daemon; 1 where none runs."""
    console = Console()
    if watch:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_render(asyncio.run(collect())), refresh=True)
                time.sleep(REFRESH_S)
    found = asyncio.run(collect())
    if as_json:
        print(json.dumps(found, indent=2))
    elif found:
        console.print(_render(found))
    else:
        console.print("No engine daemon is running; an editor or `completion-ls demo` starts one.")
    return 0 if found else 1


async def collect() -> list[dict[str, Any]]:
    """The figures of every daemon that answers."""
    found = []
    for endpoint in Endpoint.all():
        try:
            connection = await Connection.open(endpoint)
        except (NoDaemon, Refused):
            continue
        connection.send(GetStatus())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while message := await connection.receive():
                    if isinstance(message, Status):
                        found.append(message.figures)
                        break
        except TimeoutError:
            pass
        connection.close()
    return found


def _render(found: list[dict[str, Any]]) -> Table:
    table = Table(title="completion-ls", show_header=False)
    for figures in found:
        for name, value in figures.items():
            table.add_row(name.replace("_", " "), _readable(name, value))
        table.add_section()
    return table


def _readable(name: str, value: Any) -> str:
    if name.endswith(("_bytes", "_bytes_limit")):
        return f"{value / 2**20:,.0f} MiB"
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    if "_ms" in name:
        return f"{value:.1f} ms"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and name != "pid" else str(value)
