"""Load what a daemon serves: the model's files, its tokenizer, the engine, the prompt builder.

This is the only place in the daemon that imports torch, and it does so on the engine's thread, so
that the daemon listens and answers long before.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from completion_ls.engines.contract import Engine
from completion_ls.engines.exl2 import checks
from completion_ls.models import catalogue
from completion_ls.models.errors import ModelError
from completion_ls.models.local import (
    LocalModel,
    prepare,
    pulled,
    quantisation,
    tokenizer_folder,
)
from completion_ls.prompt.build import PromptBuilder
from completion_ls.prompt.fim_probe import Surprise, best_format, fills_in
from completion_ls.prompt.formats import fitting
from completion_ls.wire.endpoint import DaemonConfig

_log = logging.getLogger(__name__)

SLOW = "it is slow here, `completion-ls doctor` may say why"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    prompts: PromptBuilder
    weighs: bool = True
    """Whether the engine takes jobs whose output is given, by which lines are weighed."""
    more_figures: Callable[[], dict[str, Any]] = dict
    """What `status` says of this kind of engine alone."""


def load(
    config: DaemonConfig,
    progress: Callable[[str, float], None],
    reach: Callable[[str], None] = lambda text: None,
) -> Loaded:
    """Fetch, convert and load as needed. Of a server `reach` hears, from any thread, why it cannot be
    reached, and "" when it can again. Raises exceptions whose text is for people."""
    check_kind(config)
    if config.engine.kind == "remote":
        return _remote(config, progress, reach)
    local = _prepared(config, config.model.name, progress)
    progress(f"Loading {local.name}", 0.0)
    tokenizer = _tokenizer(local.folder)
    ends = end_of_text_ids(local.folder)
    prompts = PromptBuilder(tokenizer, config.model.format, ends)

    calm_openmp()
    guessing = _draft_folder(config, progress)
    engine = _engine(config, local.folder, guessing, progress)
    remark = SLOW if _is_slow(engine) else ""
    surprise = _trial(engine)
    if surprise and config.model.format == "auto":
        others = [PromptBuilder(tokenizer, fim.name, ends) for fim in fitting(tokenizer)[1:]]
        prompts = _best_format(surprise, [prompts, *others])
    if surprise and prompts.fim and not _fills_in(surprise, prompts):
        if config.model.format == "auto":
            prompts = PromptBuilder(tokenizer, "plain", ends)
            _log.info("%s is prompted without its FIM tokens: it does better so", local.name)
        else:
            remark = f"it does better without FIM (model.format is {config.model.format!r})"
    if remark:
        _log.warning("%s: %s", local.name, remark)
    progress(f"{local.name} is loaded{remark and '; '}{remark}", 1.0)
    return Loaded(local.name, engine, tokenizer, prompts)


def _remote(
    config: DaemonConfig, progress: Callable[[str, float], None], reach: Callable[[str], None]
) -> Loaded:
    """Of the model only its tokenizer is here. Waits for a server that cannot be reached."""
    from completion_ls.engines.remote.engine import RemoteEngine, connect
    from completion_ls.engines.remote.texts import BY_NAME, MARKED, format_by_texts, with_tokens

    folder = tokenizer_folder(config.model.name, progress)
    tokenizer = _tokenizer(folder)
    ends = end_of_text_ids(folder)
    progress("Asking the server", 0.0)

    def reached(trouble: str) -> None:
        progress(trouble or "Asking the server", 0.0)  # for `status`
        reach(trouble)

    network, abilities = connect(config.remote, tokenizer, reached)
    marks = None
    format_name: str = config.model.format
    if not abilities.by_tokens:
        format_name = format_by_texts(format_name, abilities, tokenizer)
        if format_name in BY_NAME:
            with_tokens(tokenizer, BY_NAME[format_name].control)
        elif not format_name:
            # It knows its FIM tokens; ours only say where the texts begin.
            format_name = MARKED.name
            prefix, suffix, middle = with_tokens(tokenizer, MARKED.needs)
            marks = prefix, suffix, middle
    prompts = PromptBuilder(tokenizer, format_name, ends)
    engine = RemoteEngine(network, abilities, tokenizer, marks)
    name = engine.abilities.model or config.model.name
    progress(f"{name} is ready at {engine.server_name}", 1.0)
    return Loaded(name, engine, tokenizer, prompts, weighs=False, more_figures=engine.figures)


def _tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def check_kind(config: DaemonConfig) -> None:
    """Raise ModelError (a sentence) where the engine cannot read the kind of file that a model is
    in, before gigabytes are fetched or converted for it."""
    named = [("model.name", config.model.name)]
    if config.draft.model_in_use:
        named.append(("draft.model", config.draft.model_in_use))
    for key, name in named:
        if config.engine.kind == "exllamav2" and _is_gguf(name):
            raise ModelError(
                f"{key} is {name!r}, which is a GGUF file, and engine.kind is exllamav2, which "
                f"reads folders of EXL2 models only. Name such a folder; or {checks.WITHOUT_A_CARD}"
            )
        if config.engine.kind == "torch_cpu" and (method := quantisation(name)):
            raise ModelError(
                f"{key} is {name!r}, whose weights are quantised ({method.upper()}), and engine.kind "
                "is torch_cpu, which cannot read them. Name another model, or choose a profile "
                "with `completion-ls init` (`--profile cpu` where there is no card)."
            )


def _is_gguf(name: str) -> bool:
    entry = catalogue.find(name)
    return (entry.file_name if entry else name).lower().endswith(".gguf")


def _is_slow(engine: Engine) -> bool:
    """Whether it would be several times faster on compiled code, which could not be had."""
    from completion_ls.engines.torch_cpu import TorchCpuEngine

    return isinstance(engine, TorchCpuEngine) and not engine.is_compiled


def _fills_in(surprise: Surprise, prompts: PromptBuilder) -> bool:
    """Whether the model has a use for its FIM tokens, as far as that could be tried."""
    try:
        return fills_in(prompts, surprise)
    except ValueError:  # the model has no such tokens
        return False
    except Exception as error:  # a trial must not keep the engine from starting
        _log.warning("whether FIM works could not be tried: %s", type(error).__name__)
        return True


def _best_format(surprise: Surprise, candidates: list[PromptBuilder]) -> PromptBuilder:
    """The one that suits the model, as far as that could be tried; else the first."""
    if len(candidates) == 1:
        return candidates[0]
    try:
        return best_format(candidates, surprise)
    except Exception as error:
        _log.warning("which FIM format is best could not be tried: %s", type(error).__name__)
        return candidates[0]


def _trial(engine: Engine) -> Surprise | None:
    """What tells how well the model is prompted; None on the CPU, where it would take seconds."""
    from completion_ls.engines.torch_cpu import TorchCpuEngine

    if isinstance(engine, TorchCpuEngine):
        return None
    from completion_ls.engines.exl2.engine import Exl2Engine

    assert isinstance(engine, Exl2Engine)
    return engine.surprise


def _engine(
    config: DaemonConfig,
    folder: Path,
    draft_folder: Path | None,
    progress: Callable[[str, float], None],
) -> Engine:
    if config.engine.kind == "exllamav2":
        from completion_ls.engines.exl2 import loading

        return loading.load(
            folder,
            config.engine,
            draft=config.draft,
            draft_folder=draft_folder,
            drafts_here=pulled(),
            progress=progress,
        )
    from completion_ls.engines.torch_cpu import TorchCpuEngine

    return TorchCpuEngine.load(folder, config.engine, draft=config.draft, draft_folder=draft_folder)


def _prepared(
    config: DaemonConfig, name: str, progress: Callable[[str, float], None]
) -> LocalModel:
    try:
        return prepare(name, progress=progress)
    except ModelError:
        if config.engine.kind == "exllamav2":  # gigabytes are of no use where nothing computes them
            checks.check_pieces(checks.pieces())
        raise


def _draft_folder(config: DaemonConfig, progress: Callable[[str, float], None]) -> Path | None:
    name = config.draft.model_in_use
    if not name:
        return None
    try:
        return _prepared(config, name, progress).folder
    except ModelError as error:
        raise ModelError(f"draft.model: {error}") from error


def calm_openmp() -> None:
    """Keep torch's threads from spinning for each other; to be called before torch is imported.

    By default they spin at the end of every operation, which is fast on an idle machine. Where a
    compiler or another model is at work, the thread they spin for does not run, each operation
    takes a slice of the scheduler's time, and a pass takes a second. Measured on two cores, a pass
    of the default model in float32: idle 34 ms by default, and beside one busy
    process 1,777 ms.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def end_of_text_ids(folder: Path) -> frozenset[int]:
    """The ids that end a text, from generation_config.json and config.json. Raises ValueError (a
    sentence) where one of them cannot be read."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{file} is damaged or no JSON object; fetch the model again."
            ) from error
        ids = value if isinstance(value, list) else [value]
        found.update(id for id in ids if type(id) is int and 0 <= id < 2**31)
    return frozenset(found)
