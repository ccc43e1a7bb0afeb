"""`tune` on the engine of the settings in force: what is there to try, and measured figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from completion_ls.bench.load_average import load_average
from completion_ls.bench.protocol import MOST_BUSY, Busy, busy_processors
from completion_ls.bench.sides import OwnSide, own
from completion_ls.bench.tune import ROUNDS, CannotRun, Search
from completion_ls.bench.tune_arms import chunk_in_use, coordinates
from completion_ls.bench.tune_figures import Figures
from completion_ls.bench.tune_prompts import TunePrompt, prompts
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import check_kind
from completion_ls.engines.same_vocabulary import check_vocabulary
from completion_ls.models import catalogue, local
from completion_ls.models.errors import ModelError
from completion_ls.wire.client import EngineFailed
from completion_ls.wire.endpoint import DaemonConfig

Say = Callable[[str], None]
WARM_UP = 64
"""Tokens of the prompt of the first generation of an engine, which does not count, ..."""
WARM_UP_TOKENS = 48
"""... and of its output, from which it learns how often its drafts are right."""
CPU_PROMPT = 512
"""Most tokens of a prompt on the CPU, where a longer one would take the time of several rounds."""


@dataclass(slots=True)
class _Loaded:
    """An engine, and what ends it."""

    side: OwnSide
    stack: AsyncExitStack
    is_warm: bool = False


class Engines:
    """Engines in processes of their own, loaded when they are asked; at most `most` at a time."""

    def __init__(self, most: int) -> None:
        self.texts: Sequence[TunePrompt] = ()
        """What is measured: the prompts by their numbers."""
        self._most = most
        self._loaded: dict[str, _Loaded] = {}
        """Who was asked last stands last."""

    async def measure(self, settings: Settings, number: int) -> Figures:
        """One suggestion behind the prompt of this number. Raises CannotRun."""
        text = self.texts[number]
        try:
            engine = await self._engine(settings)
            if not engine.is_warm:
                await engine.side.generate(text.ids[:WARM_UP], WARM_UP_TOKENS)
                engine.is_warm = True
            done = await engine.side.generate(text.ids, text.tokens)
        except EngineFailed as error:
            await self._end(DaemonConfig.of(settings).identity)
            raise CannotRun(str(error).removeprefix("The engine failed. ")) from error
        if not done.rest or done.rest_s <= 0:
            raise CannotRun("The engine gave no token behind the first.")
        return Figures(
            prompt=len(text.ids),
            chunk=chunk_in_use(settings.engine),
            first_s=done.first_s,
            tokens=len(done.tokens),
            rest=done.rest,
            rest_s=done.rest_s,
            rest_passes=done.rest_passes,
        )

    async def engine(self, settings: Settings) -> OwnSide:
        """The engine of these settings. Raises EngineFailed."""
        return (await self._engine(settings)).side

    async def end(self) -> None:
        """End all of them."""
        while self._loaded:
            await self._end(next(iter(self._loaded)))

    async def _engine(self, settings: Settings) -> _Loaded:
        name = DaemonConfig.of(settings).identity
        if name not in self._loaded:
            while len(self._loaded) >= self._most:
                await self._end(next(iter(self._loaded)))
            async with AsyncExitStack() as stack:
                side = await stack.enter_async_context(own(settings.model.name, settings))
                self._loaded[name] = _Loaded(side, stack.pop_all())
        found = self._loaded[name] = self._loaded.pop(name)
        return found

    async def _end(self, name: str) -> None:
        if found := self._loaded.pop(name, None):
            await found.stack.aclose()


@dataclass(slots=True)
class Tuning:
    """One run of `tune`. What is known of it stands in the fields, also where it was interrupted."""

    settings: Settings
    folder: Path
    seconds: float
    drafts: tuple[str, ...] = ()
    force: bool = False
    search: Search | None = None
    model: str = ""
    from_folder: bool = True
    """Whether the prompts are from the folder; else from this package."""
    prompt_tokens: tuple[int, ...] = ()
    busy: float = 0.0
    load: float | None = None

    async def run(self, say: Say) -> None:
        """Search. Raises Busy, unless forced, EngineFailed, ModelError and ValueError, all sentences, and
        BadPattern (the pattern)."""
        say("looking at the machine")
        self.busy, self.load = await busy_processors(), load_average()
        if self.busy > MOST_BUSY and not self.force:
            raise Busy(
                f"Other work keeps {self.busy:.1f} processors busy, so the figures would say little. "
                "Wait until it is done, or add --force."
            )
        began = time.monotonic()
        say("preparing the model")
        check_kind(DaemonConfig.of(self.settings))
        found = await asyncio.to_thread(local.prepare, self.settings.model.name)
        self.model = found.name
        say("looking for drafts")
        drafts = await asyncio.to_thread(draft_models, self.settings, self.drafts)
        # A card has room for one engine, and changing takes long there.
        on_card = self.settings.engine.kind == "exllamav2"
        engines = Engines(1 if on_card else 2)
        try:
            say("loading the present settings")
            present = await engines.engine(self.settings)
            room = present.max_context - self.settings.completion.max_tokens
            most = min(self.settings.prompt.max_tokens, room)
            say("cutting prompts")
            texts, self.from_folder = await asyncio.to_thread(
                prompts,
                self.folder,
                found.folder,
                self.settings,
                count=2 * ROUNDS,
                most=most if on_card else min(most, CPU_PROMPT),
            )
            self.prompt_tokens = tuple(len(text.ids) for text in texts)
            engines.texts = texts
            self.search = Search(
                self.settings,
                coordinates(drafts, present.threads),
                engines.measure,
                seconds=self.seconds - (time.monotonic() - began),
                clock=time.monotonic,
                turn=ROUNDS if on_card else 1,
                say=say,
            )
            await self.search.run()
        except CannotRun as error:
            raise EngineFailed(str(error)) from error
        finally:
            await engines.end()


def draft_models(settings: Settings, named: Sequence[str]) -> list[str]:
    """Models that may guess: the one that the settings name, those that are `named`, and smaller ones of
    the catalogue and the hub that are on this disk, of a kind that the engine reads, and of the same
    vocabulary. Raises ModelError where one that was named is not here."""
    for name in named:
        local.prepare(name, offline=True)
    target = local.prepare(settings.model.name, offline=True).folder
    found = [name for name in (settings.draft.model, *named) if name]
    here = {entry.name: model.folder for entry in catalogue.ENTRIES if (model := local.find(entry))}
    for name, folder in (here | local.pulled()).items():
        if name not in found and folder != target and _may_guess(settings, name, folder, target):
            found.append(name)
    return found


def _may_guess(settings: Settings, name: str, folder: Path, target: Path) -> bool:
    if _weight_bytes(folder) >= _weight_bytes(target):
        return False
    draft = settings.draft.model_copy(update={"model": name, "max_tokens": 1})
    try:
        check_kind(DaemonConfig.of(settings.model_copy(update={"draft": draft})))
        check_vocabulary(target, folder)
    except (ModelError, ValueError):
        return False
    return True


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
