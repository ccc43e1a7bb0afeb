"""`completion-ls doctor`: whether the engine of the present settings can run here, and on what."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from completion_ls import __version__
from completion_ls.cli.init import planned
from completion_ls.config.sources import Problem, Source, collect, resolve
from completion_ls.daemon.load import calm_openmp, check_kind
from completion_ls.engines.exl2 import checks, loading
from completion_ls.engines.vram import VramSetting, plan_vram, table
from completion_ls.models import catalogue, local
from completion_ls.models.errors import ModelError
from completion_ls.wire.endpoint import DaemonConfig

if TYPE_CHECKING:
    from completion_ls.config.settings import Settings

DEFAULTS = "default"


@dataclass(slots=True)
class Report:
    """What was found. `obstacles` are sentences; without any, the engine in use can run."""

    facts: dict[str, str]
    settings: dict[str, dict[str, Any]]
    """By key: its value and where that is from."""
    problems: list[str]
    """Settings that were not taken."""
    pieces: list[dict[str, str | None]] = field(default_factory=list)
    memory: list[str] = field(default_factory=list)
    """The plan of GPU memory, in lines."""
    remarks: list[str] = field(default_factory=list)
    """What goes, but perhaps not as it was meant."""
    obstacles: list[str] = field(default_factory=list)


def show(*, as_json: bool) -> int:
    """Print what was found; 0 where the engine in use can run as the settings have it, else 1."""
    report = examine()
    can_run = not report.obstacles
    if as_json:
        print(json.dumps({"can_run": can_run, **asdict(report)}, indent=2))
    else:
        _print(report)
    return 0 if can_run and not report.problems else 1


def examine() -> Report:
    """Look at all of it. Imports torch only where the engine in use needs it to answer."""
    settings, problems = resolve()
    report = Report(
        facts={
            "completion-ls": __version__,
            "Python": f"{platform.python_version()} ({sys.executable})",
            "platform": platform.platform(),
            "default model": _default_model(),
            "engine": settings.engine.kind,
            "model": settings.model.name,
        },
        settings=_sources(settings, problems),
        problems=[str(problem) for problem in problems],
    )
    config = DaemonConfig.of(settings)
    if settings.engine.kind == "exllamav2":
        card = _exllamav2(report)
    else:
        _torch_cpu(report)
    try:
        check_kind(config)
    except ModelError as error:
        report.obstacles.append(str(error))
        return report
    folder = _folder(config.model.name, report)
    guesses = config.draft.model_in_use
    draft = _folder(guesses, report, "draft.model: ") if guesses else None
    if folder and draft:
        _check_vocabulary(folder, draft, report)
    if settings.engine.kind == "exllamav2":
        _check_room(settings, report)
        plan = _plan(settings, folder, draft, report) if folder else None
        if not folder or (guesses and not draft):
            # A total without the draft model would look like the whole.
            report.memory = [f"The models are not all here; {one}." for one in planned(settings)]
        elif plan:
            _memory(settings, plan, folder, card, report)
    return report


def _folder(name: str, report: Report, of: str = "") -> Path | None:
    """The folder of a model; None where there is none, or none yet."""
    if name.lower().endswith(".gguf") and Path(name).is_file():
        return None  # converted when it is first used, which takes its time
    entry = catalogue.find(name)
    if entry and not local.find(entry):
        return None  # fetched when it is first used
    try:
        return local.prepare(name, offline=True).folder
    except ModelError as error:
        report.obstacles.append(f"{of}{error}")
        return None


def _torch_cpu(report: Report) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    report.facts["C compiler"] = compiler or "none: the engine is slower without its kernels"
    calm_openmp()
    try:
        from completion_ls.engines.native import load_native
    except ImportError as error:
        report.obstacles.append(f"torch cannot be imported ({error}); install it again.")
        return
    report.facts["kernels"] = "loaded" if load_native() else "none: torch computes, more slowly"


def _exllamav2(report: Report) -> checks.Card | None:
    """What the engine needs of the machine, whichever the model is; the card, if all is there."""
    pieces = checks.pieces()
    report.pieces = [asdict(piece) for piece in pieces]
    try:
        checks.check_assertions()
    except RuntimeError as error:
        report.obstacles.append(str(error))
    missing = [piece.name for piece in pieces if piece.found is None]
    if missing:
        report.obstacles.append(
            f"The exllamav2 engine lacks: {', '.join(missing)}. Install them as said for each; or "
            f"{checks.WITHOUT_A_CARD}"
        )
        return None
    try:
        card = checks.find_card()
    except (RuntimeError, ImportError) as error:
        report.obstacles.append(str(error))
        return None
    report.facts["GPU"] = card.name
    return card


def _check_vocabulary(folder: Path, draft: Path, report: Report) -> None:
    calm_openmp()
    try:
        from completion_ls.engines.draft_model import check_vocabulary
    except ImportError:  # said before, as torch is one of the pieces
        return
    try:
        check_vocabulary(folder, draft)
    except ValueError as error:
        report.obstacles.append(f"draft.model: {error}")


def _check_room(settings: Settings, report: Report) -> None:
    """Prompts are cut to what is left of the context beside the output."""
    prompt, output = settings.prompt.max_tokens, settings.completion.max_tokens
    context = settings.engine.context
    if output >= context:
        report.obstacles.append(
            f"completion.max_tokens ({output}) leaves no room for a prompt in engine.context "
            f"({context}); lower the one or raise the other."
        )
    elif prompt + output > context:
        report.remarks.append(
            f"prompt.max_tokens ({prompt}) and completion.max_tokens ({output}) are more than "
            f"engine.context ({context}); prompts are cut to fewer than {context - output} tokens."
        )


def _plan(
    settings: Settings, folder: Path, draft: Path | None, report: Report
) -> VramSetting | None:
    """What is to be loaded; None where a model of it cannot be."""
    try:
        plan = loading.planned(folder, settings.engine, None)
    except ValueError as error:
        report.obstacles.append(str(error))
        return None
    try:
        return loading.planned(folder, settings.engine, draft) if draft else plan
    except ValueError as error:
        report.obstacles.append(f"draft.model: {error}")
        return None


def _memory(
    settings: Settings, plan: VramSetting, folder: Path, card: checks.Card | None, report: Report
) -> None:
    need = plan_vram(plan, loading.passes(settings.engine))
    if card is None:
        # Nobody knows what is free; the need is worth knowing before a card is bought.
        report.memory = table(need, 0)[:-2]
        return
    report.memory = table(need, card.free_bytes)
    advice = loading.advised(plan, card.free_bytes, settings.engine, folder, local.pulled())
    if advice.setting != plan:
        report.obstacles.append(advice.sentence)


def _default_model() -> str:
    entry = catalogue.find(catalogue.DEFAULT)
    assert entry is not None
    found = local.find(entry)
    if found:
        return f"{entry.name}: ready in {found.folder}"
    return f"{entry.name}: not here yet; fetched when it is first used"


def _sources(settings: Settings, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    sources, _ = collect()
    wrong = {(problem.key, problem.source) for problem in problems}
    values = settings.model_dump(mode="json")
    return {
        f"{section}.{key}": {"value": value, "source": _source(sources, section, key, wrong)}
        for section, keys in values.items()
        for key, value in keys.items()
    }


def _source(sources: list[Source], section: str, key: str, wrong: set[tuple[str, str]]) -> str:
    """The strongest source whose value was taken."""
    for source in reversed(sources):
        values = source.values.get(section)
        has = isinstance(values, Mapping) and values.get(key) is not None
        if has and (f"{section}.{key}", source.name) not in wrong:
            return source.name
    return DEFAULTS


def _print(report: Report) -> None:
    console = Console(highlight=False, markup=False)
    facts = Table(title="completion-ls doctor", show_header=False)
    facts.add_column()
    facts.add_column(overflow="fold")
    for row in report.facts.items():
        facts.add_row(*row)
    console.print(facts)
    given = {key: one for key, one in report.settings.items() if one["source"] != DEFAULTS}
    if given:
        chosen = Table("setting", "value", "from", title="Settings (all others: default)")
        for key, one in given.items():
            chosen.add_row(key, json.dumps(one["value"]), one["source"])
        console.print(chosen)
    if report.pieces:
        needed = Table("piece", "found", "how to get it", title="What exllamav2 needs")
        for piece in report.pieces:
            found = piece["found"]
            needed.add_row(piece["name"], found or "missing", "" if found else piece["how_to_get"])
        console.print(needed)
    if report.memory:
        console.print("GPU memory", *report.memory, sep="\n", soft_wrap=True)
    for line in (*report.problems, *report.remarks):
        console.print(line, soft_wrap=True)
    for line in report.obstacles:
        console.print(f"- {line}", soft_wrap=True)
    verdict = "can run here."
    if report.obstacles:
        verdict = "cannot run here, as said above."
    elif report.problems:
        verdict = "can run here, but not as you wrote it: settings were refused, as said above."
    console.print(f"The engine {report.facts['engine']} {verdict}", soft_wrap=True)
