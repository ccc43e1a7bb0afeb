"""Keystroke traces in the format of editing-traces: JSON, perhaps gzipped."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Patch:
    """At `position` (code points), delete `deleted` characters and insert a text."""

    position: int
    deleted: int
    inserted: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A document's history: a text, and the transactions that changed it."""

    start: str
    end: str
    transactions: tuple[tuple[Patch, ...], ...]


def read_trace(file: Path) -> Trace:
    """Read a trace. Raises ValueError (a sentence) where the file is none, and OSError."""
    data = file.read_bytes()
    try:
        value = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        return Trace(
            value["startContent"],
            value["endContent"],
            tuple(
                tuple(Patch(int(at), int(gone), str(new)) for at, gone, new in step["patches"])
                for step in value["txns"]
            ),
        )
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{file} is no keystroke trace: it must be JSON with startContent, endContent and "
            f"txns[].patches = [position, deleted, inserted] ({type(error).__name__}: {error})."
        ) from error


def apply(text: str, patches: tuple[Patch, ...]) -> str:
    """The text after a transaction; its patches apply one after the other."""
    for patch in patches:
        end = patch.position + patch.deleted
        text = text[: patch.position] + patch.inserted + text[end:]
    return text
