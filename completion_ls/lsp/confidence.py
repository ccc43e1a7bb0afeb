"""How sure the model is of a suggestion, and how much of it is offered unasked.

The probability of a text is the product of those of its tokens, given all that stands before: the
model's own, so it only falls while a line grows. An automatic suggestion is the longest beginning of
the model's text in which every line has a given probability at least; where the first token has less,
there is none. So text still goes out with the first token, and nothing that was shown is taken
back. It may end within its first line; further lines are offered whole or not at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

OFF = -math.inf
"""The least log probability where everything is offered, as when somebody asked by hand."""

_FIRST_LINE = re.compile(r"\s*\S[^\n]*\n")


def tokens(
    text: str, logprobs: Sequence[float], sizes: Sequence[int]
) -> Iterator[tuple[str, float]]:
    """A text in the parts that its tokens added, with their log probabilities; what none of them
    has added is certain."""
    start = 0
    for size, logprob in zip(sizes, logprobs, strict=False):
        yield text[start : start + size], logprob
        start += size
    if start < len(text):
        yield text[start:], 0.0


def line_with(line: float, raw: str, text: str, logprob: float) -> tuple[float, float]:
    """The log probability of the last line of raw text, which has that of `line`, together with
    the next token, and what of it the line has that is the last one then.

    A line end is a part of the line that it begins: whether a line goes on behind its text is no
    question of whether the text is right. Lines without text in front belong to the first one.
    """
    head, end, _ = text.partition("\n")
    if end and raw.strip() and not head.strip():
        return logprob, logprob
    whole = line + logprob
    return whole, 0.0 if end and (raw + head).strip() else whole


def whole_lines(raw: str) -> str:
    """Raw text without what there is of a line that is neither whole nor the first."""
    return raw[: raw.rfind("\n")] if _FIRST_LINE.match(raw) else raw
