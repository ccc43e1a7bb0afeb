"""What is around the cursor: the names in use there, and the words that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from completion_ls.context.chunks import Chunk, chunks_of, enclosing
from completion_ls.context.imports import Import
from completion_ls.context.words import names, words

ABOVE, BELOW = 30, 10
"""Lines that count as near."""
CLOSE = 8
"""Lines above the cursor whose names are the likeliest to come again."""
LONGEST = 150
"""Lines of the definition around the cursor that are looked at."""
CLOSE_WEIGHT, SCOPE_WEIGHT, IMPORT_WEIGHT = 1.5, 1.0, 0.6


@dataclass(frozen=True, slots=True)
class Scope:
    """Names that are not defined in the file itself, each with a weight, and words."""

    names: Mapping[str, float]
    words: frozenset[str]


def scope_of(language: str, text: str, line: int, imports: Sequence[Import]) -> Scope:
    """What is around a line of a text."""
    lines = text.split("\n")
    first, last = enclosing(language, text, line)
    first, last = max(first, line - LONGEST), min(last, line + LONGEST)
    near = "\n".join(lines[max(0, line - ABOVE) : line + BELOW])
    close = "\n".join(lines[max(0, line - CLOSE) : line + 1])
    weights = {name: IMPORT_WEIGHT for one in imports for name in one.names}
    imported = frozenset(weights)
    weights |= dict.fromkeys(names(near) | names("\n".join(lines[first:last])), SCOPE_WEIGHT)
    weights |= dict.fromkeys(names(close), CLOSE_WEIGHT)
    for name in _defined(chunks_of(language, text)) - imported:
        weights.pop(name, None)
    return Scope(weights, frozenset(words(near)))


def _defined(chunks: Sequence[Chunk]) -> set[str]:
    return {name for chunk in chunks for name in chunk.defines}
