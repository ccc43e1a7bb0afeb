"""What others have named (files, branches of the hub, models), for people to read: a terminal would obey some
characters that such a name may have."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with these characters replaced; line ends stay."""
    return "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in text)
