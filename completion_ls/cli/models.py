"""`completion-ls models`: fetch, list and find models. Each function returns an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from completion_ls.config.sources import SettingsError, resolve_strict
from completion_ls.models import catalogue, fetch, hub, local
from completion_ls.models.store import Progress as Report
from completion_ls.models.store import megabytes, shown

if TYPE_CHECKING:
    from completion_ls.config.settings import Settings

NOT_FETCHED = "not fetched"


def pull(name: str | None, *, tokenizer: bool = False) -> int:
    """Fetch and convert a model (None: all that the settings name), with a progress bar on stderr; or
    its tokenizer only, which is all that is needed where a server computes."""
    try:
        only, names = tokenizer, [name] if name else []
        if not names:
            settings = resolve_strict()
            only = only or settings.engine.kind == "remote"
            names = [settings.model.name] if only else _named_for_engine(settings)
        for one in names:
            with _bar() as report:
                said = _pulled(one, only, report)
            print(said, file=sys.stderr)
    except (local.ModelError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _pulled(name: str, only_tokenizer: bool, report: Report) -> str:
    """Fetch a model or its tokenizer; returns the sentence that says so."""
    if only_tokenizer:
        folder = local.pull_tokenizer(name, progress=report)
        return f"The tokenizer of {name} is ready in {folder}."
    model = local.pull(name, progress=report)
    return f"{model.name} is ready in {model.folder}."


def _named_for_engine(settings: Settings) -> list[str]:
    """As `named`. Raises ModelError where their engine could not read one of them."""
    from completion_ls.daemon.load import check_kind
    from completion_ls.wire.endpoint import DaemonConfig

    check_kind(DaemonConfig.of(settings))
    return named(settings)


def named(settings: Settings) -> list[str]:
    """The models that these settings load: the one that answers, and the one that guesses."""
    return [name for name in (settings.model.name, settings.draft.model_in_use) if name]


def list_models() -> int:
    """Print the catalogue, and what else was fetched from the hub, as a table."""
    known = hub.known()
    entries = (*catalogue.ENTRIES, *catalogue.HUB_ENTRIES)
    table = Table(show_lines=True)
    # Whole in a narrow terminal, too, so that it can be copied; what it is stands below it.
    longest = max(len(name) for name in [entry.name for entry in entries] + [str(m) for m in known])
    table.add_column("name", min_width=longest, overflow="fold")
    for heading in ("size", "licence", "state"):
        table.add_column(heading, no_wrap=True)
    places = []
    for entry in catalogue.ENTRIES:
        ready = local.find(entry)
        if ready:
            state, place = "ready", shown(ready.folder)
        elif fetch.is_fetched(entry):
            state, place = "fetched", shown(fetch.gguf_path(entry))
        else:
            state, place = NOT_FETCHED, ""
        if place:
            places.append(f"{entry.name}: {place}")
        table.add_row(
            f"{entry.name}\n{entry.description}", megabytes(entry.size), entry.licence, state
        )
    listed = set()
    for one in catalogue.HUB_ENTRIES:
        repository = hub.HubModel(one.repository, one.revision)
        listed.add(repository)
        state, place = _on_disk(repository)
        if place:
            places.append(f"{one.name}: {place}")
        table.add_row(f"{one.name}\n{one.description}", megabytes(one.size), one.licence, state)
    for repository in known:
        if repository not in listed:
            state, place = _on_disk(repository)
            if place:
                places.append(f"{repository}: {place}")
            table.add_row(f"{repository}\nfrom the Hugging Face hub", "", "", state)
    console = Console(highlight=False, markup=False)
    console.print(table)
    for line in places:  # below the table, whole, so that they can be copied
        console.print(line, soft_wrap=True)
    return 0


def _on_disk(repository: hub.HubModel) -> tuple[str, str]:
    """In words, whether a repository is here; and where, if it is."""
    folder = hub.find(repository)
    if folder:
        return "ready", shown(folder)
    if begun := hub.progress_of(repository):
        return f"{megabytes(begun[0])} of {megabytes(begun[1])}", ""
    tokenizer = hub.find_tokenizer(repository)
    return ("tokenizer only", shown(tokenizer)) if tokenizer else (NOT_FETCHED, "")


def path(name: str | None) -> int:
    """Print the folder of a model (None: the one of the settings) that needs no fetching, and
    nothing else."""
    try:
        name = name or resolve_strict().model.name
        with _bar() as report:
            model = local.prepare(name, progress=report, offline=True)
    except (local.ModelError, SettingsError) as error:
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
