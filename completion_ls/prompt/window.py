"""Which lines around the cursor the model sees: a pure function of the text, and a sticky one.

The KV cache is reused up to the first changed token, so the first line of the window must not move
with every key or every Enter. It is not remembered but read off the text: some lines are natural
starts (a hash of the line says so, about one line in sixteen), and the window begins at the first
natural start that fits. So it stays where it is while one types, wherever edits happen above it,
and a fresh process that is given the same text chooses the same window.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

STARTS_ONE_IN = 16
PIECE = 256
"""A line longer than the budget is cut at a multiple of this many characters."""


def window_before(text: str, budget: int, cost: Callable[[str], int]) -> str:
    """The end of `text` (which ends at the cursor) that costs at most `budget` tokens.

    `cost` gives the tokens of one line. The last line, where the cursor stands, is always kept as
    far as it fits and does not take part in choosing the start, so typing in it moves nothing.
    """
    lines = _lines(text)
    anchored = lines[:-1]
    tail = _tail(lines[-1], budget // 2, cost)
    # The reserve keeps the start where it is while the cursor's line grows and shrinks.
    room = budget - max(cost(tail), budget // 8)
    first = len(anchored)
    while first > 0 and cost(anchored[first - 1]) <= room:
        first -= 1
        room -= cost(anchored[first])
    if first > 0:
        first = next((n for n in range(first, len(anchored)) if _natural_start(anchored[n])), first)
    return "".join(anchored[first:]) + tail


def anchor_before(text: str, limit: int, cost: Callable[[str], int], lines_above: range) -> int:
    """Where the middle begins in `text`, which ends at the cursor: at the start of a line above it.

    Of the few lines that could be it, the one with the smallest hash (of the two lines before it),
    so that the next lines mostly choose the same: it moves once in several lines, and where it will
    be on the next line is known before Enter, since the nearest that it may be, of `lines_above`, is
    two lines above the cursor's or more. The lines between it and the cursor's cost at most
    `limit` tokens, the last of them not counted. A text of a few lines is all middle.
    """
    lines = _lines(text)
    cursor = len(lines) - 1
    if cursor <= lines_above.start:
        return 0
    chosen = cursor - 1
    smallest: int | None = None
    for number in range(cursor - lines_above.start, max(0, cursor - lines_above.stop), -1):
        limit -= cost(lines[number])
        if limit < 0:
            break
        hash = zlib.crc32("".join(lines[max(0, number - 2) : number]).encode("utf-8", "replace"))
        if smallest is None or hash < smallest:
            chosen, smallest = number, hash
    return sum(map(len, lines[:chosen]))


def window_after(text: str, budget: int, cost: Callable[[str], int]) -> str:
    """Whole lines from the start of `text` (which begins at the cursor) up to `budget` tokens."""
    kept: list[str] = []
    for line in _lines(text):
        budget -= cost(line)
        if budget < 0:
            break
        kept.append(line)
    return "".join(kept)


def _lines(text: str) -> list[str]:
    """Lines with their ends; only LF counts, and the last is what stands after the last LF."""
    parts = text.split("\n")
    return [*(part + "\n" for part in parts[:-1]), parts[-1]]


def _natural_start(line: str) -> bool:
    return zlib.crc32(line.encode("utf-8", "replace")) % STARTS_ONE_IN == 0


def _tail(line: str, budget: int, cost: Callable[[str], int]) -> str:
    # A token has a few characters, so of a very long line only the end need be counted.
    start = max(0, len(line) - 16 * budget) // PIECE * PIECE
    while start < len(line) and cost(line[start:]) > budget:
        remaining = len(line) - start
        start += PIECE * max(1, remaining // (4 * PIECE)) if remaining > PIECE else PIECE // 16
    return line[start:]
