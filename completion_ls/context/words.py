"""The names in a text, and the words that names are made of."""

from __future__ import annotations

import re

_NAME = re.compile(r"[^\W\d]\w*")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?(?:(?![A-Z])[^\W\d_])+")
_COMMON = frozenset(
    """
    and any assert async await bool boolean break case catch char class const continue def
    default del double elif else enum except export extends false final finally float for from
    func function get global goto has if implements import include int interface is lambda let
    long match mod module mut new nil none not null object open or package pass private
    protected pub public raise return self set short signed static str string struct super
    switch the this throw throws true try type typedef typeof union unsigned use using value var
    void while with yield
    """.split()  # noqa: SIM905
)
"""Words of languages, and others that say nothing."""


def names(text: str) -> set[str]:
    """All names in a text, those of the language too."""
    return set(_NAME.findall(text))


def words(text: str) -> set[str]:
    """The words of a text's names, in small letters: those of `parseHTTPBody` are parse, http, body."""
    found: set[str] = set()
    for name in names(text):
        found.update(word.lower() for word in _WORD.findall(name))
    return {word for word in found - _COMMON if len(word) > 2}
