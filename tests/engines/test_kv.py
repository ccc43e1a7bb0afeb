"""The cache returns right contents, keeps what is worth keeping and stays within its cap."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.decode.tokens import common_prefix
from completion_ls.engines.kv import BLOCK, EXPENDABLE, KvCache
from completion_ls.engines.model import KvShape
from completion_ls.engines.tree import KvSequence

SHAPE = KvShape(layers=2, heads=1, width=2, dtype=torch.float32)
BLOCK_BYTES = BLOCK * SHAPE.nbytes


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(1, 1000), k=length)


def fill(sequence: KvSequence, tokens: list[int]) -> None:
    """Stand in for the forward: keys and values that tell token and layer."""
    start = sequence.length
    for number, layer in enumerate(sequence.layers):
        for offset, token in enumerate(tokens):
            layer[:, :, start + offset] = token + number * 10_000


def write(sequence: KvSequence, tokens: list[int]) -> None:
    """A prefill."""
    sequence.cut(sequence.line)
    fill(sequence, tokens)
    sequence.extend(tokens)


def generate(sequence: KvSequence, tokens: list[int]) -> None:
    """What is generated stands beside the line."""
    at = sequence.line - 1
    for token in tokens:
        fill(sequence, [token])
        (at,) = sequence.branch([(at, token)])


def holds_its_tokens(sequence: KvSequence) -> bool:
    expected = torch.tensor(sequence.tokens, dtype=torch.float32)[:, None]
    return all(
        bool((layer[:, :, : sequence.length] == expected + number * 10_000).all())
        for number, layer in enumerate(sequence.layers)
    )


def use(cache: KvCache, prompt: list[int], generated: int = 0) -> tuple[KvSequence, int]:
    """A whole job: the sequence, released, and how much of the prompt was reused."""
    sequence = cache.acquire(prompt, len(prompt) + generated)
    reused = sequence.line
    if prompt[reused:]:
        write(sequence, prompt[reused:])
    generate(sequence, text(-len(prompt), generated))
    cache.release(sequence)
    return sequence, reused


def test_typing_takes_the_sequence_over_and_grows_it_by_blocks() -> None:
    cache = KvCache(SHAPE, 100 * BLOCK_BYTES)
    words = text(1, 2 * BLOCK + 1)
    first, _ = use(cache, words[:BLOCK])
    assert first.capacity == BLOCK
    for length in range(BLOCK + 1, len(words) + 1):
        sequence, reused = use(cache, words[:length])
        assert sequence is first and reused == length - 1
        assert holds_its_tokens(sequence)
    assert cache.count == 1 and cache.nbytes == 3 * BLOCK_BYTES


def test_what_a_job_generated_does_not_count_as_lost() -> None:
    cache = KvCache(SHAPE, 100 * BLOCK_BYTES)
    words = text(1, 100)
    first, _ = use(cache, words, generated=3 * EXPENDABLE)
    second, reused = use(cache, [*words, 7])
    assert second is first and reused == 100


def test_a_longer_loss_copies_instead() -> None:
    cache = KvCache(SHAPE, 100 * BLOCK_BYTES)
    words = text(1, 300)
    first, _ = use(cache, words)
    near, _ = use(cache, [*words[: 300 - EXPENDABLE], 0])
    assert near is first
    first, _ = use(cache, words)
    far, reused = use(cache, [*words[: 299 - EXPENDABLE], 0])
    assert far is not first and reused == 299 - EXPENDABLE
    assert first.tokens == words and holds_its_tokens(first) and holds_its_tokens(far)


def test_a_sequence_in_use_is_copied_never_written() -> None:
    cache = KvCache(SHAPE, 100 * BLOCK_BYTES)
    words = text(1, 100)
    running = cache.acquire(words, 120)
    write(running, words)
    other = cache.acquire([*words, 5], 120)
    assert other is not running and other.tokens == words
    write(other, [5, 6])
    write(running, [8])
    assert holds_its_tokens(running) and holds_its_tokens(other)


def test_of_equal_prefixes_an_idle_sequence_is_taken_over() -> None:
    cache = KvCache(SHAPE, 100 * BLOCK_BYTES)
    words = text(1, 60)
    running, other = cache.acquire(words, 60), cache.acquire(words, 60)
    for sequence in (running, other):
        write(sequence, words)
    cache.release(other)
    assert cache.acquire([*words, 4], 61) is other
    assert cache.count == 2


def test_the_longest_unused_goes_first() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    documents = [text(seed, BLOCK) for seed in range(4)]
    for words in documents[:3]:
        use(cache, words)
    assert use(cache, documents[0])[1] == BLOCK
    use(cache, documents[3])  # drops the second document
    assert cache.nbytes == 3 * BLOCK_BYTES
    assert [use(cache, documents[n])[1] for n in (0, 2, 3, 1)] == [BLOCK] * 3 + [0]


def test_what_the_user_needs_goes_last_as_far_as_it_is_half_of_the_memory() -> None:
    cache = KvCache(SHAPE, 4 * BLOCK_BYTES)
    cache.favoured = "here"
    for number, front in enumerate(["here"] * 3 + ["elsewhere"] * 2):
        sequence, _ = use(cache, text(number, BLOCK))
        sequence.front = front
    held = [sequence.front for sequence in cache._sequences]
    assert held == ["here", "here", "elsewhere", "elsewhere"]
    for number in range(10, 20):
        sequence, _ = use(cache, text(number, BLOCK))
        sequence.front = "elsewhere"
    assert [sequence.front for sequence in cache._sequences].count("here") == 2


def test_without_room_for_a_copy_the_source_is_taken_over() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    words = text(1, 2 * BLOCK)
    first, _ = use(cache, words)
    second, reused = use(cache, [*words[:100], *text(2, 100)])
    assert second is first and reused == 100
    assert holds_its_tokens(second) and cache.nbytes <= 3 * BLOCK_BYTES


def test_a_job_larger_than_the_cap_works_and_is_not_kept(caplog: object) -> None:
    cache = KvCache(SHAPE, BLOCK_BYTES)
    sequence = cache.acquire(text(1, 300), 300)
    assert sequence.capacity >= 300 and cache.nbytes > cache.limit_bytes
    cache.release(sequence)
    assert (cache.count, cache.nbytes) == (0, 0)
    assert "kv_memory_mb" in caplog.text  # type: ignore[attr-defined]


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(shared: list[int], one: list[int], two: list[int]) -> None:
    a, b = shared + one, shared + two
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(a, b) == expected


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acquire", "release", "discard"]),
            st.integers(0, 2),
            st.integers(1, 400),
            st.integers(0, 5),
            st.integers(0, 200),
        ),
        max_size=30,
    ),
    st.integers(1, 12),
)
def test_any_history_keeps_contents_and_cap(
    history: list[tuple[str, int, int, int, int]], blocks: int
) -> None:
    cache = KvCache(SHAPE, blocks * BLOCK_BYTES)
    running: list[KvSequence] = []
    for action, which, cursor, typed, generated in history:
        if action == "acquire":
            prompt = text(9, 50) + text(which, 350)
            prompt = prompt[:cursor] + text(cursor, typed)
            others = [(s, list(s.tokens)) for s in running]
            sequence = cache.acquire(prompt, len(prompt) + generated)
            assert sequence not in running
            assert sequence.line <= len(prompt)
            assert prompt[: sequence.line] == sequence.tokens[: sequence.line]
            assert sequence.capacity >= len(prompt) + generated
            assert holds_its_tokens(sequence)
            if prompt[sequence.line :]:
                write(sequence, prompt[sequence.line :])
            cache.grow(sequence, sequence.length + generated)
            generate(sequence, text(generated, generated))
            running.append(sequence)
            for other, tokens in others:
                assert other.tokens == tokens and holds_its_tokens(other)
        elif running:
            one = running.pop(typed % len(running))
            (cache.release if action == "release" else cache.discard)(one)
        busy = sum(s.nbytes for s in running)
        assert cache.nbytes <= max(cache.limit_bytes, busy)
        assert cache.nbytes >= busy


def test_who_spares_gives_way_rather_than_to_take_over_what_is_large() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    words = text(1, 2 * BLOCK)
    first, _ = use(cache, words)
    other = [*words[:100], *text(2, 100)]
    assert cache.acquire(other, 200, spare=True) is None
    assert first.tokens == words and not first.in_use
    # What loses little is taken over all the same, ...
    assert cache.acquire([*words, 5], 2 * BLOCK, spare=True) is first
    cache.release(first)
    # ... and where there is room, it is copied.
    roomy = KvCache(SHAPE, 10 * BLOCK_BYTES)
    first, _ = use(roomy, words)
    copy = roomy.acquire(other, 200, spare=True)
    assert copy is not None and copy is not first and copy.line == 100
