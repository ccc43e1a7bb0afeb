"""The figures of the engine on exllamav2 on a card: one table for all parts of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rich.table import Table

TIE = 0.125
"""Two tokens whose logits are no further apart may change places from one width of a pass to another:
eight steps of float16, as far apart as these are from 16 to 32, where logits are."""
EQUAL, DIFFERENT = "equal", "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    key: str
    text: str
    value: float
    unit: str
    note: str = ""


@dataclass(slots=True)
class Part:
    """What one process has measured. `problems` are sentences, and make the whole incomplete."""

    rows: list[Row] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    """Where texts with and without drafts parted: how far the two tokens' logits were apart."""
    added: Callable[[Part], None] | None = None
    """Hears of each row: what was found is not to be lost with the process."""

    def add(self, key: str, text: str, value: float, unit: str, note: str = "") -> None:
        """One more row."""
        self.rows.append(Row(key, text, value, unit, note))
        if not math.isfinite(value):
            self.problems.append(f"The figure of {text!r} is {value}.")
        if self.added:
            self.added(self)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "machine": self.machine,
            "problems": self.problems,
            "differences": self.differences,
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From `as_dict`."""
        return cls(**{**values, "rows": [Row(**row) for row in values["rows"]]})


def joined(parts: Iterable[Part]) -> Part:
    """All parts as one."""
    whole = Part()
    for part in parts:
        whole.rows += part.rows
        whole.machine |= part.machine
        whole.problems += part.problems
        whole.differences += part.differences
    return whole


def verdict(part: Part) -> str:
    """Whether drafts left the text as it was; empty where that was not measured."""
    if not any(row.key == "compared_tokens" for row in part.rows):
        return ""
    if any(not gap <= TIE for gap in part.differences):  # what is no number is no tie
        return DIFFERENT
    ties = len(part.differences)
    return f"equal up to {ties} tie{'s' * (ties > 1)}" if ties else EQUAL


def exit_status(part: Part) -> int:
    """0 where all was measured and is right, 1 where drafts change the text, 3 where something is
    missing."""
    if verdict(part) == DIFFERENT:
        return 1
    return 3 if part.problems else 0


def table(part: Part, *, title: str) -> Table:
    """For people."""
    made = Table("what", "figure", "unit", "note", title=title, title_justify="left")
    made.columns[1].justify = "right"
    for row in part.rows:
        made.add_row(row.text, shown(row.value), row.unit, row.note)
    return made


def shown(value: float) -> str:
    """Three figures, and all of a larger number."""
    if not math.isfinite(value):
        return str(value)
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def lines(part: Part) -> Iterator[str]:
    """What stands below the table."""
    if part.machine:
        yield ", ".join(f"{name} {value}" for name, value in part.machine.items())
    if outcome := verdict(part):
        gaps = ", ".join(f"{gap:.3f}" for gap in part.differences)
        where = f" (logits apart where they part: {gaps})" if gaps else ""
        yield f"The text with drafts, beside that without: {outcome}{where}. A tie is {TIE} at most."
    yield from part.problems


def differences(
    plain: Sequence[int],
    drafted: Callable[[int], Sequence[int]],
    gap: Callable[[int, int], float],
) -> list[float]:
    """Where a text is another one with drafts, of the whole text: after each difference it goes on behind
    the plain text. `drafted` continues the first so many tokens of that; `gap` says how far a token's
    logit is below the highest one at a place. Ends at the first that is no tie."""
    found: list[float] = []
    start = 0
    while start < len(plain):
        other = drafted(start)
        place = next(
            (at for at, token in enumerate(plain[start:]) if [token] != list(other[at : at + 1])),
            None,
        )
        if place is None:
            break
        at, start = start + place, start + place + 1
        if place >= len(other):
            return [*found, math.inf]
        found.append(max(gap(at, plain[at]), gap(at, other[place])))
        if not found[-1] <= TIE:
            break
    return found
