"""What a text says again: lines and parts of lines in a loop, and what stands below it already.

While a text grows, what may turn out to be a repetition is held back, so that nothing that was
offered is ever taken away again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PERIODS = (1, 2, 3)
"""Lines of one round of a loop."""
_MOST_UNIT = 12
"""Characters of one round of a loop within a line."""
_ROUNDS = 12
_LOOP = 60
"""Within a line, so many rounds and characters are a loop that will not end."""
_CUT_ROUNDS = 6
"""And so many where the text was cut amid of them."""
_KEPT_ROUNDS, _KEPT = 3, 6
"""Rounds and characters that are left of such a loop."""
_RULER, _KEPT_RULER = 120, 80
"""Rulers, of signs only, are made to be long."""
_LONG = 30
"""Letters and digits of a line that hardly anybody writes twice."""
_TELLING = 16
"""The same of two lines together."""
_ENDINGS = re.compile(r"\s*(?:return|break|continue|pass|else|end|raise|yield)\b")


def sure_loop(text: str) -> int | None:
    """Where it is sure that a text goes in circles; more text does not change that."""
    ends = [sure_loop_in_line(text)]
    lines = text.split("\n")
    if loop := _loop(lines[:-1]):
        ends.append(sum(len(line) + 1 for line in lines[: loop.sure + 1]) - 1)
    return min((end for end in ends if end is not None), default=None)


def sure_loop_in_line(text: str) -> int | None:
    """The same, for a line that repeats a part of itself."""
    ends = [
        found.start() + unit * rounds
        for unit, rounds, pattern in _ENDLESS
        if (found := pattern.search(text))
    ]
    return min(ends, default=None)


def _endless(start: str, most: int, least: int) -> list[tuple[int, int, re.Pattern[str]]]:
    found = []
    for unit in range(1, most + 1):
        rounds = max(_ROUNDS, -(-least // unit))
        pattern = rf"(?=.{{0,{unit - 1}}}{start})(.{{{unit}}})\1{{{rounds - 1}}}"
        found.append((unit, rounds, re.compile(pattern)))
    return found


_ENDLESS = [*_endless(r"[^\W_]", _MOST_UNIT, _LOOP), *_endless(r"\S", 2, _RULER)]


def unending(line: str, *, finished: bool) -> int | None:
    """How much is offered of a line that breaks off amid a repetition; None where it does not.

    In a text that still grows, any repetition may be one without an end. In one that had to end only
    a long one is.
    """
    indent = len(line) - len(line.lstrip())
    kept = []
    for unit in range(1, _MOST_UNIT + 1):
        start = len(line) - unit
        while start > indent and line[start - 1] == line[start - 1 + unit]:
            start -= 1
        size, part = len(line) - start, line[start : start + unit]
        if start < indent or not part.strip():
            continue
        if any(character.isalnum() for character in part):
            sure, left = _LOOP, max(_KEPT_ROUNDS * unit, -(-_KEPT // unit) * unit)
        else:
            sure, left = _RULER, -(-_KEPT_RULER // unit) * unit
        is_loop = size >= _CUT_ROUNDS * unit if sure == _LOOP else size > sure - unit
        if size > left and (not finished or is_loop):
            kept.append(start + left)
    return min(kept, default=None)


@dataclass(frozen=True)
class _Loop:
    """The line with which the second round begins, and that with which it is sure."""

    second: int
    sure: int


def _loop(lines: Sequence[str]) -> _Loop | None:
    """The first loop of whole lines: three equal ones, or a period of two or three lines twice and
    its beginning once more."""
    found = []
    for period in _PERIODS:
        run = 0
        for number in range(period, len(lines)):
            run = run + 1 if lines[number] == lines[number - period] else 0
            if run > period and _say_something(lines[number - period + 1 : number + 1]):
                found.append(_Loop(number - run + 1, number))
                break
    return min(found, key=lambda loop: loop.sure, default=None)


def without_loop(lines: list[str], finished: bool) -> list[str]:
    """One round of a loop of lines, and nothing behind it; where the last line may still grow, also
    without what may become such a loop."""
    if loop := _loop(lines if finished else lines[:-1]):
        return lines[: loop.second]
    if finished:
        return lines
    kept = len(lines)
    for period in _PERIODS:
        number = len(lines) - 1
        if number < period or not lines[number - period].startswith(lines[number]):
            continue
        while number > period and lines[number - 1] == lines[number - 1 - period]:
            number -= 1
        if _say_something(lines[number - period : number]):
            kept = min(kept, number)
    return lines[:kept]


def _say_something(lines: Sequence[str]) -> bool:
    return any(map(_says, lines))


def without_far_below(
    lines: list[str], first: int, below: Sequence[str], before: str, finished: bool
) -> list[str]:
    """Up to where lines, from the number `first` on, begin to repeat what stands further below.

    That are a long line, or two that stand together, at the level of the first of `below`, the lines
    of the same block without blank ones. What stands above as well is a pattern, not a repetition.
    """
    level = {line for line in below if _indent(line) == _indent(below[0])}
    above = "\n" + before
    for number in range(first, len(lines)):
        line = lines[number]
        grows = not finished and number == len(lines) - 1
        rest = [one for one in lines[number + 1 :] if one.strip()]
        for place, known in enumerate(below):
            same = known.startswith(line) if grows else known == line
            if place == 0 or known not in level or not same or f"\n{known}\n" in above:
                continue
            if _is_long(known) and below.count(known) == 1:
                return lines[:number]
            after = below[place + 1] if place + 1 < len(below) else ""
            if not after or _letters(known) + _letters(after) < _TELLING:
                continue
            if not (_says(known) and _says(after)):
                continue
            if line != known:
                return lines[:number]  # it may become that
            following = rest[0] if rest else ""
            may_grow = not finished and len(rest) < 2
            if following == after or (may_grow and after.startswith(following)):
                return lines[:number]
    return lines


def _is_long(line: str) -> bool:
    return _letters(line) >= _LONG and not _ENDINGS.match(line)


def _says(line: str) -> bool:
    return any(character.isalpha() for character in line)


def _letters(line: str) -> int:
    return sum(character.isalnum() for character in line)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
