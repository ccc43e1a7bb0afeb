"""The tokens of one place in a document as a tree, with their keys, values and logits.

Around a cursor a text has several continuations: what is being generated, the tokens of the word
as it was typed so far, other ways to split that word. All of them are kept as branches of one
sequence, so that the next keystroke, which mostly follows one of them, finds its tokens computed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from completion_ls.decode.tokens import common_prefix

MOST_BRANCHED = 128
"""Most slots that are kept beside the line."""
MOST_ROWS = 64
"""Most rows of logits that are kept: each is as large as the vocabulary."""

Node = tuple[int, int]
"""The slot that a token follows (-1 for the first), and the token."""


def chain(slot: int, tokens: Sequence[int], length: int) -> list[Node]:
    """The nodes of tokens that follow `slot` one after the other, in new slots from `length` on."""
    return list(zip([slot, *range(length, length + len(tokens) - 1)], tokens, strict=True))


@dataclass(frozen=True, slots=True)
class TreePath:
    """Where a text is in a sequence: its first `common` tokens in the line, then these slots."""

    common: int
    slots: tuple[int, ...]

    def __len__(self) -> int:
        return self.common + len(self.slots)

    @property
    def end(self) -> int:
        """The slot of its last token; -1 for the empty text."""
        return self.slots[-1] if self.slots else self.common - 1


@dataclass(frozen=True, slots=True)
class View:
    """What each new token of a pass sees: a text of which it is the last token."""

    positions: list[int]
    """Where in that text it stands."""
    common: int
    """The first tokens of all these texts are in the first slots, so many; ..."""
    paths: list[list[int]] | None
    """... the slots of the rest of each, itself included. None: each sees all slots before it."""

    @classmethod
    def line(cls, past: int, count: int) -> View:
        """That of `count` tokens which follow a line of `past`, one after the other."""
        return cls(list(range(past, past + count)), past, None)

    def mask(self) -> Tensor | None:
        """The same as [new tokens, slots + new tokens] to be added to scores; None: nothing is
        hidden."""
        count, past = len(self.positions), self.positions[0]
        if self.paths is None:
            if count == 1:
                return None
            return torch.full((count, past + count), -math.inf).triu(past + 1)
        total = 1 + max(path[-1] for path in self.paths)
        mask = torch.full((count, total), -math.inf)
        mask[:, : self.common] = 0.0
        for row, path in zip(mask, self.paths, strict=True):
            row[path] = 0.0
        return mask


@dataclass(slots=True, eq=False)
class KvSequence:
    """Keys and values of a tree of tokens, one slot a token.

    The first `line` slots are one text, token by token. Every later slot names the slot that it
    follows. A slot comes after the one that it follows.
    """

    layers: list[Tensor]
    """Per layer [2 (keys, values), heads, capacity in slots, width] of the model's `KvShape`."""
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are there, by slot."""
    line: int = 0
    rows: dict[int, Tensor] = field(default_factory=dict)
    """Logits [vocabulary] behind some slots, where a next keystroke may look again."""
    prompt_length: int = 0
    """How many tokens of the line were the last job's prompt; what that job generated behind it is
    cheap to lose."""
    in_use: bool = False
    last_used: int = 0
    document: str = ""
    """That of the last job, for figures, ..."""
    front: Hashable = None
    """... and whose job it was."""
    _follows: list[int] = field(default_factory=list)
    """For the slots behind the line, the slot that each follows."""
    _branches: dict[Node, int] = field(default_factory=dict)
    """The slots behind the line."""

    @property
    def length(self) -> int:
        """Slots in use."""
        return len(self.tokens)

    @property
    def capacity(self) -> int:
        """Slots there are."""
        return self.layers[-1].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and logits."""
        return sum(part.nbytes for part in (*self.layers, *self.rows.values()))

    def find(self, text: list[int]) -> TreePath:
        """The longest beginning of a text that is there."""
        common = common_prefix(self.tokens[: self.line], text)
        return TreePath(common, tuple(self.follow(common - 1, text[common:])))

    def follow(self, slot: int, tokens: Sequence[int]) -> list[int]:
        """The slots of tokens that follow a slot, as far as they are there."""
        slots: list[int] = []
        for token in tokens:
            found = self.after(slot, token)
            if found is None:
                break
            slots.append(found)
            slot = found
        return slots

    def after(self, slot: int, token: int) -> int | None:
        """The slot of a token that follows a slot."""
        # A branch goes first: it may repeat a token of the line whose logits were dropped.
        found = self._branches.get((slot, token))
        if found is None and slot + 1 < self.line and self.tokens[slot + 1] == token:
            return slot + 1
        return found

    def extend(self, tokens: Sequence[int]) -> None:
        """Note tokens that a pass has put behind the line. There must be no branches."""
        assert self.line == self.length
        self.tokens.extend(tokens)
        self.line = self.length

    def branch(self, nodes: Sequence[Node]) -> list[int]:
        """Note tokens that a pass has put behind all slots; returns their slots."""
        slots = []
        for node in nodes:
            self._branches[node] = len(self.tokens)
            slots.append(len(self.tokens))
            self._follows.append(node[0])
            self.tokens.append(node[1])
        return slots

    def drop(self, length: int) -> None:
        """Forget the slots from `length` on, which are all branches."""
        assert length >= self.line
        while self.length > length:
            self._branches.pop((self._follows.pop(), self.tokens.pop()), None)
            self.rows.pop(self.length, None)

    def keep_row(self, slot: int, row: Tensor) -> None:
        """Keep the logits behind a slot, and drop the oldest where there are too many."""
        self.rows.pop(slot, None)
        # Cloned: a view would keep the rows of the whole pass.
        self.rows[slot] = row.clone()
        while len(self.rows) > MOST_ROWS:
            del self.rows[next(iter(self.rows))]

    def view(self, nodes: Sequence[Node]) -> View:
        """What these tokens would see if a pass put them behind all slots. A node may follow
        another node of the list (its slot counts on from `length`)."""
        follows = [*self._follows, *(slot for slot, _ in nodes)]
        branches, forks = [], []
        for number in range(len(nodes)):
            slot, branch = self.length + number, list[int]()
            while slot >= self.line:
                branch.append(slot)
                slot = follows[slot - self.line]
            branches.append(branch[::-1])
            forks.append(slot + 1)
        common = min(forks, default=self.length)
        pairs = list(zip(forks, branches, strict=True))
        positions = [fork + len(branch) - 1 for fork, branch in pairs]
        line = View.line(self.length, len(nodes))
        if positions == line.positions:
            return line
        paths = [[*range(common, fork), *branch] for fork, branch in pairs]
        return View(positions, common, paths)

    def straighten(self, path: TreePath) -> None:
        """Make a path the line; what is kept besides becomes branches."""
        start = path.common
        beside = [slot for slot in range(start, self.length) if slot not in path.slots]
        moved = {slot: start + number for number, slot in enumerate(path.slots)}
        order, follows = list(path.slots), []
        for slot in beside[-MOST_BRANCHED:]:
            before = slot - 1 if slot < self.line else self._follows[slot - self.line]
            if before < start or before in moved:  # without its beginning a branch means nothing
                follows.append(moved.get(before, before))
                moved[slot] = start + len(order)
                order.append(slot)
        end = start + len(order)
        if order != list(range(start, end)):
            source = torch.tensor(order)
            for layer in self.layers:
                layer[:, :, start:end] = layer[:, :, source]
        self.tokens[start:] = [self.tokens[slot] for slot in order]
        self.rows = {
            moved.get(slot, slot): row
            for slot, row in self.rows.items()
            if slot < start or slot in moved
        }
        self.line = len(path)
        self._follows = follows
        self._branches = {
            (before, self.tokens[self.line + number]): self.line + number
            for number, before in enumerate(follows)
        }

    def cut(self, length: int) -> None:
        """Forget all branches, and the line behind its first `length` tokens."""
        self.line = min(length, self.line)
        del self.tokens[self.line :]
        self._follows.clear()
        self._branches.clear()
        self.rows = {slot: row for slot, row in self.rows.items() if slot < self.line}
