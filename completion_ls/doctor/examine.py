"""All looks in their order: what one finds decides which others make sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from completion_ls.config.profiles import settings_of
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import check_kind
from completion_ls.doctor import (
    architecture,
    card,
    editors,
    fim,
    folders,
    keystroke,
    memory,
    model,
    processor,
    remote,
    rope,
    settings,
    sockets,
    versions,
    vocabulary,
)
from completion_ls.doctor.limit import within
from completion_ls.doctor.lines import Line, Notes
from completion_ls.engines.exl2.checks import Card
from completion_ls.models.errors import ModelError
from completion_ls.models.store import Progress
from completion_ls.wire.endpoint import DaemonConfig

T = TypeVar("T")

GROUPS = (
    "versions",
    "settings",
    "folders",
    "card",
    "processor",
    "server",
    "memory plan",
    "model files",
    "vocabulary",
    "FIM",
    "sockets",
    "editors",
    "one keystroke",
)
"""In the order of the page."""
NEEDED = (
    *("card", "processor", "server", "memory plan", "model files", "vocabulary", "FIM"),
    "sockets",
)
"""A keystroke is tried where none of these failed."""
SOON_S, LOADING_S, READING_S = 30.0, 180.0, 900.0
"""Limits of a look: in general, where torch is imported and kernels are compiled, and where
gigabytes are read."""


@dataclass(frozen=True, slots=True)
class Report:
    """The lines by group, and by key each setting with where it is from."""

    lines: list[Line]
    settings: dict[str, dict[str, Any]]

    @property
    def failed(self) -> list[Line]:
        """Those that keep the engine from running as the settings have it, or are damaged."""
        return [line for line in self.lines if line.verdict == "failed"]


@dataclass(frozen=True, slots=True)
class _Model:
    """One that is here, and that the engine computes."""

    folder: Path
    tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True)
class _Models:
    """Those of the settings; None where one is not here, or of no use."""

    target: _Model | None
    draft: _Model | None
    has_draft: bool
    """The draft model is here, or none is asked for."""

    @property
    def folders(self) -> list[Path]:
        """Those of all that are to be loaded; none where one is not here."""
        if not self.target or not self.has_draft:
            return []
        return [one.folder for one in (self.target, self.draft) if one]


def examine(progress: Progress) -> Report:
    """Look at everything. Fetches and converts nothing, and imports torch only where the engine in
    use needs it to answer. `progress` hears what is being looked at."""
    page = _Page(progress)
    page.look("versions", SOON_S, versions.look)
    chosen = page.look("settings", SOON_S, settings.look)
    page.look("folders", SOON_S, folders.look)
    if chosen:
        _engine(page, chosen.settings)
    page.look("editors", SOON_S, editors.look)
    order = sorted(page.lines, key=lambda line: GROUPS.index(line.group))
    return Report(order, chosen.origins if chosen else {})


class _Page:
    """The lines so far."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.lines: list[Line] = []

    def look(self, group: str, seconds: float, look: Callable[[Notes], T]) -> T | None:
        """What a look finds, within its limit."""
        self.progress(group, 0.0)
        found, lines = within(seconds, group, look)
        self.lines += lines
        return found

    def has_failed(self, *groups: str) -> bool:
        """Whether a line of these did."""
        return any(line.group in groups and line.verdict == "failed" for line in self.lines)


def _engine(page: _Page, chosen: Settings) -> None:
    """What concerns the engine of the settings, up to a keystroke."""
    config = DaemonConfig.of(chosen)
    daemons = page.look("sockets", SOON_S, lambda notes: sockets.look(notes, config))
    if chosen.engine.kind == "remote":
        _remote(page, chosen, config)
        return
    found, compiled = None, False
    if chosen.engine.kind == "exllamav2":
        found = page.look("card", LOADING_S, card.look)
    else:
        compiled = bool(page.look("processor", LOADING_S, processor.look))
    models = _models(page, config, compiled=compiled)
    if models:
        _memory(page, chosen, config, models, found, daemons)
    target = models.target if models else None
    tokenizer = target.tokenizer if target else None
    if tokenizer:
        page.look("FIM", SOON_S, lambda n: fim.look(n, tokenizer, chosen.model, chosen.engine))
    figures = _keystroke(page, config, all_here=bool(models and models.folders))
    if figures and tokenizer:
        page.look("FIM", SOON_S, lambda n: fim.in_use(n, figures, chosen.model, tokenizer))


def _remote(page: _Page, chosen: Settings, config: DaemonConfig) -> None:
    """What concerns a server that computes. Of the model here only the tokenizer is used."""
    name, tell = config.model.name, page.progress
    wanted = chosen.prompt.max_tokens + chosen.completion.max_tokens
    page.look("server", SOON_S, lambda notes: remote.address(notes, chosen.remote))
    folder = page.look("model files", READING_S, lambda n: model.tokenizer(n, name, tell))
    if folder:
        tokenizer = page.look("vocabulary", SOON_S, lambda n: vocabulary.look(n, "model", folder))
    else:
        tokenizer = None
        page.look("server", SOON_S, remote.cannot_be_tried)
    if tokenizer and not page.has_failed("server"):
        page.look("server", LOADING_S, lambda n: remote.look(n, chosen.remote, tokenizer, wanted))
        page.look("FIM", SOON_S, lambda n: fim.look(n, tokenizer, chosen.model, chosen.engine))
    figures = _keystroke(page, config, all_here=tokenizer is not None)
    if figures and tokenizer:
        page.look("FIM", SOON_S, lambda n: fim.in_use(n, figures, chosen.model, tokenizer))
    if chosen.remote.fallback:
        # Last: that it lacks something keeps nothing else from being tried.
        other = settings_of(chosen.remote.fallback).model.name
        page.look("model files", READING_S, lambda n: model.look(n, "fallback", other, tell))


def _models(page: _Page, config: DaemonConfig, *, compiled: bool) -> _Models | None:
    """Look at both models; None where the engine cannot read what they are in."""
    page.look("model files", SOON_S, lambda notes: _kind(notes, config))
    if page.has_failed("model files"):
        return None
    draft = config.draft.model_in_use
    target = _model(page, config, "model", config.model.name, compiled=compiled)
    small = _model(page, config, "draft", draft, compiled=compiled) if draft else None
    if target and small and target.tokenizer and small.tokenizer:
        folder, other = target.folder, small.folder
        page.look("vocabulary", SOON_S, lambda notes: vocabulary.match(notes, folder, other))
    return _Models(target, small, not draft or small is not None)


def _model(
    page: _Page, config: DaemonConfig, role: str, name: str, *, compiled: bool
) -> _Model | None:
    """Look at one model; None where it is not here, or the engine does not compute it."""
    group, engine, tell = "model files", config.engine, page.progress
    folder = page.look(group, READING_S, lambda notes: model.look(notes, role, name, tell))
    if not folder:
        return None
    page.look(group, READING_S, lambda notes: model.compare(notes, role, name, tell))
    computes = page.look(
        group,
        LOADING_S,
        lambda notes: architecture.look(notes, role, folder, engine, compiled=compiled),
    )
    if not computes:
        return None
    page.look(group, SOON_S, lambda notes: rope.look(notes, role, folder, engine))
    tokenizer = page.look("vocabulary", SOON_S, lambda n: vocabulary.look(n, role, folder))
    return _Model(folder, tokenizer)


def _kind(notes: Notes, config: DaemonConfig) -> None:
    try:
        check_kind(config)
    except ModelError as error:
        notes.failed("format", str(error))


def _memory(
    page: _Page,
    chosen: Settings,
    config: DaemonConfig,
    models: _Models,
    found: Card | None,
    daemons: sockets.Daemons | None,
) -> None:
    group = "memory plan"
    loaded = bool(daemons and daemons.has_loaded(config))
    folders = models.folders
    if chosen.engine.kind == "torch_cpu":
        if folders:
            page.look(
                group, SOON_S, lambda n: memory.on_cpu(n, chosen.engine, folders, loaded=loaded)
            )
        return
    page.look(group, SOON_S, lambda notes: memory.room(notes, chosen))
    if not folders:
        page.look(group, SOON_S, lambda notes: memory.missing(notes, chosen))
        return
    if page.has_failed("model files"):
        return  # there is no plan for what cannot be loaded
    folder, draft = folders[0], folders[1] if len(folders) > 1 else None
    count = len(daemons.figures) if daemons else 0
    page.look(
        group,
        LOADING_S,
        lambda notes: memory.on_card(
            notes, chosen.engine, folder, draft, found, loaded=loaded, daemons=count
        ),
    )


def _keystroke(page: _Page, config: DaemonConfig, *, all_here: bool) -> dict[str, Any]:
    """The last look, with limits of its own; the figures of the daemon that answered."""
    notes = Notes("one keystroke")
    figures: dict[str, Any] = {}
    if page.has_failed(*NEEDED):
        notes.remark("first text", "Not tried, as something that it needs failed above.")
    elif not all_here:
        notes.remark(
            "first text", "Not tried: the models are not all here, and nothing is fetched."
        )
    else:
        page.progress("one keystroke", 0.0)
        figures = keystroke.look(notes, config, page.progress)
    page.lines += notes.lines
    return figures
