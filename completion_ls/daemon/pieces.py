"""What each token of an event adds to a text, and how probable it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.engines.contract import Event


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, perhaps none, and the natural-log probability of the token that added it, given all that
    stands before it."""

    text: str
    logprob: float


def pieces(event: Event, text: Detokenizer) -> list[Piece]:
    """Those of an event. The tokens that take the place of an unfinished word are one piece: what
    they spell beyond what was typed."""
    found = [text.add((token,)) for token in event.tokens]
    tail = text.add((), last=True) if event.finish is not None else ""
    logprobs: Sequence[float] = event.logprobs
    if event.typed_logprob is not None and found:
        found = ["".join(found)]
        # The typed rest may be probable in more ways than were looked into.
        logprobs = [min(0.0, sum(event.logprobs) - event.typed_logprob)]
    if tail:  # half a character
        found[-1:] = [found[-1] + tail] if found else [tail]
        logprobs = logprobs or [0.0]
    return [Piece(*one) for one in zip(found, logprobs, strict=True)]


def cut(found: Sequence[Piece]) -> list[Piece]:
    """Up to the first line end."""
    number = next(n for n, piece in enumerate(found) if "\n" in piece.text)
    last = found[number]
    return [*found[:number], Piece(last.text[: last.text.index("\n") + 1], last.logprob)]
