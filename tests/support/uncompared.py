"""A secret that must not be compared character by character."""

from __future__ import annotations


class Uncompared(str):
    """`==` takes the longer the more of a guess is right, so here it is an error."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a secret was compared with ==")

    def __ne__(self, other: object) -> bool:
        raise AssertionError("a secret was compared with !=")

    __hash__ = str.__hash__
