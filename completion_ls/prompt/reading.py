"""A tokenizer's reading of a text that goes on: its tokens, and its last word apart from the rest.

Tokenizers differ in what they split a text into before they look for tokens. Most split it into
words by a pattern; those in the manner of SentencePiece at blanks only, or not at all, and then the
words are found here. Some put a blank in front of a text. All read a text of which only the end
changed in the same way up to the line before the change, which is why a keystroke need not read
the whole window again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_letters

from tokenizers import AddedToken, Encoding, Tokenizer

from completion_ls.decode.tokens import common_prefix
from completion_ls.decode.vocabulary import inner_tokenizer, spelling_of

SECTIONS_KEPT = 16
HEADS_KEPT = 8
LINES_BACK = 4
CONTINUING = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))

# Pieces that a token of SentencePiece stays within; blanks before a word are read with it.
_WORDS = re.compile(r"\s*(?:[^\W\d_]+|\d+|(?:[^\w\s]|_)+)|\s+")
_CHUNKS = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class Reading:
    """The tokens of a text: those before its last word, and the word's."""

    before: list[int]
    word: list[int]
    spelled: bytes
    """What the tokens of the word spell."""


class Reader:
    """Reads texts as one tokenizer does."""

    def __init__(self, tokenizer: Tokenizer, control: Iterable[str] = ()) -> None:
        """`control` are tokens that text never stands for, whatever the tokenizer says of them."""
        self._inner = inner_tokenizer(tokenizer)
        self._inner.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in control]
        )
        self._spell = spelling_of(tokenizer)
        self.opening = _opening(tokenizer)
        """Ids that the tokenizer puts before every text (a beginning-of-text token, or none)."""
        normalizer = tokenizer.normalizer
        self._composes = normalizer is not None and b'"NFC"' in normalizer.__getstate__()
        plain, blank, blanks = map(self._encode, ("a", " a", "  a"))
        self._leads = _alone(tokenizer, "a") == blank.ids != plain.ids
        self._leads_always = self._leads and _alone(tokenizer, " a") == blanks.ids != blank.ids
        self._pieces: re.Pattern[str] | None = None
        """What words are, where the tokenizer does not split texts into words itself."""
        self._apart = True
        """Whether no token reaches from one word into the next."""
        if len(set(self._encode("a b(c").word_ids)) < 3:
            self._choose_pieces(tokenizer)
        self._section = lru_cache(SECTIONS_KEPT)(lambda text: tuple(self._encode(text).ids))
        self._heads: dict[str, tuple[list[int], int]] = {}

    def begun(self, text: str) -> str:
        """The text as the tokenizer reads it where a document begins: perhaps with a blank before."""
        blank_first = self._leads_always or (self._leads and not text.startswith(" "))
        return " " + text if text and blank_first else text

    def count(self, text: str) -> int:
        """How many tokens the text has."""
        return len(self._encode(text))

    def section(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that is complete."""
        return self._section(text)

    def open(self, text: str) -> Reading:
        """The tokens of a text that may go on in the middle of its last word."""
        text = self._normal(text)
        before, start = self._head(text[: text.rfind("\n") + 1])
        tail = text[start:]
        encoding = self._encode(tail)
        ids = encoding.ids
        if self._pieces is None:
            words = encoding.word_ids
            first = words.index(words[-1]) if words else 0
        else:
            last = max((piece.start() for piece in self._pieces.finditer(tail)), default=0)
            first, _ = self._token_at(ids, tail, last)
            while first > 0 and self._spell(ids[first])[:1] in CONTINUING:  # inside a character
                first -= 1
        return Reading([*before, *ids[:first]], ids[first:], self._spelled(ids[first:]))

    def within(self, word: str) -> list[int]:
        """Of the tokens that the word has where a letter follows, those that end within it."""
        found, room = [], len(word.encode())
        for id in self._encode(word + "a").ids:
            room -= len(self._spell(id))
            if room < 0:
                break
            found.append(id)
        return found

    def steady(self, word: str, ids: list[int], most: int) -> list[int]:
        """The first tokens of a word's: so many that one more letter makes at most `most` useless.

        One longer token may take the place of several ("back" "g" "ro" "un", and then a "d").
        """
        if len(ids) <= most:
            return ids
        longer = (self._encode(word + letter).ids for letter in ascii_letters)
        return ids[: min(common_prefix(ids, other) for other in longer) + most]

    def _choose_pieces(self, tokenizer: Tokenizer) -> None:
        texts = {self._spell(id) for id in tokenizer.get_vocab(with_added_tokens=False).values()}
        characters = [text.decode(errors="ignore") for text in texts]
        for self._pieces in (_WORDS, _CHUNKS):
            if all(self._pieces.fullmatch(text) for text in characters if text):
                return
        self._apart = False

    def _head(self, head: str) -> tuple[list[int], int]:
        """The tokens of `head` (whole lines) up to a place where it may be taken apart, and where.

        That is before the first word of its last line that is not blank: the rest of that line is
        known, so nothing behind it has a say in how the text before the word is read.
        """
        found = self._heads.pop(head, None)
        if found is None:
            before, start = self._known_head(head)
            ids, place = self._take_apart(head[start:])
            found = (before + ids, start + place) if ids else (before, start)
        self._heads[head] = found
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]
        return found

    def _known_head(self, head: str) -> tuple[list[int], int]:
        """What was found for a head of a few lines less."""
        end = len(head)
        for _ in range(LINES_BACK):
            end = head.rfind("\n", 0, max(0, end - 1)) + 1
            if found := self._heads.get(head[:end]):
                return found
        return [], 0

    def _take_apart(self, head: str) -> tuple[list[int], int]:
        line = head.rstrip().rfind("\n") + 1
        word = len(head) - len(head[line:].lstrip())
        if word == len(head) or not self._apart:  # blank, or one word as a whole
            return [], 0
        if self._pieces is not None:
            word = len(head[:word].rstrip())
        encoding = self._encode(head)
        ids, words = encoding.ids, encoding.word_ids
        index, place = self._token_at(ids, head, word)
        while self._pieces is None and 0 < index < len(ids) and words[index - 1] == words[index]:
            index -= 1
            place -= len(self._spell(ids[index]))
        start = len(head.encode()[:place].decode(errors="ignore"))
        if self._spelled(ids[:index]) != head[:start].encode():  # a tokenizer that changes the text
            return [], 0
        return ids[:index], start

    def _token_at(self, ids: list[int], text: str, place: int) -> tuple[int, int]:
        """The last token that begins at character `place` of the text or before; where, in bytes."""
        wanted = len(text[:place].encode())
        index, at = len(ids), len(text.encode())
        while index > 0 and at > wanted:
            index -= 1
            at -= len(self._spell(ids[index]))
        return index, at

    def _spelled(self, ids: list[int]) -> bytes:
        return b"".join(map(self._spell, ids))

    def _encode(self, text: str) -> Encoding:
        return self._inner.encode(self._normal(text), add_special_tokens=False)

    def _normal(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._composes else text


def _alone(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _opening(tokenizer: Tokenizer) -> tuple[int, ...]:
    encoding = tokenizer.encode("a")
    special = encoding.special_tokens_mask
    return tuple(encoding.ids[: special.index(0)]) if 0 in special else ()
