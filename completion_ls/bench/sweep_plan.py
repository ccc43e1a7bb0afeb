"""Which arms a sweep has, by what the engine can do; what it cannot is left out, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, get_args

from completion_ls.bench.sweep_figures import Arm
from completion_ls.engines.vram import CacheType

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
FIXED = 4
"""The length of drafts where it is not what is asked about."""
CONTEXTS = (512, 2048, 8192)
TORCH, EXLLAMAV2 = "torch_cpu", "exllamav2"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine that was loaded can do. `layers` are those of a model whose first ones can guess,
    else 0; `weights` the form that they have, `kv_caches` the types that fit into the card's memory.
    `is_meaningful` says whether times mean anything, which they do not on reference kernels."""

    kind: str
    max_context: int
    threads: int
    most: int
    layers: int = 0
    has_model: bool = False
    weights: str = ""
    has_room: bool = False
    """For float32 weights."""
    kv_cache: str = ""
    kv_caches: Sequence[str] = ()
    has_streams: bool = False
    is_meaningful: bool = True


@dataclass(frozen=True, slots=True)
class Planned:
    """One table to be: names of rows and their arms, each with the one that it is compared with."""

    title: str
    rows: tuple[tuple[str, Arm, Arm], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    of_prompts: bool = False

    @classmethod
    def against_plain(
        cls,
        title: str,
        rows: Sequence[tuple[str, Arm]],
        left_out: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """Each row is compared with the same without drafts."""
        return cls(title, tuple((name, arm, arm.plain) for name, arm in rows), tuple(left_out))

    @property
    def arms(self) -> Iterator[Arm]:
        """All that must be measured."""
        for _, arm, base in self.rows:
            yield base
            yield arm


def named(arm: Arm, facts: Facts) -> str:
    """Where an arm's drafts come from, and how long they are; where that is not fixed, as learnt."""
    if arm.source == "none":
        return "none"
    source = {
        "lookup": "looked up",
        "model": "draft.model",
        "layers": f"first {arm.layers} of {facts.layers} layers",
    }[arm.source]
    return f"{source}, {arm.length or 'learnt'}"


def sources(facts: Facts) -> Planned:
    """Each candidate draft."""
    arms = [Arm(), Arm("lookup"), Arm("lookup", FIXED)]
    left_out = []
    if facts.has_model:
        arms += [Arm("model"), Arm("model", FIXED)]
    else:
        left_out.append(("draft.model", "The settings name none."))
    if facts.layers > 2:
        counts = sorted({facts.layers // 2, facts.layers - 2})
        arms += [Arm("layers", FIXED, layers) for layers in counts]
    else:
        who = EXLLAMAV2 if facts.kind == EXLLAMAV2 else "transformers"
        left_out.append(("first layers of the model", f"{who} computes the model as a whole."))
    rows = [(named(arm, facts), arm) for arm in arms]
    return Planned.against_plain("Drafts", rows, left_out)


def lengths(facts: Facts, best: Arm) -> Planned:
    """Lengths of the drafts of the best source."""
    counts = sorted({*(count for count in LENGTHS if count <= facts.most), facts.most})
    arms = [best.plain, *(replace(best, length=count) for count in counts), replace(best, length=0)]
    why = f"A pass of {facts.kind} checks {facts.most} draft tokens at most."
    return Planned.against_plain(
        f"Draft length ({named(best, facts).partition(',')[0]})",
        [(named(arm, facts).rpartition(", ")[2], arm) for arm in arms],
        [(str(count), why) for count in LENGTHS if count > facts.most],
    )


def sampling(facts: Facts, drawing: Arm | None) -> Planned:
    """Draws of a draft model with the target's noise or with other noise."""
    title = "Sampling (temperature 0.6, top-p 0.9"
    if drawing is None:
        why = "The only drafts here are looked up, and draw nothing."
        return Planned(f"{title})", (), (("aligned or independent", why),))
    plain = Arm(sampled=True)
    aligned = replace(drawing, sampled=True)
    rows = [
        ("none", plain),
        ("independent", replace(aligned, own_noise=True)),
        ("aligned", aligned),
    ]
    return Planned.against_plain(f"{title}; {named(drawing, facts)})", rows)


def verifying(facts: Facts, best: Arm) -> Planned:
    """All positions of a draft checked in one pass, or each in its own."""
    rows = [
        ("none", best.plain),
        ("one by one", replace(best, split=True)),
        ("one pass", best),
    ]
    return Planned.against_plain(f"Verifying ({named(best, facts)})", rows)


def graphs(facts: Facts) -> Planned:
    """CUDA graphs."""
    why = "There are none without a card."
    if facts.kind == EXLLAMAV2:
        why = (
            "exllamav2 chooses when it loads a model, and there is no room for two; "
            "scripts/gpu_check.sh measures passes with and without."
        )
    return Planned("CUDA graphs", (), (("on or off", why),))


def streams(facts: Facts, room: int) -> Planned:
    """The draft model's part of a prompt on a stream of its own."""
    title, name = "Prefill stream", "on or off"
    if facts.kind != EXLLAMAV2:
        return Planned(title, (), ((name, f"{facts.kind} has none."),))
    if not facts.has_model:
        return Planned(title, (), ((name, "It is for a draft model, and draft.model names none."),))
    if not facts.has_streams:
        return Planned(title, (), ((name, "There are no streams without a card."),))
    context = min(CONTEXTS[1], room)
    off = Arm("model", FIXED, fresh=True, context=context, prose=False)
    rows = ("off", off, off), ("on", replace(off, stream=True), off)
    return Planned(title, rows, of_prompts=True)


def caches(facts: Facts, best: Arm, room: int) -> Planned:
    """How keys and values are kept."""
    if facts.kind != EXLLAMAV2:
        why = (
            f"{facts.kind} keeps keys and values in one way: in eight bits where its passes run on "
            "compiled code, else in float32."
        )
        return Planned("KV cache", (), (("other types", why),))
    every: tuple[CacheType, ...] = get_args(CacheType)
    there = [kind for kind in every if kind in facts.kv_caches]
    long = replace(best, context=min(CONTEXTS[1], room), prose=False)
    rows = []
    for kind in there:
        arm = replace(long, kv_cache="" if kind == facts.kv_cache else kind)
        rows += [(f"{kind}, none", arm.plain), (f"{kind}, drafts", arm)]
    why = "It does not fit into the memory of the card."
    missing = [(kind, why) for kind in every if kind not in there]
    title = f"KV cache (behind {long.context:,} tokens of code; {named(best, facts)})"
    return Planned.against_plain(title, rows, missing)


def contexts(facts: Facts, best: Arm, room: int) -> Planned:
    """Behind few tokens and behind many; `room` is the most that there can be."""
    rows, left_out, before = [], [], 0
    for wanted in CONTEXTS:
        context = min(wanted, room)
        if context == before:
            why = f"The engine has room for {room:,} tokens and what comes behind them."
            left_out.append((f"{wanted:,} tokens", why))
            continue
        before = context
        arm = replace(best, context=context, prose=False)
        rows += [
            (f"{context:,} tokens, none", arm.plain),
            (f"{context:,} tokens, drafts", arm),
        ]
    return Planned.against_plain(f"Context (code; {named(best, facts)})", rows, left_out)


def ladder(facts: Facts, best: Arm, drawing: Arm | None, room: int) -> Planned:
    """The stages of one machine, each against the first."""
    stages: list[tuple[str, Arm]] = []
    left_out: list[tuple[str, str]] = []
    naive = "float32 weights"
    if facts.kind == EXLLAMAV2:
        why = "What does not fit into the memory of the card is refused."
        left_out.append(("weights that spill", why))
    elif facts.weights == "float32":
        stages.append((naive, Arm()))
        left_out.append(
            ("fewer bits", "engine.weights is float32, or the model has no other form.")
        )
    elif facts.has_room:
        stages.append((naive, Arm(weights="float32")))
    else:
        left_out.append((naive, "There is no memory for them beside the others."))
    if facts.weights != "float32":
        what = f"{facts.weights} weights" if facts.weights else "weights on the card"
        stages.append((what, Arm()))
    if best != Arm("lookup"):
        stages.append((named(Arm("lookup"), facts), Arm("lookup")))
    stages.append((f"best draft: {named(best, facts)}", best))
    if drawing:
        aligned = replace(drawing, sampled=True)
        name = named(drawing, facts)
        stages.append((f"{name}, temperature 0.6, independent", replace(aligned, own_noise=True)))
        stages.append((f"{name}, temperature 0.6, aligned", aligned))
    else:
        left_out.append(("aligned draws", "The drafts here are looked up, and draw nothing."))
    for planned in (graphs(facts), streams(facts, room)):
        reason = planned.left_out[0][1] if planned.left_out else "It is about first tokens: above."
        left_out.append((planned.title, reason))
    long = replace(best, context=min(CONTEXTS[-1], room), prose=False)
    stages.append((f"best draft behind {long.context:,} tokens", long))
    first = stages[0][1]
    return Planned("Stages", tuple((name, arm, first) for name, arm in stages), tuple(left_out))
