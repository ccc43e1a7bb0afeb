"""Which brackets, strings and comments are open where lines begin, by the syntax tree.

A tree of unfinished code may look another way when more of it is there. So each line is read once,
when it is whole, from the tree of the text up to its end, and what was read of it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from completion_ls.syntax.languages import LANGUAGES
from completion_ls.syntax.literals import closed_by, ends_of_several_lines
from completion_ls.syntax.text import MOST, SyntaxText, tail_of

ABOVE, AT_CURSOR = -1, 0
"""Numbers of lines: those above the cursor's, and the cursor's own."""

_PAIRS = {"(": ")", "[": "]", "{": "}"}
_BRACKETS = frozenset("()[]{}")
_IN_BRACKET_TOKENS = _BRACKETS | frozenset("$|")  # `${` of a template, `[[` of an attribute
_MOST_LINES = 200


@dataclass(frozen=True, slots=True)
class Bracket:
    """An open bracket: what would close it, and the number of the line that it stands in."""

    closer: str
    line: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known where a line ends and the next one begins."""

    text: SyntaxText
    number: int
    brackets: tuple[Bracket, ...]
    """All that are open, the innermost last."""
    literal: str
    """What ends the string or comment that goes on in the next line; empty where none does."""
    continued: bool
    """A backslash at the line's end."""

    def opened_since(self, line: int) -> bool:
        """Whether a bracket is open that stands in this line or below it."""
        return any(bracket.line >= line for bracket in self.brackets)


def read(language: str, before: str, lines: tuple[str, ...]) -> Reading | None:
    """What is known behind these whole lines, of which the first goes on with the line that `before`
    ends in; without any, at the cursor. None where there is no grammar, or no telling."""
    if language not in LANGUAGES:
        return None
    tail = tail_of(before)
    if tail is None or len(lines) > _MOST_LINES:
        return None
    found = _read(language, tail, lines)
    # It may have begun amid a string: then all that was read is upside down.
    is_cut = len(tail) < len(before)
    return None if is_cut and _read(language, tail, ()).literal else found


@lru_cache(maxsize=128)
def _read(language: str, before: str, lines: tuple[str, ...]) -> Reading:
    if lines:
        return _continued(
            language, _read(language, before, lines[:-1]), lines[-1], len(lines) - 1, "\n"
        )
    border = before.rfind("\n") + 1
    nothing = Reading(SyntaxText(language, ""), ABOVE, (), "", False)
    above = _continued(language, nothing, before[:border], ABOVE, "")
    return _continued(language, above, before[border:], AT_CURSOR, "")


def _continued(language: str, above: Reading, line: str, number: int, end: str) -> Reading:
    """The reading behind one more line with its end (or behind a text of many, or at a cursor)."""
    text = above.text.extended(line + end)
    continued = line.rstrip("\r").endswith("\\")
    # Behind a brace a template may go on.
    may_change = not above.literal or above.literal[-1] in line or "}" in line
    tree, literal = text, "" if may_change else above.literal
    if may_change:
        candidates = ends_of_several_lines(language, line + "`" * ("}" in line))
        for candidate in dict.fromkeys([*candidates, *filter(None, [above.literal])]):
            if found := closed_by(text, candidate):
                tree, literal = found[0], candidate
                break
    brackets = list(above.brackets)
    if may_change:
        start = above.text.byte_of(len(above.text.text))
        for token in _tokens(tree.root, start, text.byte_of(len(text.text))):
            if token in _PAIRS:
                brackets.append(Bracket(_PAIRS[token], number))
            else:
                _close(brackets, token)
    return Reading(text, number, tuple(brackets), literal, continued)


def closed_below(language: str, after: str) -> int | None:
    """How many brackets the text from a cursor on closes that it does not open; None where it is
    too long to tell."""
    return _closed_below(language, after) if len(after) <= MOST else None


@lru_cache(maxsize=8)
def _closed_below(language: str, after: str) -> int:
    text = SyntaxText(language, after)
    brackets: list[Bracket] = []
    count = 0
    for token in _tokens(text.root, 0, text.byte_of(len(after))):
        if token in _PAIRS:
            brackets.append(Bracket(_PAIRS[token], AT_CURSOR))
        else:
            count += not _close(brackets, token)
    return count


def _close(brackets: list[Bracket], closer: str) -> bool:
    """Take away the bracket that this closes, with what was left open in it. A brace may leave
    anything open, the others no brace."""
    for index in range(len(brackets) - 1, -1, -1):
        if brackets[index].closer == closer:
            del brackets[index:]
            return True
        if brackets[index].closer == "}":
            return False
    return False


def _tokens(root: Node, start: int, end: int) -> Iterator[str]:
    """The brackets of a stretch of bytes, in order; those of strings and comments are none."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.end_byte <= start or node.start_byte >= end:
            continue
        if node.child_count:
            waiting += reversed(node.children)
        elif node.start_byte >= start and not (node.is_named or node.is_missing):
            yield from _brackets(node.type)


def _brackets(token: str) -> Iterator[str]:
    if _IN_BRACKET_TOKENS.issuperset(token):
        yield from (character for character in token if character in _BRACKETS)
