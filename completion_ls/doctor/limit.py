"""No look may hang: a driver, a disk or a program that does not answer is a finding itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from completion_ls.doctor.lines import Line, Notes

T = TypeVar("T")


def within(seconds: float, group: str, look: Callable[[Notes], T]) -> tuple[T | None, list[Line]]:
    """What `look` finds and the lines that it writes. Where it takes longer, or fails in a way that
    nobody has foreseen, there is no more than the lines so far and one that says so."""
    notes = Notes(group)
    found: list[T] = []
    broken: list[BaseException] = []

    def run() -> None:
        try:
            found.append(look(notes))
        except Exception as error:
            broken.append(error)

    # A daemon thread: one that hangs in the system must not keep this process.
    thread = threading.Thread(target=run, name=f"doctor: {group}", daemon=True)
    thread.start()
    thread.join(seconds)
    lines = list(notes.lines)
    if thread.is_alive():
        return None, [*lines, _failed(group, _late(group, seconds))]
    if broken:
        return None, [*lines, _failed(group, _odd(group, broken[0]))]
    return found[0], lines


def _failed(group: str, text: str) -> Line:
    return Line(group, "looking", "failed", text)


def _late(group: str, seconds: float) -> str:
    return (
        f"The look at {group} did not end within {seconds:g} s: a disk, a driver or another program "
        "does not answer. Try again; if it stays so, restart the machine."
    )


def _odd(group: str, error: BaseException) -> str:
    return (
        f"The look at {group} failed by itself ({type(error).__name__}: {error}). Please report that "
        "to the makers of completion-ls, with this line."
    )
