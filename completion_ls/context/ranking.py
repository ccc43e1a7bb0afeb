"""Which chunks of other files say most about the place of the cursor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from completion_ls.context.chunks import MAX_CHUNK, Chunk
from completion_ls.context.languages import family
from completion_ls.context.permitted import Place
from completion_ls.context.scope import Scope
from completion_ls.syntax.languages import LANGUAGES

DEFINED = 2.0
"""For a name in use that a chunk defines, where no other chunk defines it."""
MOST_DEFINED = 3.0
"""Names of a chunk that count: a file of constants is no better than the one that is needed."""
OWNED = 0.4
"""For a name in use to which what a chunk defines belongs."""
OVERLAP = 6.0
"""For words that all are the same; some are more telling than others."""
IMPORTED = 0.2
RECENT = 0.2
"""For the document that was edited last, less for others."""
LEAST = 0.5
"""Chunks of less say nothing about the place."""


@dataclass(frozen=True)
class Source:
    """A file that may be read: where it stands, and its chunks."""

    place: Place
    language: str
    chunks: Sequence[Chunk]
    imported: bool
    """By the file of the cursor."""
    age: int
    """How many documents were edited or shown later."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A chunk and how much it says; those of the cursor's language stand before all others."""

    place: Place
    chunk: Chunk
    same_language: bool
    score: float


def rank(language: str, scope: Scope, sources: Sequence[Source]) -> list[Ranked]:
    """The chunks that say something, those first that say most. The order depends on nothing else
    than what is given."""
    usable = [
        (source, chunk) for source in sources for chunk in source.chunks if _usable(source, chunk)
    ]
    frequency = Counter(word for _, chunk in usable for word in chunk.words)
    defined = Counter(name for _, chunk in usable for name in chunk.defines)

    def rarity(word: str) -> float:
        return math.log((len(usable) + 2) / (frequency[word] + 1))

    around = sum(map(rarity, scope.words))

    def overlap(chunk: Chunk) -> float:
        common = sum(map(rarity, chunk.words & scope.words))
        return common / (around + sum(map(rarity, chunk.words)) - common) if common else 0.0

    def score(source: Source, chunk: Chunk) -> float:
        own = sum(scope.names.get(name, 0.0) / defined[name] for name in chunk.defines)
        owners = sum(scope.names.get(name, 0.0) for name in chunk.owners)
        found = DEFINED * min(own, MOST_DEFINED) + OWNED * min(owners, 1.0)
        found += OVERLAP * overlap(chunk)
        if found:
            found += IMPORTED * source.imported + RECENT / (1 + source.age)
        return found

    ranked = [
        Ranked(
            source.place,
            chunk,
            family(source.language) == family(language),
            score(source, chunk),
        )
        for source, chunk in usable
    ]
    return sorted(
        (one for one in ranked if one.score >= LEAST),
        key=lambda one: (
            not one.same_language,
            -one.score,
            one.place.folder,
            one.place.path,
            one.chunk.line,
        ),
    )


def _usable(source: Source, chunk: Chunk) -> bool:
    """Where definitions are known, imports, comments and the like are nothing without them."""
    known = source.language not in LANGUAGES or bool(chunk.defines or chunk.owners)
    return known and len(chunk.text) <= MAX_CHUNK and not chunk.text.isspace()
