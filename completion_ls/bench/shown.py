"""What the ghost text of a session was worth: a pure look at what was shown and what came.

A text is right as far as what came next at its place (bench/future.py) begins with it. Its user is a
simple one, who waits for it, and accepts all of it where all is right, else its first line where
that is right, and nothing else. To accept costs one key. What was accepted is not accepted again, and
while it is typed in the recording, what is shown does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from completion_ls.decode.tokens import common_prefix


@dataclass(frozen=True, slots=True)
class Key:
    """The document after a key, the text that was shown at the cursor (perhaps none), and what came
    there."""

    text: str
    cursor: int
    shown: str
    came: str


@dataclass(frozen=True, slots=True)
class Worth:
    """Counts. `keys` are those at which something could be shown, `right` those where the first line
    of what was shown was right; `saved` are characters accepted, less one key for each of the
    `accepted` texts, and `typed` all keys of the session."""

    typed: int = 0
    keys: int = 0
    shown: int = 0
    right: int = 0
    characters: int = 0
    characters_right: int = 0
    lines: int = 0
    accepted: int = 0
    saved: int = 0

    def __add__(self, other: Worth) -> Worth:
        return Worth(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def saved_share(self) -> float:
        """Characters saved for each key that was typed."""
        return _share(self.saved, self.typed)

    @property
    def shown_share(self) -> float:
        """Part of the keys with something shown."""
        return _share(self.shown, self.keys)

    @property
    def precision(self) -> float:
        """Part of what was shown whose first line was right."""
        return _share(self.right, self.shown)

    @property
    def characters_precision(self) -> float:
        """Part of the characters shown that came so."""
        return _share(self.characters_right, self.characters)

    @property
    def length(self) -> float:
        """Mean characters of what was shown."""
        return _share(self.characters, self.shown)

    def utility(self, cost: float) -> float:
        """Keys spared for each one typed, where reading a wrong text costs so many."""
        return _share(self.saved - cost * (self.shown - self.right), self.typed)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("saved_share", "shown_share", "precision", "characters_precision", "length")
        return asdict(self) | {name: getattr(self, name) for name in names}


def first_line(text: str) -> str:
    """A text up to the end of its first line that is not blank."""
    body = text.lstrip("\n")
    return text[: len(text) - len(body)] + body.partition("\n")[0]


def worth(keys: Sequence[Key]) -> Worth:
    """Of a session's keys, in their order."""
    found = Worth(typed=len(keys))
    awaited = ""
    for key in keys:
        if awaited and not key.text.startswith(awaited):
            continue
        awaited = ""
        line = first_line(key.shown)
        accepted = next(
            (text for text in (key.shown, line) if len(text) > 1 and key.came.startswith(text)), ""
        )
        if accepted:
            awaited = key.text[: key.cursor] + accepted
        found += Worth(
            keys=1,
            shown=bool(key.shown),
            right=bool(key.shown) and key.came.startswith(line),
            characters=len(key.shown),
            characters_right=common_prefix(key.shown, key.came),
            lines=key.shown.count("\n") + 1 if key.shown else 0,
            accepted=bool(accepted),
            saved=max(0, len(accepted) - 1),
        )
    return found


def rows(found: Worth) -> list[tuple[str, str]]:
    """For a table."""
    return [
        (
            "would have saved",
            f"{found.saved} characters, {100 * found.saved_share:.1f} for 100 keys, by "
            f"{found.accepted} acceptances",
        ),
        (
            "shown, and right",
            f"at {_percent(found.shown_share)} of the keys, first line right {_percent(found.precision)}, "
            f"characters {_percent(found.characters_precision)}",
        ),
        (
            "length shown",
            f"{found.length:.1f} characters, {_share(found.lines, found.shown):.2f} lines",
        ),
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
