"""The engine of the settings in force, measured on this machine beside peers on the same weights.

A round starts every side anew, has them do the same in turn, and ends them: so the machine's load
hits all alike, and nothing that a side has learnt from a prompt helps it with the same one in the
next round.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from completion_ls.bench import sides
from completion_ls.bench.engine_figures import OURS, Raw, Report, Sizes, floor_s, rate
from completion_ls.bench.llama_cpp import SPECULATIONS, gguf_of, threads_of
from completion_ls.bench.load_average import load_average
from completion_ls.bench.sides import Generation, OwnSide, Side
from completion_ls.config.settings import DraftSettings, Settings
from completion_ls.engines.shape import read_shape
from completion_ls.models import local

LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers"
SOURCES = (
    "lsp/server.py",
    "lsp/rules.py",
    "daemon/worker.py",
    "prompt/reading.py",
    "lsp/documents.py",
    "wire/client.py",
    "daemon/server.py",
    "models/gguf_to_folder.py",
)
"""Code that every installation of this version has."""
PASSES = 30
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids of code: `pieces` from several files, of `context` tokens each, and the beginning of
    all files together."""

    pieces: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]


@dataclass(slots=True)
class _Session:
    """What does not change from round to round, and what has been measured so far."""

    settings: Settings
    sizes: Sizes
    prompts: Prompts
    folder: Path
    gguf: Path | None
    transformers: bool
    say: Say
    speculation: str = ""
    raw: Raw = field(default_factory=dict)
    weight_bytes: int = 0
    threads: int = 0
    drafts_equal: bool | None = None
    drafted: int = 0
    drafted_passes: int = 0

    def note(self, side: Side, key: str, value: float) -> None:
        """One round's figure."""
        self.raw.setdefault(side.name, {}).setdefault(key, []).append(value)


@dataclass(frozen=True, slots=True)
class _Started:
    """The sides of one round. `drafting` are those that draft, under the same names."""

    ours: OwnSide
    peers: tuple[Side, ...]
    drafting: tuple[Side, ...]

    @property
    def plain(self) -> tuple[Side, ...]:
        return (self.ours, *self.peers)


async def measure(
    settings: Settings, against: Sequence[str], rounds: int, sizes: Sizes, say: Say
) -> Report:
    """Measure. `against` are `LLAMA_CPP`, `TRANSFORMERS`, both or none; `say` hears what is being
    done. Raises PeerError, EngineFailed, models.ModelError and ValueError, all sentences."""
    say("preparing the model")
    model = await asyncio.to_thread(local.prepare, settings.model.name)
    gguf = gguf_of(settings.model.name) if LLAMA_CPP in against else None
    shape = read_shape(model.folder)
    sizes = sizes.within(shape.context)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    session = _Session(
        settings=settings,
        sizes=sizes,
        prompts=read_prompts(tokenizer, sizes),
        folder=model.folder,
        gguf=gguf,
        transformers=TRANSFORMERS in against,
        say=say,
    )
    before = load_average()
    speculations = await _try_speculations(session) if gguf else {}
    if speculations:
        session.speculation = max(speculations, key=lambda kind: speculations[kind])
    for number in range(rounds):
        await _round(session, number, f"round {number + 1} of {rounds}")
    after = load_average()
    return Report(
        model=model.name,
        engine=settings.engine.model_dump(),
        rounds=rounds,
        sizes=sizes,
        raw={name: session.raw[name] for name in (OURS, *against)},
        versions=_versions(against),
        threads=session.threads,
        weight_bytes=session.weight_bytes,
        untied=not shape.tied,
        load_averages=None if before is None or after is None else (before, after),
        drafts_equal=session.drafts_equal,
        tokens_per_pass=session.drafted / session.drafted_passes if session.drafted_passes else 1.0,
        speculation=session.speculation,
        speculations=speculations,
    )


def with_drafts(settings: Settings, on: bool) -> Settings:
    """The settings with drafts switched on or off. They stay off where the settings name nothing that
    could guess."""
    draft = settings.draft
    possible = draft.lookup or draft.model
    most = (draft.max_tokens or DraftSettings().max_tokens) if on and possible else 0
    return settings.model_copy(update={"draft": draft.model_copy(update={"max_tokens": most})})


def read_prompts(tokenizer: Tokenizer, sizes: Sizes) -> Prompts:
    """The prompts, from this package's own source files. Raises ValueError where they are too few
    for these sizes."""
    ids = _code(tokenizer)
    pieces = [tuple(piece[: sizes.context]) for piece in ids if len(piece) >= sizes.context]
    whole = tuple(token for piece in ids for token in piece)
    if len(pieces) < sizes.prompts or len(whole) < max(sizes.fill, sizes.long):
        raise ValueError(
            f"The package's own source files make {len(pieces)} prompts of {sizes.context} tokens, "
            f"and {len(whole)} tokens together; that is too little."
        )
    return Prompts(tuple(pieces[: sizes.prompts]), whole)


def code_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The package's own source files, one behind the other."""
    return tuple(token for piece in _code(tokenizer) for token in piece)


def _code(tokenizer: Tokenizer) -> list[list[int]]:
    folder = files("completion_ls")
    texts = [folder.joinpath(name).read_text("utf-8") for name in SOURCES]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


async def _try_speculations(session: _Session) -> dict[str, float]:
    """llama.cpp's kinds of drafts, each with its tokens a second over the prompts."""
    found = {}
    for kind in SPECULATIONS:
        session.say(f"llama.cpp's drafts: {kind}")
        async with _llama_cpp(session, kind) as side:
            done = [
                await side.generate(piece, session.sizes.tokens + 1)
                for piece in session.prompts.pieces
            ]
        found[kind] = _rate(done)
    return found


async def _round(session: _Session, number: int, text: str) -> None:
    say, sizes = session.say, session.sizes
    say(f"{text}: loading")
    async with _sides(session) as started:
        ours, plain = started.ours, _turned(started.plain, number)
        session.weight_bytes, session.threads = ours.weight_bytes, ours.threads
        for side in started.plain:
            session.note(side, "load_ms", 1e3 * side.load_s)
            if side.import_s:
                session.note(side, "import_ms", 1e3 * side.import_s)
        await _pieces(session, started, number, text)
        for side in plain:
            if side.name == TRANSFORMERS:
                continue
            rates = []
            for context in (sizes.short, sizes.long):
                say(f"{text}: {side.name} at {context} tokens")
                done = await side.generate(session.prompts.whole[:context], sizes.tokens + 1)
                rates.append(_rate([done]))
            session.note(side, "short_per_s", rates[0])
            session.note(side, "long_per_s", rates[1])
            session.note(side, "long_share", rates[1] / rates[0])
        if number == 0:  # it would be the same in each
            for side in plain:
                say(f"{text}: {side.name}, a context of {sizes.fill} tokens")
                await side.generate(session.prompts.whole[: sizes.fill - 1], 1)
                session.note(side, "peak_bytes", side.peak_bytes())
        say(f"{text}: idle")
        cpu_s = [side.cpu_s() for side in plain]
        await asyncio.sleep(sizes.idle_s)
        for side, before in zip(plain, cpu_s, strict=True):
            session.note(side, "idle_cpu_s", side.cpu_s() - before)
        say(f"{text}: a pass and its floor")
        await _pass(session, ours)  # the last, as its arrays would be in the peak of memory


async def _pass(session: _Session, ours: OwnSide) -> None:
    """A pass, and copies right before and after it, so that the machine is as busy for both."""
    sizes = session.sizes
    before = await ours.copied_per_s(sizes.copy_bytes)
    done = await ours.generate(session.prompts.whole[: sizes.short], PASSES + 1)
    copied_per_s = max(before, await ours.copied_per_s(sizes.copy_bytes))
    pass_ms, floor_ms = 1e3 * done.pass_s, 1e3 * floor_s(ours.weight_bytes, copied_per_s)
    session.note(ours, "pass_ms", pass_ms)
    session.note(ours, "floor_ms", floor_ms)
    session.note(ours, "pass_over_floor", pass_ms / floor_ms)
    session.note(ours, "copied_per_s", copied_per_s)


async def _pieces(session: _Session, started: _Started, number: int, text: str) -> None:
    """The cold prompt and the decode after it, without and with drafts, for each piece of code."""
    plain: dict[str, list[Generation]] = defaultdict(list)
    drafted: dict[str, list[Generation]] = defaultdict(list)
    turns = [(side, plain) for side in started.plain]
    turns += [(side, drafted) for side in started.drafting]
    for index, piece in enumerate(session.prompts.pieces):
        for side, done in _turned(turns, number + index):
            which = "with drafts" if done is drafted else "without drafts"
            session.say(f"{text}: {side.name} {which}, prompt {index + 1}")
            done[side.name].append(await side.generate(piece, session.sizes.tokens + 1))
    for side in started.plain:
        first_s = [done.first_s for done in plain[side.name]]
        session.note(side, "cold_ms", 1e3 * sum(first_s) / len(first_s))
        session.note(side, "plain_per_s", _rate(plain[side.name]))
    for side in started.drafting:
        session.note(side, "drafted_per_s", _rate(drafted[side.name]))
    for without, drafts in zip(plain[OURS], drafted[OURS], strict=False):
        session.drafts_equal = session.drafts_equal is not False and without.tokens == drafts.tokens
        session.drafted += drafts.rest
        session.drafted_passes += drafts.rest_passes


@asynccontextmanager
async def _sides(session: _Session) -> AsyncIterator[_Started]:
    """All sides, one after the other, so that none loads while another does."""
    settings = session.settings
    plain, drafting = with_drafts(settings, False), with_drafts(settings, True)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(sides.own(OURS, plain))
        peers: list[Side] = []
        drafts: list[Side] = []
        if drafting != plain:
            drafts.append(await stack.enter_async_context(sides.own(OURS, drafting)))
        if session.gguf:
            peers.append(await stack.enter_async_context(_llama_cpp(session)))
            drafts.append(await stack.enter_async_context(_llama_cpp(session, session.speculation)))
        if session.transformers:
            threads = threads_of(settings)
            peer = sides.transformers(TRANSFORMERS, session.folder, threads)
            peers.append(await stack.enter_async_context(peer))
        yield _Started(ours, tuple(peers), tuple(drafts))


def _llama_cpp(session: _Session, speculation: str = "") -> AbstractAsyncContextManager[Side]:
    assert session.gguf is not None
    sizes = session.sizes
    return sides.llama_cpp(
        LLAMA_CPP,
        session.gguf,
        context=max(sizes.fill, max(sizes.long, sizes.context) + sizes.tokens + 1),
        threads=threads_of(session.settings),
        speculation=speculation,
    )


def _rate(done: Sequence[Generation]) -> float:
    return rate([one.rest for one in done], [one.rest_s for one in done])


def _turned(things: Sequence[T], by: int) -> list[T]:
    """The same in another order, so that nobody is always the first."""
    by %= len(things)
    return [*things[by:], *things[:by]]


def _versions(against: Sequence[str]) -> dict[str, str]:
    found = {}
    if LLAMA_CPP in against:
        found["xllamacpp"] = version("xllamacpp")
    if TRANSFORMERS in against:
        found["transformers"] = version("transformers")
        found["torch"] = version("torch")
    return found
