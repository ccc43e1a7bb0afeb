"""What drafts, their length, sampling, verifying, streams, caches and context do to the speed of the
engine of the settings, on this machine.

Arms are measured in rounds: in each, all arms have their turn, so that other work on the machine hits
all alike. Prompts are read before and stay; what counts is what comes behind the first token. First
the sources of drafts are compared, then lengths of the best one, then the rest at its best length.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from tokenizers import Tokenizer

from completion_ls import __version__
from completion_ls.bench import sweep_plan as plan
from completion_ls.bench.child import Json, child
from completion_ls.bench.engine import code_tokens
from completion_ls.bench.load_average import load_average
from completion_ls.bench.protocol import (
    MOST_BUSY,
    busy_processors,
    checked_busy,
    prose_tokens,
)
from completion_ls.bench.sweep_figures import Arm, Question, Row, Run, fastest, joined
from completion_ls.bench.sweep_plan import Facts, Planned
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import check_kind
from completion_ls.models import local
from completion_ls.models.errors import ModelError
from completion_ls.wire.client import EngineFailed
from completion_ls.wire.endpoint import DaemonConfig

TOKENS = 100
"""Of one continuation."""
WARM_UP = 8
"""Of one that does not count, before the rounds."""
OTHER = 24
"""So many tokens take the place of what an earlier continuation has left behind the prompt."""
CHILD = "completion_ls.bench.sweep_child"
Say = Callable[[str], None]
Ask = Callable[[Json], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids that are continued."""

    prose: tuple[int, ...]
    code: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """One sweep. `busy` are the processors at other work before and after; `forced`: it was measured
    although they were too many."""

    model: str
    engine: dict[str, Any]
    draft: dict[str, Any]
    facts: Facts
    rounds: int
    questions: tuple[Question, ...]
    busy: tuple[float, float]
    load_averages: tuple[float | None, float | None]
    forced: bool
    version: str = __version__

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        questions = [question.as_dict() for question in self.questions]
        return values | {"facts": asdict(self.facts), "questions": questions, "tokens": TOKENS}


async def measure(
    settings: Settings, *, rounds: int, ladder: bool, force: bool, say: Say
) -> Report:
    """Measure the engine of these settings; `say` hears what is being done. Raises Busy, unless forced,
    EngineFailed, models.ModelError and ValueError, all sentences."""
    say("looking at the machine")
    before, average = await checked_busy(force), load_average()
    say("preparing the model")
    check_kind(DaemonConfig.of(settings))
    model = await asyncio.to_thread(local.prepare, settings.model.name)
    draft = await asyncio.to_thread(_draft, settings.draft.model)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    texts = Texts(prose_tokens(tokenizer), code_tokens(tokenizer))
    what: Json = {
        "engine": settings.engine.model_dump(),
        "folder": str(model.folder),
        "draft_folder": str(draft.folder) if draft else "",
    }

    def failed(how: str) -> Exception:
        return EngineFailed(f"The engine failed. {how}")

    say("loading the engine")
    async with child(CHILD, what, failed) as started:
        facts = Facts(**started.ready)
        sweep = Sweep(started.ask, facts, texts, rounds, say)
        questions = await sweep.questions(ladder=ladder)
        say("looking at the machine")
        after = await busy_processors()
    return Report(
        model=model.name,
        engine=settings.engine.model_dump(),
        draft=settings.draft.model_dump(),
        facts=facts,
        rounds=rounds,
        questions=tuple(questions),
        busy=(before, after),
        load_averages=(average, load_average()),
        forced=force and before > MOST_BUSY,
    )


@dataclass(slots=True)
class Sweep:
    """One engine that answers, and what it is asked."""

    ask: Ask
    facts: Facts
    texts: Texts
    rounds: int
    say: Say
    _place: int = -1
    _begun: set[int] = field(default_factory=set)
    """First tokens that came out."""

    async def questions(self, *, ladder: bool) -> list[Question]:
        """All tables."""
        room = self._room
        (drafts,) = await self._answered("drafts", [plan.sources(self.facts)])
        best = _best(drafts.rows)
        (by_length,) = await self._answered("their length", [plan.lengths(self.facts, best)])
        best = _best(by_length.rows)
        # What is learnt may be to take none, and then there is nothing to draw or to verify.
        fixed = _best([row for row in by_length.rows if row.arm.length])
        drawing = fixed if fixed.source != "lookup" else None
        if drawing is None:
            found = fastest(row for row in drafts.rows if _draws(row.arm) and row.arm.length)
            drawing = found.arm if found else None
        planned = [
            plan.sampling(self.facts, drawing),
            plan.verifying(self.facts, fixed),
            plan.graphs(self.facts),
            plan.streams(self.facts, room),
            plan.caches(self.facts, best, room),
            plan.contexts(self.facts, best, room),
        ]
        if ladder:
            planned.append(plan.ladder(self.facts, best, drawing, room))
        return [drafts, by_length, *await self._answered("the rest", planned)]

    @property
    def _room(self) -> int:
        """Tokens that a prompt may have."""
        return min(self.facts.max_context - max(TOKENS, OTHER + 1), len(self.texts.code) - OTHER)

    async def _answered(self, about: str, planned: Sequence[Planned]) -> list[Question]:
        """Measure all arms of these tables, each once a round."""
        arms = list(dict.fromkeys(arm for one in planned for arm in one.arms))
        for done, arm in enumerate(arms, 1):
            self.say(f"{about}: warming up, {done} of {len(arms)}")
            await self._run(arm, 0, WARM_UP)
        found = defaultdict[Arm, list[Run]](list)
        for number in range(self.rounds):
            # Nobody is always the first.
            first = number % len(arms)
            for done, arm in enumerate([*arms[first:], *arms[:first]], 1):
                text = f"{about}: round {number + 1} of {self.rounds}, {done} of {len(arms)}"
                self.say(f"{text}: {plan.named(arm, self.facts)}")
                found[arm].append(await self._run(arm, number, TOKENS))
        return [_question(one, found) for one in planned]

    async def _run(self, arm: Arm, number: int, tokens: int) -> Run:
        context = min(arm.context, self._room)
        code, prose = self.texts.code, self.texts.prose
        texts = [(code, prose), (prose, code)] if arm.prose else [(code, prose)]
        runs = []
        for text, following in texts:
            # Another one each time, or it would be found, and one that begins as no continuation does.
            places = len(following) - OTHER
            self._place = next(
                place
                for place in count(self._place + 1)
                if following[place % places] not in self._begun
            )
            start = self._place % places
            prompt, other = text[:context], following[start : start + OTHER]
            answer = await self.ask(
                {
                    "arm": asdict(arm),
                    "prompt": list(prompt),
                    "other": list(other),
                    "tokens": tokens,
                    "seed": number,
                }
            )
            runs.append(_run_of(answer))
            self._begun.update(one[0] for one in runs[-1].texts)
        return joined(runs)


def _run_of(answer: Json) -> Run:
    """JSON has keys of text, and lists."""
    lengths = {int(length): count for length, count in answer["lengths"].items()}
    texts = tuple(tuple(text) for text in answer["texts"])
    return Run(**(answer | {"lengths": lengths, "texts": texts}))


def _question(planned: Planned, found: Mapping[Arm, Sequence[Run]]) -> Question:
    rows = tuple(
        Row(name, arm, base, tuple(found[arm]), tuple(found[base]))
        for name, arm, base in planned.rows
    )
    return Question(planned.title, rows, planned.left_out, planned.of_prompts)


def _draws(arm: Arm) -> bool:
    return arm.source in ("model", "layers")


def _best(rows: Sequence[Row]) -> Arm:
    """That of the drafts with the most tokens a second: there is always one, which is looked up."""
    best = fastest(rows)
    assert best
    return best.arm


def _draft(name: str) -> local.LocalModel | None:
    if not name:
        return None
    try:
        return local.prepare(name)
    except ModelError as error:
        raise ModelError(f"draft.model: {error}") from error
