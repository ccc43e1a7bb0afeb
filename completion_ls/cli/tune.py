"""`completion-ls tune`: the settings that answer soonest here, tried on the user's own code."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from completion_ls.bench.protocol import MOST_BUSY, Busy
from completion_ls.bench.tune import ROUNDS, Search
from completion_ls.bench.tune_arms import CHUNK_KEY, changes, described
from completion_ls.bench.tune_engines import Tuning
from completion_ls.bench.tune_figures import COLD_SHARE, SURE, WORTH
from completion_ls.cli.bench import saying, settings_of_an_engine_here
from completion_ls.config import paths, user_file
from completion_ls.config.sources import SettingsError, resolve
from completion_ls.config.user_file import UserFileError
from completion_ls.context.permitted import BadPattern
from completion_ls.models.errors import ModelError
from completion_ls.models.store import shown
from completion_ls.wire.client import EngineFailed

HEAD = ("tried", "seconds", "before", "ratio", "tokens/s", "cold", "")
RANGES = ("seconds", "ratio")
WIDE = 110
"""Columns where there is no terminal that has its own."""
WHOLE = 100
"""Columns in which a row needs one line, unless what was tried is long."""
INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Search, print, and write if that was asked; returns the exit status."""
    began = time.monotonic()
    is_interrupted = False
    try:
        if not options.folder.is_dir():
            raise ValueError(f"There is no folder {options.folder}.")
        if options.write:  # an hour later would be late to say no
            user_file.values(user_file.read(paths.config_file()), paths.config_file())
        tuning = Tuning(
            settings_of_an_engine_here(),
            options.folder,
            options.budget,
            tuple(options.draft),
            options.force,
        )
        try:
            with saying() as say:
                asyncio.run(tuning.run(say))
        except KeyboardInterrupt:
            is_interrupted = True
    except BadPattern as error:
        print(
            f"completion-ls tune: context.exclude: {str(error)!r} is no pattern.", file=sys.stderr
        )
        return 1
    except (
        *(OSError, ValueError, SettingsError, UserFileError),
        *(Busy, EngineFailed, ModelError),
    ) as error:
        print(f"completion-ls tune: {error}", file=sys.stderr)
        return 1
    search = tuning.search
    if search is None:
        return INTERRUPTED
    took = time.monotonic() - began
    if options.json:
        print(json.dumps(as_dict(tuning, search, took), indent=2))
    else:
        _print(tuning, search, took)
    if is_interrupted:
        print("Interrupted: nothing is chosen, and nothing was written.", file=sys.stderr)
        return INTERRUPTED
    if found := changed(search):
        try:
            for line in _written(found) if options.write else _how_to_write():
                print(line, file=sys.stderr if options.json else sys.stdout)
        except UserFileError as error:
            print(f"completion-ls tune: {error}", file=sys.stderr)
            return 1
    return 0


def changed(search: Search) -> dict[str, Any]:
    """What the winner has otherwise than the present settings."""
    return changes(search.present, search.winner) if search.winner else {}


def rows(search: Search) -> Iterator[tuple[str, ...]]:
    """The table below HEAD: a row for each comparison."""
    searched = [(one, one.what) for one in search.comparisons]
    final = [(one, f"{one.what}, on other prompts") for one in search.final]
    for one, what in (*searched, *final):
        if not one.rounds:
            yield (what, *[""] * (len(HEAD) - 2), one.outcome)
            continue
        new, old = zip(*one.rounds, strict=True)
        times = [one.seconds(figures) for figures in new]
        ratio = one.ratio
        yield (
            what,
            f"{fmean(times):.2f} ({min(times):.2f}-{max(times):.2f})",
            f"{fmean(map(one.seconds, old)):.2f}",
            f"{ratio.middle:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
            f"{sum(figures.rest for figures in new) / sum(figures.rest_s for figures in new):.1f}",
            f"{fmean(figures.first_s for figures in new):.2f}",
            one.outcome,
        )


def notes(tuning: Tuning, search: Search, took: float) -> Iterator[str]:
    """What the figures are, and what they depend on."""
    settings = tuning.settings
    lengths = tuning.prompt_tokens
    where = f"code of {tuning.folder.resolve()}"
    if not tuning.from_folder:
        where = (
            f"this package's own code, as {tuning.folder.resolve()} has too little that may be read"
        )
    yield (
        f"{tuning.model}, {settings.engine.kind}: {len(lengths)} prompts of {min(lengths)} to {max(lengths)} "
        f"tokens from {where}; {took:.0f} s."
    )
    yield (
        "Seconds: per suggestion, of the length that the text there had, and "
        f"{COLD_SHARE:g} times the first token of a cold prompt with half a step of reading it; for "
        "engine.prefill_chunk these alone. Mean, smallest and largest. Before: the best so far at the same "
        f"prompts, {ROUNDS} at most. Ratio: with its {100 * SURE:g} % interval; a change must save "
        f"{100 * WORTH:g} %, and more than the noise, but drafts must save something to stay. Cold: the "
        "first token, in seconds."
    )
    for one in search.comparisons:
        if one.refused:
            yield f"{one.what} cannot run: {one.refused}"
    yield "engine.weights is not searched: it changes what is suggested, not only when."
    if search.not_tried:
        yield (
            "Not tried, as the time left was too short for it with a check of the winner on other prompts "
            f"afterwards: {'; '.join(search.not_tried)}. --budget gives more time."
        )
    if tuning.busy > MOST_BUSY:
        yield (
            f"Measured although other work kept {tuning.busy:.1f} processors busy (--force): trust "
            "nothing of this."
        )


def verdict(search: Search) -> Iterator[str]:
    """The winner against the present settings, in words."""
    best = described(search.present, search.best)
    if search.winner is None:
        if best:
            yield f"Best so far, not yet measured on other prompts: {best}."
        return
    if not changed(search):
        if best:
            last = search.final[-1]
            why = "was not better on other prompts"
            if not last.is_done:
                why = "could not be measured on other prompts in the time (--budget gives more)"
            yield f"{best} looked better, but {why}: the present settings stay."
        elif not any(one.is_done for one in search.comparisons):
            yield "The present settings stay: there was no time to compare anything (--budget gives more)."
        else:
            yield "The present settings stay: nothing that was tried is better by more than the noise."
        return
    won = [
        one
        for one in (*search.comparisons, *search.final)
        if one.wins and (one.settings, one.against) == (search.winner, search.present)
    ][-1]
    new, old = zip(*won.rounds, strict=True)
    times = [fmean(map(won.seconds, side)) for side in (new, old)]
    yield (
        f"Better than the present settings: {described(search.present, search.winner)}. "
        f"{times[0]:.2f} s against {times[1]:.2f} s ({won.ratio.middle:.2f} of it, "
        f"{won.ratio.low:.2f} to {won.ratio.high:.2f})."
    )


def as_dict(tuning: Tuning, search: Search, took: float) -> dict[str, Any]:
    """For JSON."""
    return {
        "model": tuning.model,
        "engine": tuning.settings.engine.model_dump(),
        "draft": tuning.settings.draft.model_dump(),
        "folder": str(tuning.folder.resolve()),
        "prompts_are_from_folder": tuning.from_folder,
        "prompt_tokens": tuning.prompt_tokens,
        "cold_share": COLD_SHARE,
        "busy": tuning.busy,
        "load_average": tuning.load,
        "seconds": took,
        "comparisons": [one.as_dict() for one in search.comparisons],
        "on_other_prompts": [one.as_dict() for one in search.final],
        "not_tried": search.not_tried,
        "is_finished": search.winner is not None,
        "changes": changed(search),
    }


def table(search: Search, width: int) -> Table:
    """The rows. Where there is little width, ranges stand below their middles, so that the names of
    settings and the outcomes are whole."""
    of_range = len("(0.00-0.00)") if width < WHOLE else None
    first = Column(HEAD[0], min_width=len(CHUNK_KEY), overflow="fold")
    gap = (0, 0 if of_range else 1, 0, 0)
    found = Table(first, box=SIMPLE_HEAD, padding=gap, show_edge=False)
    for name in HEAD[1:-1]:
        found.add_column(name, justify="right", width=of_range if name in RANGES else None)
    found.add_column(HEAD[-1], no_wrap=True)
    for row in rows(search):
        found.add_row(*row)
    return found


def _print(tuning: Tuning, search: Search, took: float) -> None:
    width = None if sys.stdout.isatty() else WIDE
    console = Console(highlight=False, markup=False, width=width)
    console.print(table(search, console.width))
    for line in (*notes(tuning, search, took), *verdict(search)):
        console.print(line)
    if found := changed(search):
        console.print(f"\n{user_file.as_toml(found)}\n", soft_wrap=True)


def _how_to_write() -> Iterator[str]:
    yield (
        f"Nothing was written: `completion-ls tune --write` searches and writes; or put these lines "
        f"into {shown(paths.config_file())}."
    )


def _written(found: dict[str, Any]) -> Iterator[str]:
    """Write the settings file, and say so. Raises UserFileError."""
    file = paths.config_file()
    user_file.replace(file, user_file.with_settings(user_file.read(file), found, file))
    yield f"{', '.join(found)} {'was' if len(found) == 1 else 'were'} written into {shown(file)}."
    settings, _ = resolve()
    for setting, value in found.items():
        section, _, key = setting.partition(".")
        if getattr(getattr(settings, section), key) != value:
            yield f"Mind that an environment variable sets {setting}, too, and goes before the file."
