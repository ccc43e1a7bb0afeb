"""Drafts without a model: what followed the last tokens elsewhere.

Code repeats itself: names that stand above come again, and after a key that a suggestion did not
foresee, most of the rest of it often still fits. So the longest ending of the text that stood
somewhere before is looked for, and what followed it there is proposed. Looked through are the
earlier suggestions of the same document, its own text with the output so far, and the other
documents. Whether a proposal is right, the model says: a wrong one costs time and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice

from completion_ls.decode.tokens import common_prefix

ENOUGH = 2
"""From this match on the other documents are not asked: what is near is right more often."""
LONGEST = 16
"""Longer matches count as this long; of those the most recent one is taken."""
MOST_PLACES = 16
"""So many places of a text are compared for one proposal, most recent first."""
MOST_GHOSTS = 4
"""So many suggestions of a document are kept."""
MOST_TEXT = 8192
"""Of a longer prompt only the end is looked through: at most so many tokens, ..."""
TEXT_STEP = 2048
"""... and its start moves in steps of so many, since after each move all is read again."""
MOST_DOCUMENTS = 12
"""So many documents are kept. A token takes about 80 bytes."""

_START = -1
"""Stands in front of a text: no token is equal to it."""


class Source(StrEnum):
    """What a proposal is taken from."""

    GHOST = "ghost"
    """An earlier suggestion of the same document."""
    TEXT = "text"
    """The job's own prompt, and its output so far."""
    OTHER = "other"
    """The prompt of another document."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens, at least one, that may come next: they followed, in the source, the last `match`
    tokens of the text (1 to `LONGEST`)."""

    tokens: tuple[int, ...]
    match: int
    source: Source


class TextIndex:
    """One text, and for each token where in it the same token stood before.

    These are the hash chains of LZ77: an append costs O(1), and the places that a search looks at
    are the latest ones.
    """

    def __init__(self, text: Sequence[int] = ()) -> None:
        self._tokens = [_START]
        self._last: dict[int, int] = {}
        """For each token the latest place (index) behind it, ..."""
        self._earlier = [-1]
        """... and for each place the latest one before it that is behind the same token; or -1."""
        self.extend(text)

    def __len__(self) -> int:
        """How many tokens the text has."""
        return len(self._tokens) - 1

    def tail(self, most: int) -> list[int]:
        """The text's last tokens."""
        return self._tokens[max(1, len(self._tokens) - most) :]

    def extend(self, tokens: Sequence[int]) -> None:
        """Put tokens behind the text."""
        text, last, earlier = self._tokens, self._last, self._earlier
        before = text[-1]
        for token in tokens:
            earlier.append(last.get(before, -1))
            last[before] = len(text)
            text.append(token)
            before = token

    def become(self, text: Sequence[int]) -> None:
        """Make this the index of another text. Costs what differs behind the common beginning."""
        wanted = [_START, *text]
        common = common_prefix(self._tokens, wanted)
        if 2 * common < len(self._tokens):
            self._tokens, self._last, self._earlier = [_START], {}, [-1]
            common = 1
        while len(self._tokens) > common:
            self._tokens.pop()
            before, place = self._tokens[-1], self._earlier.pop()
            if place < 0:
                del self._last[before]
            else:
                self._last[before] = place
        self.extend(wanted[common:])

    def find(self, ending: list[int], longer_than: int) -> tuple[int, int] | None:
        """The longest part at the end of `ending` that stood in the text with something behind it:
        its length, and the place behind it. Of equals the latest; None where there is none that is
        `longer_than` this."""
        text, earlier = self._tokens, self._earlier
        place = self._last.get(ending[-1], -1) if ending else -1
        best, found, longest = longer_than, -1, len(ending)
        for _ in range(MOST_PLACES):
            if place < 0 or best >= longest:
                break
            # A better one agrees also where the best one does no more.
            if place > best and text[place - 1 - best] == ending[-1 - best]:
                length = 1
                while length < longest and text[place - 1 - length] == ending[-1 - length]:
                    length += 1
                if length > best:
                    best, found = length, place
            place = earlier[place]
        return (best, found) if found >= 0 else None

    def following(self, place: int, most: int) -> tuple[int, ...]:
        """Up to `most` tokens from a place on."""
        return tuple(self._tokens[place : place + most])


@dataclass(slots=True, eq=False)
class _Document:
    text: TextIndex = field(default_factory=TextIndex)
    """Its latest prompt."""
    ghosts: deque[TextIndex] = field(default_factory=lambda: deque(maxlen=MOST_GHOSTS))
    """Its latest suggestions, each with the tokens before it; the newest comes first."""


class Recent:
    """The texts that jobs look through: those of the documents that were worked on last."""

    def __init__(self) -> None:
        self._documents: OrderedDict[Hashable, _Document] = OrderedDict()

    def lookup(self, document: Hashable, prompt: Sequence[int]) -> Lookup:
        """What one job looks its drafts up with; `prompt` is what its output is put behind.

        Nothing is read here: the job's first token need not wait for it.
        """
        return Lookup(self, document, prompt)

    def _get(self, key: Hashable) -> _Document:
        document = self._documents.setdefault(key, _Document())
        self._documents.move_to_end(key)
        if len(self._documents) > MOST_DOCUMENTS:
            self._documents.popitem(last=False)
        return document

    def _others(self, key: Hashable) -> Iterator[TextIndex]:
        return (one.text for other, one in reversed(self._documents.items()) if other != key)


class Lookup:
    """The drafts of one job."""

    def __init__(self, recent: Recent, document: Hashable, prompt: Sequence[int]) -> None:
        self._recent = recent
        self._key = document
        self._prompt = prompt
        self._read = False
        self._own = TextIndex(prompt[-LONGEST:])

    def extend(self, tokens: Sequence[int]) -> None:
        """Note tokens of the output; the later jobs of the document look through them, too."""
        ghosts = self._recent._get(self._key).ghosts
        if self._own not in ghosts:
            ghosts.appendleft(self._own)
        self._own.extend(tokens)

    def propose(self, most: int) -> Proposal | None:
        """What may come next, up to `most` tokens; None where nothing is known.

        The longest match is taken; of equals an earlier suggestion's, then that of the output, then
        that of the prompt. A match in another document must be longer by two than all of these.
        """
        document = self._recent._get(self._key)
        if not self._read:
            excess = max(0, len(self._prompt) - MOST_TEXT)
            start = -(-excess // TEXT_STEP) * TEXT_STEP
            document.text.become(self._prompt[start:])
            self._read = True
        ending, best = self._own.tail(LONGEST), 0
        proposal: Proposal | None = None
        for source, text in self._near(document):
            if found := text.find(ending, best):
                best, place = found
                tokens = text.following(place, most)
                if text is self._own:
                    # What repeats itself will do so again.
                    tokens = tuple(islice(cycle(tokens), most))
                proposal = Proposal(tokens, best, source)
        if best < ENOUGH:
            best += 1
            for text in self._recent._others(self._key):
                if found := text.find(ending, best):
                    best, place = found
                    proposal = Proposal(text.following(place, most), best, Source.OTHER)
        return proposal

    def _near(self, document: _Document) -> Iterator[tuple[Source, TextIndex]]:
        for ghost in document.ghosts:
            if ghost is not self._own:
                yield Source.GHOST, ghost
        yield Source.TEXT, self._own
        yield Source.TEXT, document.text
