"""Strings and comments that are open where a text ends.

What is open has no node of its own: its tree is that of broken code. So a text is asked by going on
with what would end a string or comment, and looking whether that has become the end of one.
"""

from __future__ import annotations

from enum import StrEnum

from tree_sitter import Node

from completion_ls.syntax.languages import LANGUAGES
from completion_ls.syntax.text import SyntaxText, tail_of

_STRINGS = {
    "string",
    "string_literal",
    "template_string",
    "raw_string_literal",
    "interpreted_string_literal",
    "rune_literal",
    "char_literal",
    "character_literal",
}
_BLOCK = "*/"
_ENDS = {
    "c": (_BLOCK,),
    "cpp": (_BLOCK, ')"'),
    "go": (_BLOCK, "`"),
    "java": (_BLOCK, '"""'),
    "python": ('"""', "'''"),
    "rust": (_BLOCK, '"', '"#'),
}
"""What ends a string or comment of several lines."""
_SCRIPT_ENDS = (_BLOCK, "`")
_STARTS = {_BLOCK: "/*", ')"': 'R"', '"#': '#"'}
"""What starts one, where that is not what ends it."""
_LINE_COMMENT = "x"
"""Goes on in a comment that ends with its line, and in nothing else that is looked for."""


class Literal(StrEnum):
    """What no code stands in."""

    STRING = "string"
    COMMENT = "comment"


def literal_at_end(language: str, text: str) -> Literal | None:
    """In what a cursor behind this text stands, if it is a string or comment. Languages without a
    grammar have none."""
    text = tail_of(text) or ""
    if language not in LANGUAGES:
        return None
    read = SyntaxText(language, text)
    for end in (_LINE_COMMENT, '"', "'", *ends_of_several_lines(language, text)):
        if found := closed_by(read, end):
            return kind_of(found[1])
    return None


def ends_of_several_lines(language: str, text: str) -> list[str]:
    """What may end a string or comment of several lines that begins in a text."""
    ends = _ENDS.get(language, _SCRIPT_ENDS)
    return [end for end in ends if _STARTS.get(end, end) in text]


def closed_by(text: SyntaxText, end: str) -> tuple[SyntaxText, Node] | None:
    """The text, continued so that the string or comment in which it ends is closed, and its node.
    None where it does not end in one that this closes."""
    closed = text.extended(" " + end)  # a blank: the text may end with a part of an end
    limit, last = text.byte_of(len(text.text)), closed.byte_of(len(closed.text))
    node = closed.root.descendant_for_byte_range(last - len(end), last)
    while node is not None and node.start_byte >= limit:
        node = node.parent
    while node is not None and node.end_byte == last:
        if kind_of(node) and not node.has_error:
            return closed, node
        node = node.parent
    return None


def kind_of(node: Node) -> Literal | None:
    """Whether a node is a string or a comment."""
    if "comment" in node.type:
        return Literal.COMMENT
    return Literal.STRING if node.type in _STRINGS else None
