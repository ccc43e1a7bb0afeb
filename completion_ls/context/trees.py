"""Syntax trees in a thread beside the event loop, which is to get on meanwhile.

The parser and its queries keep Python's lock while they run, so a text is handed over in pieces, and
queries are asked one child of the root at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tree_sitter import Node, Parser, Query, QueryCursor, Tree

from completion_ls.syntax.languages import grammar

PIECE = 4096
"""In bytes."""


@lru_cache(maxsize=2)
def parse(language: str, text: str) -> Tree:
    """The tree of a text in a language that has a grammar. The last ones are remembered."""
    data = text.encode("utf-8", "surrogatepass")

    def read(start: int, _: object) -> bytes:
        return data[start : start + PIECE]

    return Parser(grammar(language)).parse(read)


def matches(query: Query, root: Node) -> Iterator[dict[str, list[Node]]]:
    """The nodes of each match by the names of the query, for matches that lie in a child of `root`."""
    for child in root.named_children:
        for _, found in QueryCursor(query).matches(child):
            yield found


def text_of(node: Node) -> str:
    """The text of a node."""
    return (node.text or b"").decode("utf-8", "replace")
