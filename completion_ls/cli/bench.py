"""`completion-ls bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from completion_ls.bench.figures import rows, summarize
from completion_ls.bench.replay import replay as run_replay
from completion_ls.bench.trace import read_trace
from completion_ls.config.sources import SettingsError
from completion_ls.wire.client import EngineFailed

SUFFIXES = {".py": "python", ".js": "javascript", ".ts": "typescript", ".rs": "rust", ".go": "go"}


def replay(options: argparse.Namespace) -> int:
    """Replay a trace and print its figures."""
    try:
        trace = read_trace(options.trace)
        console = Console(stderr=True)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("typing", total=options.keystrokes)
            records = asyncio.run(
                run_replay(
                    trace,
                    uri=f"file:///replay/{options.trace.name.partition('.')[0]}",
                    language="plaintext",
                    start=options.start,
                    keystrokes=options.keystrokes,
                    gap_s=options.gap_ms / 1e3,
                    progress=lambda done: bar.update(task, completed=done),
                )
            )
    except (OSError, ValueError, SettingsError, EngineFailed) as error:
        print(f"completion-ls bench: {error}", file=sys.stderr)
        return 1
    summary = summarize(records)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    if options.json:
        print(json.dumps(summary.as_dict() | {"load_average": load}, indent=2))
        return 0
    table = Table(title=f"{options.trace.name}, load average {load:.1f}", show_header=False)
    for name, value in rows(summary):
        table.add_row(name, value)
    Console().print(table)
    return 0
