"""What is asked of the library, and what it gives. Without what it needs for that, since importing all
of it takes a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from completion_ls.context.choice import Choice

MAX_LENGTH = 128 * 1024
"""Characters of a document or bytes of a file that are looked at. What is longer is mostly made by a
program."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A document of the editor, or one that was: then `text`, with LF line ends, is None, and its file is
    read."""

    file: Path
    language: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """A place in a document, and the other documents, those first that were edited or shown last."""

    file: Path
    language: str
    text: str
    """With LF line ends; of a long one what is around the cursor."""
    line: int
    others: Sequence[Opened]
    budget: int
    """In characters."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is chosen for a document: as it stands in the prompt, and as it is held."""

    repository: str = ""
    path: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Path and text."""
    choice: Choice = ()


NOTHING = Surroundings()
