"""A file as whole chunks: its definitions with what belongs to them, or its blocks.

Chunks are made of whole lines; joined in their order they are the file. A definition has its comments,
attributes and decorators with it. One that is too long is divided: a class into its head and its
members, all else at blank lines and where the indentation is least.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tree_sitter import Node

from completion_ls.context import queries, trees
from completion_ls.context.words import words
from completion_ls.syntax.languages import LANGUAGES

MAX_CHUNK = 1000
"""Characters of a chunk that is used; one of more is a single long line."""
TOGETHER = 300
"""Definitions without a blank line between them stay together up to so many characters."""

_BEFORE = frozenset(
    (
        "comment",
        "line_comment",
        "block_comment",
        "attribute_item",
        "inner_attribute_item",
        "decorator",
    )
)
_AROUND = frozenset(
    ("decorated_definition", "export_statement", "template_declaration", "ambient_declaration")
)
_KINDS = frozenset(("leaf", "container", "group"))
_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class Chunk:
    """Some lines of a file, and the names that they define."""

    line: int
    """The first one's number, from 0."""
    text: str
    defines: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    """What the definitions are members of."""

    @cached_property
    def words(self) -> frozenset[str]:
        """Those of its names."""
        return frozenset(words(self.text))


@dataclass
class _Definition:
    first: int
    last: int
    """The line behind it."""
    start: int
    end: int
    """In bytes."""
    kind: str
    """`leaf`, `container` or `group`, as in the queries."""
    names: set[str]
    owners: set[str]
    members: list[_Definition] = field(default_factory=list)


def chunks_of(language: str, text: str) -> list[Chunk]:
    """The chunks of a text with LF line ends."""
    lines = _split(text)
    if not lines:
        return []
    if language not in LANGUAGES:
        return _chunks(lines, _blocks(lines, 0, len(lines)), [])
    definitions = _definitions(language, text)
    spans = _divided(lines, 0, len(lines), definitions)
    return _chunks(lines, spans, definitions)


def enclosing(language: str, text: str, line: int) -> tuple[int, int]:
    """The first line of the innermost definition around a line, and the line behind it; (line, line)
    where there is none."""
    if language not in LANGUAGES:
        return line, line
    found = _all(_definitions(language, text))
    around = [one for one in found if one.first <= line < one.last]
    inner = max(around, key=lambda one: one.first, default=None)
    return (inner.first, inner.last) if inner else (line, line)


@lru_cache(maxsize=1)  # of one text, chunks and what encloses a line are asked for in turn
def _definitions(language: str, text: str) -> Sequence[_Definition]:
    """The definitions of a file, those in functions left out."""
    found: dict[tuple[int, int], _Definition] = {}
    root = trees.parse(language, text).root_node
    for match in trees.matches(queries.definitions(language), root):
        [kind] = match.keys() & _KINDS
        [node, *_] = match[kind]
        one = found.setdefault((node.start_byte, -node.end_byte), _definition(node, kind))
        for name in match.get("name", []):
            *outer, inner = _NAME.findall(trees.text_of(name)) or [""]
            if "operator" not in outer and inner:
                one.names.add(inner)
                one.owners.update(outer)  # Type::method
        for owner in match.get("owner", []):
            one.owners.update(_NAME.findall(trees.text_of(owner)))
    top: list[_Definition] = []
    open: list[_Definition] = []
    for _, one in sorted(found.items()):
        while open and open[-1].end <= one.start:
            open.pop()
        if not open:
            top.append(one)
        elif open[-1].kind != "leaf":
            if open[-1].kind == "container":
                one.owners |= open[-1].names or open[-1].owners
            open[-1].members.append(one)
        else:
            continue
        open.append(one)
    return top


def _definition(node: Node, kind: str) -> _Definition:
    outer = node
    while outer.parent and outer.parent.type in _AROUND:
        outer = outer.parent
    first = outer.start_point.row
    before = outer.prev_sibling
    while before and before.type in _BEFORE and _end(before) >= first:
        # What stands behind the code of a line belongs to that.
        if before.prev_sibling and _end(before.prev_sibling) > before.start_point.row:
            break
        first = before.start_point.row
        before = before.prev_sibling
    return _Definition(
        first, _end(outer), node.start_byte, node.end_byte, kind, names=set(), owners=set()
    )


def _divided(
    lines: Sequence[str], first: int, last: int, definitions: Sequence[_Definition]
) -> list[tuple[int, int]]:
    """The spans of lines of the chunks between two lines."""
    spans: list[tuple[int, int]] = []
    at = first
    for one in definitions:
        start, end = max(at, one.first), min(one.last, last)
        if end <= start:
            continue
        if start > at:
            spans += _blocks(lines, at, start)
        at = _behind_blanks(lines, end, last)
        short = one.kind != "group" and _length(lines, start, at) <= MAX_CHUNK
        if short or not one.members:
            spans += _pieces(lines, start, at)
            continue
        head = max(start, one.members[0].first)
        spans += _pieces(lines, start, head) if head > start else []
        spans += _divided(lines, head, at, one.members)
    if at < last:
        spans += _blocks(lines, at, last)
    return _joined(lines, spans)


def _blocks(lines: Sequence[str], first: int, last: int) -> list[tuple[int, int]]:
    """Spans that begin behind blank lines, with a line that has the least indentation there is."""
    least = min((_indentation(line) for line in lines[first:last] if line.strip()), default=0)
    starts = [first]
    for number in range(first + 1, last):
        line = lines[number]
        if line.strip() and not lines[number - 1].strip() and _indentation(line) == least:
            starts.append(number)
    spans = zip(starts, [*starts[1:], last], strict=True)
    return [piece for start, end in spans for piece in _pieces(lines, start, end)]


def _pieces(lines: Sequence[str], first: int, last: int) -> list[tuple[int, int]]:
    """A span, divided where it is too long."""
    spans = []
    while first < last:
        length, end = 0, first
        while end < last and (length + len(lines[end]) <= MAX_CHUNK or end == first):
            length += len(lines[end])
            end += 1
        if end < last and end - first > 1:
            end = _best_cut(lines, first, end)
        spans.append((first, end))
        first = end
    return spans


def _best_cut(lines: Sequence[str], first: int, last: int) -> int:
    """Where the lines from `first` to `last` are cut, in their second half if need be: before a line
    of little indentation, behind a blank one."""

    def cost(number: int) -> tuple[int, bool, int]:
        line = lines[number]
        depth = _indentation(line) if line.strip() else len(line) + MAX_CHUNK
        return depth, bool(lines[number - 1].strip()), -number

    return min(range((first + last) // 2 + 1, last + 1), key=cost)


def _joined(lines: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Small neighbours without a blank line between them as one."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and lines[first - 1].strip() and _length(lines, joined[-1][0], last) <= TOGETHER:
            first = joined.pop()[0]
        joined.append((first, last))
    return joined


def _chunks(
    lines: Sequence[str], spans: Sequence[tuple[int, int]], definitions: Sequence[_Definition]
) -> list[Chunk]:
    """The chunks of spans that follow each other; each definition is looked at once, since a file may
    have thousands."""
    starts = [first for first, _ in spans]
    own, owners, around = ([set[str]() for _ in spans] for _ in range(3))
    for one in _all(definitions):
        behind = bisect_right(starts, one.first)
        own[behind - 1] |= one.names
        owners[behind - 1] |= one.owners
        # A piece of a long function belongs to it.
        for index in range(behind, bisect_left(starts, one.last)):
            around[index] |= one.names
    return [
        Chunk(
            first,
            "".join(lines[first:last]),
            frozenset(own[index]),
            frozenset(owners[index] - own[index] | around[index]),
        )
        for index, (first, last) in enumerate(spans)
    ]


def _all(definitions: Sequence[_Definition]) -> Iterator[_Definition]:
    for one in definitions:
        yield one
        yield from _all(one.members)


def _end(node: Node) -> int:
    """The line behind a node; one that ends with its line end is not in the next line."""
    end = node.end_point
    return end.row + (end.column > 0)


def _behind_blanks(lines: Sequence[str], line: int, last: int) -> int:
    while line < last and not lines[line].strip():
        line += 1
    return line


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _length(lines: Sequence[str], first: int, last: int) -> int:
    return sum(map(len, lines[first:last]))


def _split(text: str) -> list[str]:
    """Lines with their ends; only LF ends one."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
