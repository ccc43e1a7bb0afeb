"""Which chunks stand in the prompt: whole ones, in a stable order, and the same for long.

They stand in front of everything, so each change of them costs the whole prompt. What was chosen
stays, unless what would be chosen now is clearly better for the place where the cursor is now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from completion_ls.context.chunks import Chunk
from completion_ls.context.permitted import Place
from completion_ls.context.ranking import Ranked

CLEARLY = 1.4
"""So many times better it must be."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chunk in the prompt."""

    place: Place
    chunk: Chunk


Choice = tuple[Chosen, ...]
"""By file and line."""


def choose(ranked: Sequence[Ranked], budget: int, held: Choice) -> Choice:
    """The chunks for so many characters, with the names of their files; `held` where nothing is
    clearly better."""
    best = _best(ranked, budget)
    scores = {_key(one): one.score for one in ranked}
    if held and _size(held) <= budget:
        kept = sum(scores.get(_key(one), 0.0) for one in held)
        if sum(scores[_key(one)] for one in best) < CLEARLY * kept or not best:
            return held
    return best


def _best(ranked: Sequence[Ranked], budget: int) -> Choice:
    chosen: list[Chosen] = []
    for one in ranked:
        taken = [*chosen, Chosen(one.place, one.chunk)]
        if _size(taken) <= budget:
            chosen = taken
    return tuple(sorted(chosen, key=lambda one: (*_order(one.place), one.chunk.line)))


def _size(chosen: Sequence[Chosen]) -> int:
    places = {one.place for one in chosen}
    return sum(len(one.chunk.text) + 1 for one in chosen) + sum(
        len(place.path) + 1 for place in places
    )


def _key(one: Chosen | Ranked) -> tuple[Place, str]:
    """What makes a chunk the same: it may have moved in its file."""
    return one.place, one.chunk.text


def _order(place: Place) -> tuple[int, str]:
    return place.folder, place.path
