"""The unfinished word where a server speaks in texts only.

It is asked for what follows the text before the word. If that begins with the word as it was typed, all is
well: the model has split the word as it likes. If not, it is asked again, with the word as a part of its
prompt, and splits it as its tokenizer does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class Healed(Enum):
    """How far it is."""

    OPEN = auto()
    """What came is a beginning of the word."""
    YES = auto()
    """What came begins with the word."""
    NO = auto()
    """It is something else."""


@dataclass(slots=True)
class Healing:
    """The word as it was typed, and what has come so far."""

    typed: bytes
    come: bytearray = field(default_factory=bytearray)

    def add(self, text: bytes) -> Healed:
        """More has come."""
        self.come += text
        if len(self.come) < len(self.typed):
            return Healed.OPEN if self.typed.startswith(bytes(self.come)) else Healed.NO
        return Healed.YES if self.come.startswith(self.typed) else Healed.NO
