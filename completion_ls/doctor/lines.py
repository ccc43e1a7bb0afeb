"""What the doctor says: lines in groups, each ok, a remark or failed.

Failed is what keeps the engine from running as the settings have it, or is damaged; such a line says
what to do. A remark is what goes, but perhaps not as it was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from completion_ls.config.printable import printable

Verdict = Literal["ok", "remark", "failed"]


@dataclass(frozen=True, slots=True)
class Line:
    """One finding. `details` are lines of text below it, already aligned."""

    group: str
    name: str
    verdict: Verdict
    text: str
    details: tuple[str, ...] = ()


class Notes:
    """The lines of one group while they are written."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.lines: list[Line] = []

    def ok(self, name: str, text: str, details: Sequence[str] = ()) -> None:
        """It is as it should be."""
        self._write(name, "ok", text, details)

    def remark(self, name: str, text: str, details: Sequence[str] = ()) -> None:
        """It goes, but perhaps not as it was meant."""
        self._write(name, "remark", text, details)

    def failed(self, name: str, text: str, details: Sequence[str] = ()) -> None:
        """It does not go; `text` says why and what to do."""
        self._write(name, "failed", text, details)

    def _write(self, name: str, verdict: Verdict, text: str, details: Sequence[str]) -> None:
        # Of a model, a server or an editor much may come that others have written.
        said = tuple(printable(detail) for detail in details)
        self.lines.append(Line(self.group, printable(name), verdict, printable(text), said))
