"""What others have named (files, branches of the hub, models), for people to read: a terminal would obey some
characters that such a name may have."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with these characters replaced; line ends stay, and a byte of a path that is no text is told
    by its number."""
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return f"\\u{ord(character):x}" if "\ud800" <= character <= "\udfff" else "\ufffd"
