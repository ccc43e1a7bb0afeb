"""`completion-ls bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from completion_ls.bench import engine as engine_bench
from completion_ls.bench import llama_cpp
from completion_ls.bench.editor import EditorError
from completion_ls.bench.engine_figures import OURS, Sizes, notes
from completion_ls.bench.engine_figures import rows as engine_rows
from completion_ls.bench.figures import Summary, cost_rows, rows, summarize
from completion_ls.bench.llama_cpp import PeerError, PeerTimes
from completion_ls.bench.load_average import load_average
from completion_ls.bench.own_daemon import own_daemon
from completion_ls.bench.plot import write_plot
from completion_ls.bench.protocol import Busy
from completion_ls.bench.replay import replay as run_replay
from completion_ls.bench.replay import worth_of
from completion_ls.bench.shown import rows as shown_rows
from completion_ls.bench.trace import Stretch, cut, read_trace, recorded_gaps
from completion_ls.config.settings import Settings
from completion_ls.config.sources import SettingsError, resolve_strict
from completion_ls.daemon.statistics import percentile
from completion_ls.models.errors import ModelError
from completion_ls.wire.client import EngineFailed

PEER_WINDOW = "2400"
WHOLE = Sizes()
T = TypeVar("T")


class MissingExtra(Exception):
    """An optional package is not installed; the message says how to get it."""


FAILURES = (
    *(OSError, ValueError, SettingsError, MissingExtra, Busy),
    *(EngineFailed, EditorError, PeerError, ModelError),
)
"""What a measurement may raise, each with a sentence."""


def failed(error: Exception) -> int:
    """Say why nothing was measured; returns the exit status."""
    print(f"completion-ls bench: {error}", file=sys.stderr)
    return 1


def replay(options: argparse.Namespace) -> int:
    """Replay a trace and print its figures; returns the exit status."""
    peer: PeerTimes | None = None
    try:
        if options.plot:
            need("matplotlib", "--plot")
        if options.against:
            need("xllamacpp", "--against llama.cpp")
            # Both sides get the same window, unless the user has chosen one for such a run.
            os.environ.setdefault("COMPLETION_LS_PROMPT__MAX_TOKENS", PEER_WINDOW)
        stretch = _stretch(options)
        name = options.trace.name.partition(".")[0]
        with own_daemon():
            session = _typed(
                "completion-ls",
                stretch,
                lambda bar: run_replay(
                    stretch, uri=f"file:///replay/{name}", language="plaintext", progress=bar
                ),
            )
        if options.against:
            settings = resolve_strict()
            llama = _typed(
                "llama.cpp", stretch, lambda bar: llama_cpp.replay(stretch, settings, bar)
            )
            peer = llama
    except FAILURES as error:
        return failed(error)
    summary = summarize(session.keystrokes, session.engine_time)
    found = worth_of(session, stretch)
    load = load_average()
    end = stretch.first + len(stretch.transactions)
    about = {
        "trace": options.trace.name,
        "start": stretch.first,
        "end": end,
        "gaps": options.gaps or f"{options.gap_ms:g} ms",
        "model": session.model,
        "load_average": load,
    }
    if options.json:
        against = {"llama_cpp": _compared(summary, peer)} if peer else {}
        print(
            json.dumps(about | summary.as_dict() | {"shown": found.as_dict()} | against, indent=2)
        )
    else:
        title = f"{options.trace.name}, keystrokes {stretch.first} to {end}"
        table = Table(title=title, show_header=False)
        for row in [*rows(summary), *shown_rows(found), *cost_rows(summary)]:
            table.add_row(*row)
        table.add_row("gaps between keystrokes", f"{about['gaps']}")
        table.add_row("model", session.model)
        if load is not None:
            table.add_row("load average of the machine", f"{load:.1f}")
        if peer:
            table.add_section()
            for row in _peer_rows(summary, peer):
                table.add_row(*row)
        Console().print(table)
    if options.plot:
        title = f"{options.trace.name}, {stretch.first} to {end}, {session.model}"
        peer_ms = peer.first_ms if peer else ()
        write_plot(options.plot, session.keystrokes, title=title, peer_ms=peer_ms)
    return 0


def engine(options: argparse.Namespace, sizes: Sizes = WHOLE) -> int:
    """Measure the engine of the settings in force and print its figures; returns the exit status."""
    try:
        if engine_bench.LLAMA_CPP in options.against:
            need("xllamacpp", "--against llama.cpp")
        settings = torch_settings()
        with saying() as say:
            report = asyncio.run(
                engine_bench.measure(settings, options.against, options.rounds, sizes, say)
            )
    except FAILURES as error:
        return failed(error)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
        return 0
    table = Table("")
    table.add_column(OURS, justify="right")
    for name in report.peers:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
    for row in engine_rows(report):
        table.add_row(*row)
    console = Console()
    console.print(table)
    for note in notes(report):
        console.print(note, highlight=False)
    return 0


def settings_of_an_engine_here() -> Settings:
    """The settings, where an engine on this machine computes: of a server's, what is measured would be the
    network and whoever else asks it. Raises SettingsError."""
    settings = resolve_strict()
    if settings.engine.kind == "remote":
        raise SettingsError(
            "this measures an engine on this machine, and engine.kind is remote. `--profile cpu` before the "
            "command, or COMPLETION_LS_ENGINE__KIND, chooses one; `completion-ls bench replay` types "
            "through the server."
        )
    return settings


def torch_settings() -> Settings:
    """The settings, where they are of the engine that can be measured. Raises SettingsError."""
    settings = settings_of_an_engine_here()
    if settings.engine.kind != "torch_cpu":
        raise SettingsError(
            f"this measures the engine torch_cpu only, and engine.kind is {settings.engine.kind}, which "
            "scripts/gpu_check.sh of the repository measures on this machine's card. "
            "`completion-ls --profile cpu bench` measures the engine that needs no card."
        )
    return settings


def _stretch(options: argparse.Namespace) -> Stretch:
    trace = read_trace(options.trace)
    if options.gaps == "recorded":
        gaps = recorded_gaps(trace.times, most_s=options.most_gap_ms / 1e3)
    else:
        gaps = [options.gap_ms / 1e3] * len(trace.transactions)
    return cut(trace, start=options.start, keystrokes=options.keystrokes, gaps_s=gaps)


def _typed(
    text: str, stretch: Stretch, work: Callable[[Callable[[int], None]], Coroutine[Any, Any, T]]
) -> T:
    """Run one side's replay with a progress bar on stderr."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=len(stretch.transactions))
        return asyncio.run(work(lambda done: bar.update(task, completed=done)))


@contextmanager
def saying() -> Iterator[Callable[[str], None]]:
    """A line on stderr while something is measured, that says what is being done."""
    columns = SpinnerColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)


def need(module: str, option: str) -> None:
    """Raise MissingExtra where a package of the extra `bench` is not there."""
    if find_spec(module) is None:
        raise MissingExtra(
            f"{option} needs {module}, which is in the extra `bench`; install it with "
            f"`{sys.executable} -m pip install {module}`."
        )


def _compared(summary: Summary, peer: PeerTimes) -> dict[str, Any]:
    p50, p95 = (percentile(peer.first_ms, percent) for percent in (50, 95))
    return {
        "version": peer.version,
        "first_ms_p50": p50,
        "first_ms_p95": p95,
        "ratio_p50": p50 / max(summary.first_ms_p50, 1e-9),
        "ratio_p95": p95 / max(summary.first_ms_p95, 1e-9),
    }


def _peer_rows(summary: Summary, peer: PeerTimes) -> list[tuple[str, str]]:
    figures = _compared(summary, peer)
    return [
        (
            f"llama.cpp (xllamacpp {peer.version}), time to first token",
            f"p50 {figures['first_ms_p50']:.1f} ms, p95 {figures['first_ms_p95']:.1f} ms",
        ),
        (
            "as a multiple of completion-ls",
            f"p50 {figures['ratio_p50']:.2f}, p95 {figures['ratio_p95']:.2f}",
        ),
    ]
