"""Keystroke traces in the format of editing-traces: JSON, perhaps gzipped."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Patch:
    """At `position` (code points), delete `deleted` characters and insert a text."""

    position: int
    deleted: int
    inserted: str

    @property
    def end(self) -> int:
        """Where the cursor is afterwards."""
        return self.position + len(self.inserted)


MOST_LATER = 200
"""So many transactions behind a key say what came at its place."""

Transaction = tuple[Patch, ...]
"""What one keystroke changed: mostly one patch; several where there are several cursors."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A document's history: a text, and the transactions that changed it, with the time of each in
    seconds since the epoch (None where the recording has none)."""

    start: str
    end: str
    transactions: tuple[Transaction, ...]
    times: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace: the text it begins with, the cursor in it (code points), and what is typed.
    `gaps_s[n]` is the time from keystroke n to the next one, in seconds."""

    text: str
    cursor: int
    transactions: tuple[Transaction, ...]
    gaps_s: tuple[float, ...]
    first: int
    later: tuple[Transaction, ...] = ()
    """What follows in the trace, as far as it can matter for what is shown in the stretch."""


def read_trace(file: Path) -> Trace:
    """Read a trace. Raises ValueError (a sentence) where the file is none, and OSError."""
    if not file.is_file():
        raise ValueError(f"There is no trace {file}.")
    data = file.read_bytes()
    try:
        value = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        steps = value["txns"]
        return Trace(
            _text(value["startContent"]),
            _text(value["endContent"]),
            tuple(
                tuple(Patch(int(at), int(gone), _text(new)) for at, gone, new in step["patches"])
                for step in steps
            ),
            tuple(_seconds(step.get("time")) for step in steps),
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{file} is no keystroke trace: it must be JSON with startContent, endContent and "
            f"txns[].patches = [position, deleted, inserted] ({type(error).__name__}: {error})."
        ) from error


def apply(text: str, patches: Transaction) -> str:
    """The text after a transaction; its patches apply one after the other. Raises ValueError where
    one lies outside the text."""
    for patch in patches:
        end = patch.position + patch.deleted
        if patch.position < 0 or patch.deleted < 0 or end > len(text):
            raise ValueError(
                f"The trace changes characters {patch.position} to {end} of a text that has "
                f"{len(text)}; it is damaged."
            )
        text = text[: patch.position] + patch.inserted + text[end:]
    return text


def cut(trace: Trace, *, start: int, keystrokes: int, gaps_s: Sequence[float]) -> Stretch:
    """The stretch of `keystrokes` transactions from number `start` on; `gaps_s` are those of the
    whole trace. Raises ValueError where there is nothing to type.

    In a trace that begins with no text, the first transaction inserts the text that the recording
    began with; it is never a part of the stretch.
    """
    start = max(start, 0 if trace.start else 1)
    end = min(len(trace.transactions), start + keystrokes)
    chosen = trace.transactions[start:end]
    if not any(chosen):
        raise ValueError(
            f"There is nothing to type: the trace has {len(trace.transactions)} transactions, and "
            f"{max(0, keystrokes)} from number {start} on were asked for."
        )
    text = trace.start
    for transaction in trace.transactions[:start]:
        text = apply(text, transaction)
    after = text
    for transaction in chosen:
        after = apply(after, transaction)  # now, rather than in the midst of the typing
    first = next(transaction for transaction in chosen if transaction)[0]
    later = trace.transactions[end : end + MOST_LATER]
    cursor = first.position + first.deleted
    return Stretch(text, cursor, chosen, tuple(gaps_s[start:end]), start, later)


def recorded_gaps(times: Sequence[float | None], *, most_s: float) -> list[float]:
    """From each transaction to the next as they were recorded, in seconds, at most `most_s`; 0 after
    the last. Where the recording has whole seconds only, transactions of one second share it evenly.
    Raises ValueError where times are missing."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        raise ValueError("The trace has no recorded times; give --gap-ms instead.")
    if all(time.is_integer() for time in known):
        groups = (list(group) for _, group in itertools.groupby(known))
        known = [time + n / len(group) for group in groups for n, time in enumerate(group)]
    gaps = [min(most_s, max(0.0, after - before)) for before, after in itertools.pairwise(known)]
    return [*gaps, 0.0] if known else []


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} stands where a text should")
    return value


def _seconds(time: object) -> float | None:
    return datetime.fromisoformat(_text(time)).timestamp() if time else None
