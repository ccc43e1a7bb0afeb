"""A text with its syntax tree, which can be continued without parsing it again."""

from __future__ import annotations

import re
from copy import copy

from tree_sitter import Node, Point, Tree

from completion_ls.syntax.languages import parser

MOST = 8000
"""Characters that are read on each side of a cursor: a few milliseconds of work."""

_AT_TOP = re.compile(r"^[^\W\d]", re.MULTILINE)


class SyntaxText:
    """A text in a language that has a grammar. Its tree is there for broken text, too: what cannot
    be read stands in ERROR nodes, and what is missing in nodes of no width.

    Nodes count bytes of UTF-8; `byte_of` leads there from code points.
    """

    def __init__(self, language: str, text: str) -> None:
        self._parser = parser(language)
        self.text = text
        self._bytes = _encoded(text)
        self.tree: Tree = self._parser.parse(self._bytes)

    @property
    def root(self) -> Node:
        """The node of the whole text."""
        return self.tree.root_node

    def byte_of(self, character: int) -> int:
        """The offset in bytes of an offset in code points."""
        if len(self._bytes) == len(self.text):
            return character
        return len(_encoded(self.text[:character]))

    def append(self, text: str) -> None:
        """Go on with more text; only what that can change is parsed again. Nodes of before are
        those of another tree."""
        added = _encoded(text)
        end = _end(self._bytes)
        before = len(self._bytes)
        self.text += text
        self._bytes += added
        self.tree.edit(before, before, before + len(added), end, end, _end(self._bytes))
        self.tree = self._parser.parse(self._bytes, self.tree)

    def extended(self, text: str) -> SyntaxText:
        """Another text, which begins with this one and goes on with more."""
        longer = copy(self)
        longer.tree = self.tree.copy()
        longer.append(text)
        return longer


def tail_of(before: str) -> str | None:
    """The end of a long text, from a line on that begins at column 0; None where no line does."""
    if len(before) <= MOST:
        return before
    found = _AT_TOP.search(before, before.find("\n", len(before) - MOST) + 1)
    return before[found.start() :] if found else None


def _end(data: bytes) -> Point:
    """The row and the column, in bytes, of the end of a text."""
    return Point(data.count(b"\n"), len(data) - (data.rfind(b"\n") + 1))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
