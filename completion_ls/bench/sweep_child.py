"""The engine of a sweep, in a process of its own: it is loaded once, and each question names an arm,
the way in which it is to run this time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from completion_ls.bench.child import Json, serve
from completion_ls.bench.own_engine import GREEDY, generate
from completion_ls.bench.sweep_drafts import ArmDrafts
from completion_ls.bench.sweep_figures import Arm, Run
from completion_ls.bench.sweep_plan import Facts
from completion_ls.config.settings import EngineSettings
from completion_ls.daemon.load import calm_openmp
from completion_ls.engines.contract import Engine, Sampling
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.exl2 import checks

TEMPERATURE, TOP_P = 0.6, 0.9


class DraftingEngine(Engine, Protocol):
    """An engine whose drafts may be exchanged."""

    drafts: Drafts | None


class Subject(Protocol):
    """What a library has for a sweep."""

    facts: Facts

    def engine(self, arm: Arm) -> AbstractContextManager[DraftingEngine]:
        """The engine, running as the arm wants it but for its drafts."""

    def drafts(self, arm: Arm) -> ArmDrafts:
        """New ones, from the arm's source."""


def start(
    what: Json, card: Callable[[], checks.Card] = checks.find_card
) -> tuple[Json, Callable[[Json], Json]]:
    """Load the engine of `EngineSettings`, and the draft model where a folder is named."""
    settings = EngineSettings.model_validate(what["engine"])
    folder = Path(what["folder"])
    draft_folder = Path(what["draft_folder"]) if what["draft_folder"] else None
    calm_openmp()
    subject: Subject
    if settings.kind == "exllamav2":
        from completion_ls.bench.sweep_exl2 import Exl2Subject

        subject = Exl2Subject(folder, draft_folder, settings, card)
    else:
        from completion_ls.bench.sweep_torch import TorchSubject

        subject = TorchSubject(folder, draft_folder, settings)
    kept: dict[Arm, ArmDrafts] = {}

    def answer(question: Json) -> Json:
        arm = Arm(**question["arm"])
        drafts = None
        if arm.source != "none":
            # Kept, so that what is learnt stays learnt.
            drafts = kept.get(arm) or subject.drafts(arm)
            kept[arm] = drafts
        sampling = Sampling(TEMPERATURE, TOP_P, 0, question["seed"]) if arm.sampled else GREEDY
        with subject.engine(arm) as engine:
            prompt = tuple(question["prompt"])
            return asdict(
                run(engine, arm, drafts, prompt, question["other"], question["tokens"], sampling)
            )

    return asdict(subject.facts), answer


def run(
    engine: DraftingEngine,
    arm: Arm,
    drafts: ArmDrafts | None,
    prompt: tuple[int, ...],
    other: Sequence[int],
    tokens: int,
    sampling: Sampling,
) -> Run:
    """One continuation of so many tokens. `other` tokens, not those of the run before, are put behind the
    prompt first: they take the place of what an earlier run has left there, which is not to be found
    again, while the prompt is."""
    if not arm.fresh:
        generate(engine, (*prompt, *other), 1, fresh=False)
    engine.drafts = drafts
    if drafts:
        drafts.begin()
    try:
        done = generate(engine, prompt, tokens, sampling, fresh=arm.fresh)
    finally:
        engine.drafts = None
    return Run(
        rest=len(done["tokens"]) - done["first"],
        seconds=sum(done["steps_s"]),
        passes=done["rest_passes"],
        first_s=done["first_s"],
        draft_s=drafts.seconds if drafts else 0.0,
        checked=drafts.checked if drafts else 0,
        accepted=drafts.accepted if drafts else 0,
        lengths=dict(drafts.lengths) if drafts else {},
        texts=(tuple(done["tokens"]),),
    )


if __name__ == "__main__":
    sys.exit(serve(start))
