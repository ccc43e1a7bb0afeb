"""A tree of tokens in slots: whatever is done to it, each slot keeps its own past."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.engines.llama import Llama
from completion_ls.engines.tree import MOST_BRANCHED, MOST_ROWS, KvSequence

CAPACITY = 1024
SIZE = 3


def empty() -> KvSequence:
    return KvSequence([torch.zeros(2, 1, CAPACITY, 1) for _ in range(2)])


def past(sequence: KvSequence) -> dict[tuple[int, ...], int]:
    """The slots of all texts in the tree, found by walking it as the engine does."""
    found: dict[tuple[int, ...], int] = {}
    waiting: list[tuple[tuple[int, ...], int]] = [((), -1)]
    while waiting:
        text, slot = waiting.pop()
        for token in range(SIZE):
            if (next := sequence.after(slot, token)) is not None:
                found[(*text, token)] = next
                waiting.append(((*text, token), next))
    return found


def mark(text: tuple[int, ...]) -> float:
    """What stands in a slot, which tells the whole past of its token."""
    return float(hash(text) % 100_003)


def put(sequence: KvSequence, slot: int, text: tuple[int, ...]) -> None:
    for layer in sequence.layers:
        layer[:, :, slot] = mark(text)


edits = st.lists(
    st.one_of(
        st.tuples(st.just("branch"), st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12)),
        st.tuples(st.just("straighten"), st.lists(st.integers(0, SIZE - 1), max_size=14)),
        st.tuples(st.just("cut"), st.integers(0, 10).map(lambda n: [n])),
    ),
    max_size=25,
)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(edits)
def test_every_slot_keeps_its_own_past(history: list[tuple[str, list[int]]]) -> None:
    sequence = empty()
    sequence.extend([0, 1, 2, 0])
    for length in range(1, 5):
        put(sequence, length - 1, (0, 1, 2, 0)[:length])
    for action, numbers in history:
        before = past(sequence)
        if action == "branch":
            slot, text = -1, ()
            nodes, texts = [], []
            for token in numbers:
                text = (*text, token)
                found = sequence.after(slot, token) if slot < sequence.length else None
                if found is None:
                    found = sequence.length + len(nodes)
                    nodes.append((slot, token))
                    texts.append(text)
                slot = found
            view = sequence.view(nodes)
            assert view.positions == [len(text) - 1 for text in texts]
            start = sequence.length
            for slot, text in zip(sequence.branch(nodes), texts, strict=True):
                put(sequence, slot, text)
            seen = past(sequence)
            for number, text in enumerate(texts):
                expected = {seen[text[:length]] for length in range(1, len(text) + 1)}
                mask = view.mask()
                if mask is None:
                    assert expected == set(range(start + 1))
                else:
                    assert set(torch.nonzero(mask[number] == 0).flatten().tolist()) == expected
            assert before.keys() <= seen.keys()
        elif action == "straighten":
            path = sequence.find(numbers)
            sequence.straighten(path)
            assert sequence.tokens[: sequence.line] == numbers[: len(path)]
            assert sequence.line == len(path)
            assert past(sequence).keys() == before.keys()  # there are fewer than are dropped
        else:
            sequence.cut(numbers[0])
            assert sequence.length == sequence.line <= numbers[0]
        for text, slot in past(sequence).items():
            assert sequence.tokens[slot] == text[-1]
            assert all(bool((layer[:, :, slot] == mark(text)).all()) for layer in sequence.layers)


def test_what_is_kept_beside_the_line_is_bounded() -> None:
    sequence = empty()
    sequence.extend([1, 2])
    for number in range(3 * MOST_BRANCHED):
        sequence.branch([(1, 1000 + number)])
        sequence.keep_row(sequence.length - 1, torch.tensor([float(number)]))
    sequence.straighten(sequence.find([1, 2, 1000]))
    assert sequence.line == 3
    assert sequence.length == 3 + MOST_BRANCHED
    assert len(sequence.rows) == MOST_ROWS
    # The newest stay, each with its own logits.
    newest = sequence.after(1, 1000 + 3 * MOST_BRANCHED - 1)
    assert newest is not None
    assert sequence.rows[newest].item() == 3 * MOST_BRANCHED - 1


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_branches_in_one_pass_give_the_logits_of_their_own_texts(
    tiny: Callable, architecture: str
) -> None:
    model = Llama.read(tiny(architecture).folder)

    def sequence() -> KvSequence:
        return KvSequence([model.kv.empty(64) for _ in range(model.kv.layers)])

    def alone(tokens: list[int]) -> torch.Tensor:
        return model.forward(tokens, sequence(), 1)[0]

    line = [5, 8, 13, 21]
    tree = sequence()
    model.forward(line, tree, 0)
    tree.extend(line)
    # Two branches behind the line, one of them with two ends, and one from inside it.
    nodes = [(3, 34), (4, 55), (4, 56), (3, 35), (1, 34)]
    texts = [[34], [34, 55], [34, 56], [35], None]
    rows = model.forward([token for _, token in nodes], tree, len(nodes), tree.view(nodes))
    for row, text in zip(rows, texts, strict=True):
        expected = alone([*line, *text] if text else [5, 8, 34])
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)
    tree.branch(nodes)
    # On from one of them, with all others in the way, and again when it has become the line.
    more = [(tree.find([*line, 34, 56]).end, 7)]
    again = model.forward([7], tree, 1, tree.view(more))[0]
    torch.testing.assert_close(again, alone([*line, 34, 56, 7]), atol=1e-4, rtol=1e-4)
    tree.straighten(tree.find([*line, 34, 56]))
    straight = model.forward([7], tree, 1, tree.view([(tree.line - 1, 7)]))[0]
    torch.testing.assert_close(straight, again, atol=1e-4, rtol=1e-4)
