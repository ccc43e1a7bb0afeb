"""exllamav2's own Python on the reference kernels, against transformers and plain PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from support.exl2 import attention, kv_bits
from support.exl2.install import install
from support.exl2.layers import HeadNorm, rotate, token_positions
from support.exl2.tiny import (
    SPECIAL,
    CacheKind,
    TinyModels,
    load_model,
    load_tokenizer,
    make_cache,
    random_model,
    source,
    write_tiny_models,
)
from support.exl2.weights import export, read_dequantized

pytestmark = pytest.mark.exl2

PAGE = 256
KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
seeds = st.integers(0, 2**32)

_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
}
_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    # With outputs that must be padded, and a head that is not the embedding.
    "llama": lambda: LlamaConfig(**_SIZES, vocab_size=97, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(**_SIZES, vocab_size=320, tie_word_embeddings=False),
    # With heads that are wider than the hidden size divided by their number.
    "qwen3": lambda: Qwen3Config(**_SIZES, vocab_size=320, tie_word_embeddings=True, head_dim=64),
}


def random_ids(vocabulary: int, length: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (1, length), generator=random)


def forward(model: Any, ids: Tensor, cache: Any) -> Tensor:
    """Logits [batch, tokens, rows of the vocabulary] without pages, behind what the cache has."""
    logits = model.forward(ids, cache)
    assert isinstance(logits, Tensor)
    return logits.float()


def forward_paged(model: Any, ids: Tensor, cache: Any, pages: Tensor, lengths: list[int]) -> Tensor:
    """Logits [batch, tokens, rows of the vocabulary] of the next tokens of sequences that have so
    many in their pages, int32 [batch, pages]."""
    attn = importlib.import_module("exllamav2.attn").ExLlamaV2Attention
    params = attn.PagedParams(
        batch_size=len(ids),
        block_index=pages,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        max_cache_seqlen=max(lengths),
        page_size=PAGE,
        q_len=ids.shape[1],
    )
    logits = model.forward_chunk(ids, cache, attn_params=params)["logits"]
    assert isinstance(logits, Tensor)
    return logits.float()


def chunks(ids: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """Where each starts, and its ids."""
    for start in range(0, ids.shape[1], size):
        yield start, ids[:, start : start + size]


def forward_chunks(model: Any, ids: Tensor, cache: Any, size: int) -> Tensor:
    """As `forward`, with so many tokens at a time."""
    return torch.cat([forward(model, chunk, cache) for _, chunk in chunks(ids, size)], 1)


def forward_paged_chunks(model: Any, ids: Tensor, cache: Any, pages: Tensor, size: int) -> Tensor:
    """As `forward_paged` for one sequence from its start, with so many tokens at a time."""
    return torch.cat(
        [forward_paged(model, chunk, cache, pages, [at]) for at, chunk in chunks(ids, size)], 1
    )


# models


@pytest.mark.parametrize("name", list(_CONFIGS))
def test_logits_are_those_of_transformers(exllamav2: Any, tmp_path: Path, name: str) -> None:
    export(random_model(_CONFIGS[name](), seed=1), tmp_path, bits=4)
    model = load_model(tmp_path, max_seq_len=1024)
    ids = random_ids(model.config.vocab_size, 200)
    logits = forward(model, ids, make_cache(model, tokens=256))
    with torch.inference_mode():
        expected = read_dequantized(tmp_path, torch.float64)(ids).logits.float()
    rows = expected.shape[-1]
    assert (logits[..., rows:] == -65504).all()
    logits = logits[..., :rows]
    error = (logits - expected).abs()
    assert error.max() < 0.01 * expected.abs().max()
    assert error.mean() < 0.003 * expected.std()
    best = expected.topk(2).values
    clear = best[..., 0] - best[..., 1] > 2 * error.amax(-1)
    assert clear.float().mean() > 0.9
    assert torch.equal(logits.argmax(-1)[clear], expected.argmax(-1)[clear])


@pytest.mark.parametrize("in_order", [True, False])
def test_pages_and_chunks_change_nothing(target: Any, in_order: bool) -> None:
    ids = random_ids(500, 700)
    whole = forward(target, ids, make_cache(target, tokens=1024))
    pages = torch.tensor([[4, 5, 6] if in_order else [6, 1, 3]], dtype=torch.int32)
    cache = make_cache(target, tokens=8 * PAGE)
    paged = forward_paged_chunks(target, ids, cache, pages, 97)
    assert torch.equal(paged, whole)


def test_a_batch_of_sequences_changes_nothing(target: Any) -> None:
    lengths = [255, 40, 513]
    texts = [random_ids(500, length + 3, seed) for seed, length in enumerate(lengths)]
    pages = torch.tensor([[2, 7, 0], [4, 0, 0], [6, 1, 3]], dtype=torch.int32)
    cache = make_cache(target, tokens=8 * PAGE)
    for text, table in zip(texts, pages, strict=True):
        forward_paged_chunks(target, text[:, :-3], cache, table[None], 200)
    ends = torch.cat([text[:, -3:] for text in texts])
    together = forward_paged(target, ends, cache, pages, lengths)
    for row, text in enumerate(texts):
        whole = forward(target, text, make_cache(target, tokens=1024))
        assert torch.equal(together[row], whole[0, -3:])


def test_caches_of_fewer_bits(target: Any) -> None:
    """Without pages and with them they give the same, and the fewer bits, the larger the error."""
    ids = random_ids(500, 400)
    pages = torch.tensor([[2, 0]], dtype=torch.int32)
    logits = {}
    for kind in KINDS:
        plain, paged = make_cache(target, kind, 512), make_cache(target, kind, 3 * PAGE)
        logits[kind] = forward_chunks(target, ids, plain, 27)
        assert torch.equal(forward_paged_chunks(target, ids, paged, pages, 27), logits[kind])
    exact = logits["fp16"]
    assert torch.equal(exact, forward(target, ids, make_cache(target, tokens=512)))
    errors = [(logits[kind] - exact).abs().mean().item() for kind in KINDS]
    assert errors == sorted(errors)
    assert all(error > 0 for error in errors[1:])
    assert errors[1] < 0.04 * exact.std() and errors[3] < 0.5 * exact.std()


def test_tiny_models(exllamav2: Any, tiny: TinyModels, tmp_path: Path, target: Any) -> None:
    tokenizer = load_tokenizer(target)
    text = source("engines/contract.py")
    ids = tokenizer.encode(text)[:, :500]
    assert tokenizer.get_vocab_size() == 500 < target.config.vocab_size
    assert tokenizer.decode(ids[0]) == text[: len(tokenizer.decode(ids[0]))]
    specials = [tokenizer.single_id(name) for name in SPECIAL]
    assert specials == [0, 1, 2, 3] and tokenizer.eos_token_id == 0

    def choices(folder: Path) -> Tensor:
        model = load_model(folder)
        return forward(model, ids, make_cache(model, tokens=512)).argmax(-1)

    again = write_tiny_models(tmp_path, agreeing=True)
    wanted = choices(again.target)
    assert torch.equal(wanted, forward(target, ids, make_cache(target, tokens=512)).argmax(-1))
    assert (choices(again.draft) == wanted).float().mean() > 0.4
    assert (choices(tiny.draft) == wanted).float().mean() < 0.1


# what the kernels would do wrong


def test_more_tokens_than_there_is_scratch_space_for(target_folder: Path, exllamav2: Any) -> None:
    model = load_model(target_folder, max_input_len=64)
    cache = make_cache(model, tokens=256)
    forward(model, random_ids(500, 200), cache)  # it cuts them into chunks
    cache.current_seq_len = 0
    model.forward_chunk(random_ids(500, 64), cache)
    with pytest.raises(RuntimeError, match="65 rows do not fit into scratch space of 64 rows"):
        model.forward_chunk(random_ids(500, 65), cache)


def test_positions_outside_of_the_table(target_folder: Path, exllamav2: Any) -> None:
    model = load_model(target_folder, max_seq_len=256)
    cache = make_cache(model, tokens=512)
    forward(model, random_ids(500, 256), cache)
    with pytest.raises(RuntimeError, match="position 256 is outside of the table"):
        forward(model, random_ids(500, 1), cache)


@pytest.mark.parametrize(
    ("table", "lengths", "why"),
    [
        ([[0], [1]], [250, 0], "too short"),
        ([[0], [2]], [0, 0], "outside of the cache"),
        ([[0], [-1]], [0, 0], "outside of the cache"),
        ([[2]], [0], "room for each token"),
    ],
)
@pytest.mark.parametrize("kind", ["fp16", "q4"])
def test_pages_that_are_not_there(
    target: Any, kind: CacheKind, table: list[list[int]], lengths: list[int], why: str
) -> None:
    cache = make_cache(target, kind, 2 * PAGE)
    ids = random_ids(500, 10).repeat(len(lengths), 1)
    pages = torch.tensor(table, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=why):
        forward_paged(target, ids, cache, pages, lengths)


def test_positions() -> None:
    lengths = torch.tensor([5, -2], dtype=torch.int32)
    assert token_positions(2, 3, 7, None).tolist() == [[7, 8, 9], [7, 8, 9]]
    assert token_positions(2, 3, 1, lengths).tolist() == [[6, 7, 8], [0, 0, 1]]
    assert token_positions(2, 3, -1, lengths).tolist() == [[5, 6, 7], [0, 1, 2]]
    with pytest.raises(RuntimeError, match="does not fit the batch"):
        token_positions(3, 1, 0, lengths)


def test_a_part_of_a_head_may_stay_as_it_is() -> None:
    x = torch.randn(1, 4, 2, 32)
    angles = torch.arange(10)[:, None] * torch.logspace(0, -2, 8).repeat(2)
    sin, cos = angles.sin().half()[None, None], angles.cos().half()[None, None]
    turned = rotate(x, sin, cos, token_positions(1, 4, 3, None))
    assert torch.equal(turned[..., 16:], x[..., 16:].double())
    torch.testing.assert_close(turned.norm(dim=-1).float(), x.norm(dim=-1), rtol=1e-3, atol=0)
    # A score depends on the distance alone.
    one, other = (rotate(x[:, :2], sin, cos, token_positions(1, 2, at, None)) for at in (0, 7))
    scores = [(made[:, 0] * made[:, 1]).sum(-1) for made in (one, other)]
    torch.testing.assert_close(*scores, rtol=0, atol=2e-2)


def test_a_head_norm_that_is_not_told_to_be_one_of_squares() -> None:
    x, weight = torch.randn(3, 5, 4, 32).half(), torch.randn(4, 32).half()
    expected = layer_norm(x.double(), (32,), eps=1e-6) * weight
    torch.testing.assert_close(HeadNorm(weight, 1e-6, rms=False).apply(x), expected)


# keys and values


@settings(deadline=None)
@given(st.sampled_from([4, 8]), st.integers(1, 20), seeds)
def test_keys_of_fewer_bits_are_near(bits: int, blocks: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(64 * blocks, generator=random) * torch.logspace(-2, 1, 64 * blocks)
    x = x.half()
    numbers, scales = kv_bits.quantize(x, bits)
    assert (numbers.numel(), scales.numel()) == (8 * bits * blocks, 2 * blocks)
    read = kv_bits.dequantize(numbers, scales, bits).float()
    error, most = (read - x.float()).view(-1, 64), x.float().view(-1, 64)
    share = error.norm(dim=-1) / most.norm(dim=-1)
    assert (share < {4: 0.2, 8: 0.012}[bits]).all()


def test_zeros_stay_zeros() -> None:
    numbers, scales = kv_bits.quantize(torch.zeros(128).half(), 4)
    assert not kv_bits.dequantize(numbers, scales, 4).any()


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)), st.integers(0, 30))
def test_count_match(one: list[int], other: list[int], most: int) -> None:
    most = min(most, len(one))
    expected = 0
    while expected < min(most, len(other)) and one[expected] == other[expected]:
        expected += 1
    a, b = (torch.tensor([made], dtype=torch.int64) for made in (one, other))
    assert kv_bits.count_match(a, b, most) == expected


def test_pages_change_places() -> None:
    cache = torch.arange(6)[:, None].repeat(1, 4)
    temp = torch.empty(4, dtype=torch.int64)
    kv_bits.cache_rotate(cache, torch.tensor([1, 4, 2], dtype=torch.int32), temp)
    assert cache[:, 0].tolist() == [0, 4, 1, 3, 2, 5]
    for order, room, why in (
        (torch.tensor([1, 2]), temp, "int32"),
        (torch.tensor([1, 6], dtype=torch.int32), temp, "not there"),
        (torch.tensor([1, 2], dtype=torch.int32), temp[1:], "size of a page"),
    ):
        with pytest.raises(RuntimeError, match=why):
            kv_bits.cache_rotate(cache, order, room)


# flash-attn


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """[tokens, heads, width], with a mask that is aligned at the end."""
    queries, keys = len(q), len(k)
    mask = torch.ones(queries, keys).tril(keys - queries).bool() if causal else None
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    q, k, v = (one.double().transpose(0, 1) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, mask).transpose(0, 1)


def assert_near(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), expected, rtol=2**-10, atol=1e-6)


heads = st.sampled_from([(1, 1), (4, 2), (6, 1)])


def random_qkv(
    queries: int, keys: int, heads: tuple[int, int], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((queries, heads[0]), (keys, heads[1]), (keys, heads[1]))
    q, k, v = (torch.randn(*shape, 16, generator=random).half() for shape in shapes)
    return q, k, v


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 20), heads, st.booleans(), seeds)
def test_attention(
    queries: int, past: int, heads: tuple[int, int], causal: bool, seed: int
) -> None:
    rows = [random_qkv(queries, past + queries, heads, seed + n) for n in range(2)]
    q, k, v = (torch.stack(parts) for parts in zip(*rows, strict=True))
    got = attention.flash_attn_func(q, k, v, causal=causal)
    expected = torch.stack([plain_attention(*row, causal) for row in rows])
    assert_near(got, expected)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4), seeds)
def test_attention_of_sequences_behind_each_other(sizes: list[tuple[int, int]], seed: int) -> None:
    rows = [random_qkv(n, n + past, (4, 2), seed + past) for n, past in sizes]
    q, k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
    q_starts, k_starts = (
        torch.tensor([0, *(len(row[part]) for row in rows)]).cumsum(0).int() for part in (0, 1)
    )
    got = attention.flash_attn_varlen_func(q, k, v, q_starts, k_starts, 6, 15, causal=True)
    assert_near(got, torch.cat([plain_attention(*row, True) for row in rows]))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 600), min_size=1, max_size=3),
    st.integers(1, 5),
    st.booleans(),
    seeds,
)
def test_attention_to_pages(lengths: list[int], new: int, append: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    pages = torch.randperm(4 * len(lengths), generator=random)[: 3 * len(lengths)]
    table = pages.view(len(lengths), 3).int()
    caches = [torch.randn(4 * len(lengths), PAGE, 2, 16, generator=random).half() for _ in "kv"]
    before = [cache.clone() for cache in caches]
    rows = [random_qkv(new, length + new, (4, 2), seed + length) for length in lengths]
    for row, (_, k, v) in enumerate(rows):
        for cache, part in zip(caches, (k, v), strict=True):
            known = part[: lengths[row]] if append else part
            for at, token in enumerate(known):
                cache[table[row, at // PAGE], at % PAGE] = token
    q = torch.stack([row[0] for row in rows])
    seqlens = torch.tensor(lengths, dtype=torch.int32) + (0 if append else new)
    fresh = [torch.stack([row[part][-new:] for row in rows]) for part in (1, 2)]
    got = attention.flash_attn_with_kvcache(
        q,
        *caches,
        *(fresh if append else (None, None)),
        cache_seqlens=seqlens,
        block_table=table,
        causal=True,
    )
    assert_near(got, torch.stack([plain_attention(*row, True) for row in rows]))
    unused = [page for page in range(4 * len(lengths)) if page not in pages]
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[unused], old[unused])
    for row, (_, k, v) in enumerate(rows):  # what was appended stands behind the rest
        for cache, part in zip(caches, (k, v), strict=True):
            assert torch.equal(cache[table[row].long()].flatten(0, 1)[: len(part)], part)


def test_attention_that_flash_attn_cannot_do() -> None:
    q, k, v = random_qkv(3, 3, (4, 2), 0)
    cache = torch.zeros(2, PAGE, 2, 16).half()
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

    def paged(k_cache: Tensor = cache, table: Tensor = table, lengths: Tensor = lengths) -> None:
        attention.flash_attn_with_kvcache(
            q[None],
            k_cache,
            k_cache,
            k[None],
            v[None],
            cache_seqlens=lengths,
            block_table=table,
        )

    paged()
    for call, why in (
        (lambda: attention.flash_attn_func(q[None].float(), k[None], v[None]), "float16"),
        (lambda: attention.flash_attn_func(q[None], k[None].bfloat16(), v[None]), "one dtype"),
        (lambda: attention.flash_attn_func(q[None, :, :3], k[None], v[None]), "multiple"),
        (lambda: paged(k_cache=cache[:, :128]), "multiple of 256"),
        (lambda: paged(table=table.long()), "int32"),
        (lambda: paged(lengths=lengths.long()), "int32"),
        (lambda: paged(lengths=lengths + 254), "too short"),
        (lambda: paged(table=table + 2), "outside of the cache"),
    ):
        with pytest.raises(RuntimeError, match=why):
            call()


# install


def test_flash_attn_can_be_left_out(exllamav2: Any, target: Any) -> None:
    attn = importlib.import_module("exllamav2.attn")
    ids = random_ids(500, 20)
    with_it = forward(target, ids, make_cache(target, tokens=256))
    install(flash_attention=False)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("flash_attn")
        assert importlib.util.find_spec("flash_attn") is None
        with pytest.raises(AssertionError, match="Paged attention"):
            attn.assert_paged_attn()
        target.config.no_sdpa = True
        without = forward(target, ids, make_cache(target, tokens=256))
        torch.testing.assert_close(without, with_it, rtol=0, atol=0.1)
    finally:
        target.config.no_sdpa = False
        install()
    attn.assert_paged_attn()
    assert importlib.util.find_spec("flash_attn") is not None
    again = forward(target, ids, make_cache(target, tokens=256))
    assert torch.equal(again, with_it) and not torch.equal(again, without)


ORDER = """
import torch
torch.set_num_threads(3)
from support.exl2.install import install
{before}
install()
assert torch.get_num_threads() == 3
"""


@pytest.mark.parametrize("early", [False, True])
def test_install_comes_first_and_leaves_threads_alone(exllamav2: Any, early: bool) -> None:
    before = "import sys; sys.modules['exllamav2'] = sys" if early else ""
    tests = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", ORDER.format(before=before)],
        cwd=tests,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if early:
        assert "imported before" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
