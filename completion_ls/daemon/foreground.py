"""Which front the user is at: the engine serves that one first."""

from __future__ import annotations

from collections.abc import Hashable

HELD_S = 2.0


class Foreground:
    """The front where the user was seen last. Times are seconds of a monotonic clock.

    Whoever asks by hand, or whose window comes into view, is where the user is. Typing alone is less
    sure, since programs type, too: it takes over from a front where nobody has typed for `HELD_S`, and
    nobody waits.
    """

    def __init__(self) -> None:
        self.front: Hashable = None
        self._seen = float("-inf")

    def typed(self, front: Hashable, now: float, *, waited: bool) -> None:
        """A keystroke wants text; whether somebody waits at the front where the user was."""
        if front == self.front or (now - self._seen > HELD_S and not waited):
            self.came(front, now)

    def came(self, front: Hashable, now: float) -> None:
        """The user asked by hand there, or looks at it now."""
        self.front, self._seen = front, now

    def left(self, front: Hashable) -> None:
        """It has gone."""
        if front == self.front:
            self._seen = float("-inf")
