"""`completion-ls models`: fetch, list and find models. Each function returns an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from completion_ls.models import catalogue, fetch, local
from completion_ls.models.store import Progress as Report
from completion_ls.models.store import shown


def pull(name: str | None) -> int:
    """Fetch and convert a model (None: the default one), with a progress bar on stderr."""
    try:
        with _bar() as report:
            model = local.prepare(name or catalogue.DEFAULT, progress=report)
    except local.ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{model.name} is ready in {model.folder}.", file=sys.stderr)
    return 0


def list_models() -> int:
    """Print the catalogue as a table."""
    table = Table("name", "size", "licence", "state")
    table.add_column("what")
    places = []
    for entry in catalogue.ENTRIES:
        ready = local.find(entry)
        if ready:
            state, place = "ready", shown(ready.folder)
        elif fetch.is_fetched(entry):
            state, place = "fetched", shown(fetch.gguf_path(entry))
        else:
            state, place = "not fetched", ""
        if place:
            places.append(f"{entry.name}: {place}")
        size = f"{entry.size / 1e6:.0f} MB"
        table.add_row(entry.name, size, entry.licence, state, entry.description)
    console = Console(highlight=False, markup=False)
    console.print(table)
    for line in places:  # below the table, whole, so that they can be copied
        console.print(line, soft_wrap=True)
    return 0


def path(name: str | None) -> int:
    """Print the folder of a model that needs no fetching, and nothing else."""
    try:
        with _bar() as report:
            model = local.prepare(name or catalogue.DEFAULT, progress=report, offline=True)
    except local.ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(model.folder)
    return 0


@contextmanager
def _bar() -> Iterator[Report]:
    """Progress on stderr from the first report on: a bar that goes when the work is over, or, where
    stderr is no terminal, a line for each step."""
    console = Console(stderr=True)
    last = ""

    def say(text: str, fraction: float) -> None:
        nonlocal last
        if text != last:
            print(text, file=sys.stderr, flush=True)
            last = text

    if not console.is_terminal:
        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0, visible=False)
        yield lambda text, fraction: bar.update(
            task, description=text, completed=fraction, visible=True
        )
