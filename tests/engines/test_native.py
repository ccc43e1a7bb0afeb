"""The compiled code: a row's result is the same to the bit in whatever pass, and that of torch up to
rounding; and where it cannot be had, everything goes on without."""

from __future__ import annotations

import logging
import math
import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import Tensor

from completion_ls.config.settings import EngineSettings
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines import native as native_module
from completion_ls.engines.compiled import Compiled
from completion_ls.engines.contract import Engine, Event, Job, Lane, Sampling, Unfinished
from completion_ls.engines.kv import KvCache
from completion_ls.engines.linear import Bf16Linear, Float32Linear, Int4Linear, Int8Linear
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import (
    Native,
    NativeAttention,
    Seen,
    kv_shape,
    load_native,
)
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.engines.tree import KvSequence, Node, View
from completion_ls.engines.weights import LayerWeights
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.long
KINDS = ["int8", "int4", "bf16"]
MODELS = ["heads-of-16", "qwen3", "one-key-head"]
KEYS = 128
"""Keys in a block of the attention."""
MANY = 16
"""More rows than this go through a layer another way."""
TEXT = random.Random(8).choices(range(97), k=300)
ROOM = 1024

compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(not compiler, reason="there is no C compiler")


@pytest.fixture(scope="module")
def native() -> Native:
    found = load_native()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


@dataclass(frozen=True)
class Known:
    """A compiled model, and what it says and keeps of `TEXT` read token by token."""

    model: Llama
    logits: Tensor
    kept: list[Tensor]


@pytest.fixture(scope="module")
def known(
    native: Native, tiny: Callable, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Known]:
    made: dict[tuple[str, str], Known] = {}
    cache = tmp_path_factory.mktemp("cache")

    def make(name: str, kind: str) -> Known:
        if (name, kind) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("COMPLETION_LS_CACHE_DIR", str(cache))
                model = Llama.read(tiny(name).folder, kind, native)
            assert model.is_compiled
            model.use_threads(1)
            kv = empty(model)
            rows = [put(model, kv, [token], 1) for token in TEXT]
            made[name, kind] = Known(model, torch.cat(rows), kept(kv, range(len(TEXT))))
        return made[name, kind]

    return make


def empty(model: Llama, room: int = ROOM) -> KvSequence:
    kv = KvCache(model.kv, 2**28).acquire([0], room)
    assert kv is not None
    for layer in kv.layers:
        layer.fill_(-1)  # what nobody wrote must not be read: units that are not numbers
    return kv


def put(model: Llama, kv: KvSequence, tokens: list[int], logits_of: int) -> Tensor:
    rows = model.forward(tokens, kv, logits_of)
    kv.extend(tokens)
    return rows


def numbers(rows: Tensor, size: int) -> Tensor:
    """The keys and values that the functions keep as `rows`."""
    return rows[..., :size] * rows[..., -4:].contiguous().view(torch.float32)


def kept(kv: KvSequence, slots: list[int] | range) -> list[Tensor]:
    return [layer[:, :, list(slots)].clone() for layer in kv.layers]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# passes


widths = st.one_of(
    st.sampled_from([1, 2, 3, 5, 8, MANY, MANY + 1, 2 * MANY, KEYS - 1, KEYS, KEYS + 1]),
    st.integers(1, 200),
)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(KINDS),
    st.lists(widths, max_size=12),
    st.integers(1, 3),
)
def test_no_way_to_split_a_text_changes_a_bit(
    known: Callable, name: str, kind: str, splits: list[int], threads: int
) -> None:
    one = known(name, kind)
    one.model.use_threads(threads)
    kv, rows = empty(one.model), []
    for width in [*splits, len(TEXT)]:
        tokens = TEXT[kv.length : kv.length + width]
        if tokens:
            rows.append(put(one.model, kv, tokens, len(tokens)))
    one.model.use_threads(1)
    assert torch.equal(torch.cat(rows), one.logits)
    assert_same(kept(kv, range(len(TEXT))), one.kept)


OTHER_PROCESSORS = {
    "eight-lanes": ["-mno-avx512f"],
    "no-vnni": ["-mno-avx512vnni", "-mno-avxvnni"],
    "no-avx2": ["-mno-avx512f", "-mno-avx2", "-mno-fma"],
    "amd": ["-mtune=znver3"],
    "amd-512": ["-mtune=znver3", "--param", "avoid-fma-max-bits=512"],
}
"""What GCC is told in place of having them."""


@pytest.mark.skipif(
    not shutil.which("gcc") or platform.machine() != "x86_64", reason="for GCC and x86-64"
)
@pytest.mark.parametrize("name", OTHER_PROCESSORS)
def test_other_processors_keep_their_bits_too(
    tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    library = native_module._library([str(shutil.which("gcc")), *OTHER_PROCESSORS[name]])
    native = Native(library)
    native.use_threads(2)
    for kind in KINDS:
        model = Llama.read(tiny("heads-of-16").folder, kind, native)
        assert model.is_compiled
        kv = empty(model)
        alone = torch.cat([put(model, kv, [token], 1) for token in TEXT])
        for split in (2, 3, 5, 8, 17, 40, 150):
            kv, rows = empty(model), []
            for start in range(0, len(TEXT), split):
                tokens = TEXT[start : start + split]
                rows.append(put(model, kv, tokens, len(tokens)))
            assert torch.equal(torch.cat(rows), alone), (kind, split)


def test_only_the_last_logits_may_be_asked_for(known: Callable) -> None:
    one = known("heads-of-16", "int8")
    for wanted in (0, 1, 40):
        kv = empty(one.model)
        rows = put(one.model, kv, TEXT, wanted)
        assert torch.equal(rows, one.logits[len(TEXT) - wanted :])
        assert_same(kept(kv, range(len(TEXT))), one.kept)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(KINDS),
    st.integers(0, len(TEXT) - 1),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 20, 40]),
    st.integers(1, 3),
)
def test_no_tree_changes_a_bit(
    known: Callable, name: str, kind: str, line: int, seed: int, width: int, threads: int
) -> None:
    """`TEXT` grows behind a line together with branches of junk, in passes of mixed nodes."""
    one, draw = known(name, kind), random.Random(seed)
    model = one.model
    model.use_threads(threads)
    kv = empty(model)
    if line:
        put(model, kv, TEXT[:line], 0)
    places = list(range(line))
    """The slots of `TEXT` so far."""
    rows: dict[int, Tensor] = {}
    while len(places) < len(TEXT) and kv.length < ROOM - width:
        nodes: list[Node] = []
        taken = {*kv._branches}
        for _ in range(draw.randint(1, width)):
            end = kv.length + len(nodes)
            if draw.random() < 0.7 and len(places) < len(TEXT):
                node = (places[-1] if places else -1, TEXT[len(places)])
                places.append(end)
            else:
                node = draw.randrange(-1, end), draw.randrange(97)
                reading = TEXT[places.index(node[0]) + 1 :] if node[0] in places else TEXT
                if node in taken or (reading and node[1] == reading[0]):
                    continue
            nodes.append(node)
            taken.add(node)
        if not nodes:
            continue
        new = model.forward([token for _, token in nodes], kv, len(nodes), kv.view(nodes))
        rows.update(zip(kv.branch(nodes), new, strict=True))
        if draw.random() < 0.1:  # as the next keystroke does
            kv.straighten(kv.find(TEXT[: len(places)]))
            places, rows = list(range(len(places))), {}
    model.use_threads(1)
    path = kv.find(TEXT[: len(places)])
    assert [*range(path.common), *path.slots] == places
    assert_same(kept(kv, places), [layer[:, :, : len(places)] for layer in one.kept])
    for place, slot in enumerate(places):
        if slot in rows:
            assert torch.equal(rows[slot], one.logits[place])
    # The junk has a past of its own, which is read once more in a line.
    for slot in draw.sample(sorted(rows), min(3, len(rows))):
        text, alone = text_of(kv, slot), empty(model)
        assert torch.equal(put(model, alone, text, 1)[0], rows[slot])
        assert_same(kept(alone, [len(text) - 1]), kept(kv, [slot]))


def text_of(kv: KvSequence, slot: int) -> list[int]:
    """The text that ends in a slot."""
    text = []
    while slot >= kv.line:
        text.append(kv.tokens[slot])
        slot = kv._follows[slot - kv.line]
    return kv.tokens[: slot + 1] + text[::-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("good", "bad"), [(1, 1), (12, 8)])  # few queries, and many
def test_a_row_does_not_see_what_is_not_finite_behind_it(
    known: Callable, kind: str, good: int, bad: int
) -> None:
    """A damaged token may stand in a draft, and its logits say so; those before it are as ever."""
    one = known("one-key-head" if good + bad > 2 else "qwen3", kind)
    kv = empty(one.model)
    put(one.model, kv, TEXT[:120], 0)
    count = good + bad
    rows = one.model.weights.embedding.rows(torch.tensor(TEXT[120 : 120 + count]))
    rows[good:] = math.nan
    view = View(list(range(120, 120 + count)), 120, None)
    cos, sin = one.model._rotation(view.positions)
    compiled = one.model._compiled
    assert compiled is not None
    with torch.inference_mode():
        got = compiled.forward(rows, kv.layers, 120, view, cos, sin, count)
    assert torch.equal(got[:good], one.logits[120 : 120 + good])
    assert not torch.isfinite(got[good:]).any()


# torch


class Rounded(Llama):
    """On torch, with keys and values rounded as the functions keep them."""

    def _write(
        self, layer: LayerWeights, x: Tensor, cache: Tensor, past: int, cos: Tensor, sin: Tensor
    ) -> Tensor:
        queries = super()._write(layer, x, cache, past, cos, sin)
        new = cache[:, :, past : past + len(x)]
        unit = new.abs().amax(-1, keepdim=True) / 127
        new.copy_((new / unit).round() * unit)
        return queries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_torch_computes_the_same_up_to_rounding(
    known: Callable, tiny: Callable, name: str, kind: str
) -> None:
    one = known(name, kind)
    plain = Rounded(one.model.shape, one.model.weights)
    kv = KvCache(plain.kv, 2**26).acquire([0], ROOM)
    assert kv is not None and not plain.is_compiled
    expected = put(plain, kv, TEXT, len(TEXT))
    # Some of what is kept is rounded the other way, so most rows are near, none far.
    away = (expected - one.logits).abs().amax(-1) / expected.std()
    assert away.median() < 0.01
    assert away.max() < 0.1
    for got, want in zip(one.kept, kept(kv, range(len(TEXT))), strict=True):
        off = (numbers(got, want.shape[-1]) - want).abs()
        assert off.median() <= 0.004 * want.abs().median()


@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_transformers_computes_nearly_the_same(known: Callable, tiny: Callable, kind: str) -> None:
    for name in MODELS:
        one = known(name, kind)
        with torch.inference_mode():
            expected = tiny(name).reference(torch.tensor([TEXT])).logits[0]
        away = (expected - one.logits).abs().amax(-1) / expected.std()
        assert away.median() < 0.5, name  # of quantised weights in a model that multiplies errors


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([16, 32, 48, 64, 80, 128, 192, 256]),
    heads=st.sampled_from([(1, 1), (3, 3), (6, 2), (16, 1), (15, 5)]),
    rows=st.sampled_from([1, 2, 3, 16, 32, 33, 70]),
    past=st.sampled_from([0, 1, 90, 127, 128, 129, 255, 256, 300]),
    norms=st.booleans(),
    is_tree=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_attention_of_every_shape(
    native: Native,
    size: int,
    heads: tuple[int, int],
    rows: int,
    past: int,
    norms: bool,
    is_tree: bool,
    seed: int,
) -> None:
    """Against the formula in float64."""
    native.use_threads(1 + seed % 3)
    random_ = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    count, kv_heads = heads
    shape = SimpleNamespace(layers=1, heads=count, kv_heads=kv_heads, head_dim=size, norm_eps=1e-5)
    q_norm, k_norm = (
        (1 + 0.3 * torch.randn(size, generator=random_) for _ in range(2))
        if norms
        else (None, None)
    )
    kept_as = kv_shape(shape)
    capacity = past + rows + draw.choice((0, 40))
    cache = kept_as.empty(capacity)
    cache[..., :-4] = torch.randint(-127, 128, cache[..., :-4].shape, generator=random_)
    cache[..., size:-4] = 0
    cache[..., -4:] = (torch.rand(2, kv_heads, capacity, 1, generator=random_) / 50).view(
        torch.int8
    )
    cache[:, :, past:] = -1
    qkv = 2 * torch.randn(rows, (count + 2 * kv_heads) * size, generator=random_)
    positions = list(range(past, past + rows))
    paths = None
    if is_tree:
        # Each row sees the line up to a common place, some slots behind that, and itself.
        common = draw.randint(0, past)
        behind = [
            sorted(draw.sample(range(common, past + row), draw.randint(0, past + row - common)))
            for row in range(rows)
        ]
        paths = [[*slots, past + row] for row, slots in enumerate(behind)]
        positions = [common + len(path) - 1 for path in paths]
    view = View(positions, common if paths else past, paths)
    angles = torch.outer(torch.tensor(positions).float(), 0.1 ** torch.arange(size // 2))[:, None]
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    before = cache.clone()
    attend: NativeAttention = native.attention(shape, q_norm, k_norm)
    got = attend(qkv, cos, sin, cache, past, Seen.of(view))

    q, k, v = qkv.view(rows, -1, size).double().split([count, kv_heads, kv_heads], 1)
    if norms:
        q, k = (
            x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
            for x, weight in ((q, q_norm), (k, k_norm))
        )
    q, k = (x * cos + x.roll(size // 2, -1) * sin for x in (q, k))
    assert torch.equal(cache[:, :, :past], before[:, :, :past])
    cache = numbers(cache, size).double()
    for new, exact in zip(cache[:, :, past : past + rows].transpose(1, 2), (k, v), strict=True):
        assert ((new - exact).abs() <= exact.abs().amax(-1, keepdim=True) / 127 * 0.501).all()
    for row in range(rows):
        seen = [*range(view.common), *paths[row]] if paths else list(range(past + row + 1))
        keys, values = cache[:, :, seen]
        for head in range(count):
            own = head // (count // kv_heads)
            weights = (keys[own] @ q[row, head] / math.sqrt(size)).softmax(0)
            torch.testing.assert_close(
                got[row].view(count, size)[head].double(),
                weights @ values[own],
                rtol=1e-3,  # a query has 15 bits
                atol=1e-3,
            )


# layers


def layers(outputs: int, inputs: int, has_bias: bool) -> list[Int8Linear | Int4Linear | Bf16Linear]:
    weight = torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if has_bias else None
    return [
        Int8Linear.of(weight, bias),
        Int4Linear.of(weight, bias),
        Bf16Linear(weight.bfloat16(), bias),
    ]


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 32), (3, 64), (70, 96), (130, 544), (64, 1536)]
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_is_the_same_in_every_pass_and_on_torch(
    native: Native, outputs: int, inputs: int, has_bias: bool
) -> None:
    torch.manual_seed(outputs)
    x = torch.randn(100, inputs) * torch.logspace(-3, 3, 100)[:, None]
    x[7] = 0
    x[8, 5] = 1e6  # an outlier
    for layer in layers(outputs, inputs, has_bias):
        prepared = native.prepare(layer)
        assert prepared is not None
        alone = torch.cat([prepared(x[row : row + 1]) for row in range(100)])
        expected = layer(x)
        if isinstance(layer, Int8Linear):
            assert torch.equal(alone, expected)
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4 * float(x.abs().max()))
        for width in (2, 3, 4, 5, 7, 8, 9, MANY, MANY + 1, 64, 100):
            native.use_threads(1 + width % 3)
            assert torch.equal(prepared(x[:width]), alone[:width])
            assert torch.equal(prepared(x[100 - width :]), alone[100 - width :])
            base = torch.randn(width, outputs)
            added = prepared(x[:width], add_to=base.clone())
            assert torch.equal(added, base + alone[:width])
    native.use_threads(1)


@pytest.mark.parametrize("rows", [1, 5, MANY + 1])
def test_what_comes_before_a_layer(native: Native, rows: int) -> None:
    torch.manual_seed(rows)
    x = 3 * torch.randn(rows, 192)
    x[0, :96], x[0, 96:] = torch.linspace(-300, 300, 96), 1.0  # silu goes from 0 to x
    norm = 1 + torch.randn(192)
    for layer in layers(50, 192, True):
        prepared = native.prepare(layer)
        assert prepared is not None
        got = prepared(x, norm, 1e-5)
        normal = torch.nn.functional.rms_norm(x, (192,), norm, 1e-5)
        torch.testing.assert_close(got, layer(normal), rtol=1e-3, atol=1e-2)
    for layer in layers(50, 96, True):
        prepared = native.prepare(layer)
        assert prepared is not None
        gated = torch.nn.functional.silu(x[:, :96]) * x[:, 96:]
        torch.testing.assert_close(prepared(x, gated=True), layer(gated), rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("rows", [1, 4, 9, MANY + 1])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_becomes_a_number(native: Native, rows: int, wrong: float) -> None:
    torch.manual_seed(1)
    for layer in layers(40, 64, True):
        prepared = native.prepare(layer)
        assert prepared is not None
        good = torch.randn(rows, 64)
        for place in (0, 17, 63):
            bad = good.clone()
            bad[rows // 2, place] = wrong
            for compute in (layer, prepared):
                got = compute(bad)
                assert not torch.isfinite(got[rows // 2]).any()
                others = [row for row in range(rows) if row != rows // 2]
                assert torch.equal(got[others], compute(good)[others])


def test_largest_and_smallest_numbers(native: Native) -> None:
    torch.manual_seed(2)
    layer = Int8Linear.of(torch.randn(40, 64), None)
    prepared = native.prepare(layer)
    assert prepared is not None
    for size in (1e-45, 1e-40, 1e-30, 1e30, 3e36):
        for rows in (3, MANY + 3):
            x = torch.randn(rows, 64).clamp(-4, 4) * size
            assert torch.equal(prepared(x), layer(x))
            torch.testing.assert_close(
                prepared(x) / size,
                torch.nn.functional.linear(x / size, layer.rows(torch.arange(40))),
                atol=1e-2 if size > 1e-32 else math.inf,
                rtol=0,
            )
            assert torch.isfinite(prepared(x)).all()


def test_sums_at_their_limit(native: Native) -> None:
    """All weights and all inputs at their largest: the sums just fit."""
    for inputs in (32, 520, 522, 4096, 49152):
        for sign in (1, -1):
            layer = Int8Linear.of(torch.full((5, inputs), 2.0), None)
            prepared = native.prepare(layer)
            assert prepared is not None
            for rows in (1, 4, MANY + 1):
                x = torch.full((rows, inputs), 3.0 * sign)
                expected = torch.full((rows, 5), 6.0 * sign * inputs)
                torch.testing.assert_close(prepared(x), expected, rtol=1e-5, atol=0)
                assert torch.equal(prepared(x), layer(x))


def test_layers_that_it_cannot_do_are_refused(native: Native) -> None:
    assert native.prepare(Float32Linear(torch.zeros(4, 32), None)) is None
    assert native.prepare(Bf16Linear(torch.zeros(4, 40, dtype=torch.bfloat16), None)) is None


def test_models_that_it_cannot_do_run_on_torch(
    native: Native, tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    for name, kind in [("llama", "int8"), ("heads-of-16", "float32")]:  # heads of 8
        model = Llama.read(tiny(name).folder, kind, native)
        assert not model.is_compiled and model.kv.dtype == torch.float32
    model = Llama.read(tiny("qwen3").folder, "bf16", native)
    odd = Bf16Linear(torch.zeros(48, 90, dtype=torch.bfloat16), None)
    layer = model.weights.layers[0]
    weights = SimpleNamespace(
        embedding=model.weights.embedding,
        norm=model.weights.norm,
        head=model.weights.head,
        layers=(
            SimpleNamespace(**{f: getattr(layer, f) for f in layer.__slots__} | {"down": odd}),
        ),
    )
    assert Compiled.of(model.shape, weights, native) is None


# threads


def test_thousands_of_calls_while_the_number_of_threads_changes(native: Native) -> None:
    torch.manual_seed(3)
    layer = native.prepare(Int8Linear.of(torch.randn(66, 64), torch.randn(66)))
    assert layer is not None
    x = torch.randn(5, 64)
    expected = layer(x)
    draw = random.Random(3)
    ends = time.monotonic() + 1
    for number in range(20_000):
        if number % 7 == 0:
            native.use_threads(draw.randint(1, 4))
        if number % 500 == 0:
            time.sleep(0.0005)  # so that helpers go to sleep
        assert torch.equal(layer(x), expected)
        if time.monotonic() > ends:
            break
    native.use_threads(1)


def test_callers_in_several_threads_take_turns(known: Callable, native: Native) -> None:
    one = known("qwen3", "int4")
    native.use_threads(3)
    wrong: list[int] = []

    def work(number: int) -> None:
        kv = empty(one.model, ROOM + 256 * number)
        for start in range(0, 200, 10):
            if number == 0:
                native.use_threads(1 + start // 10 % 4)
            rows = put(one.model, kv, TEXT[start : start + 10], 10)
            if not torch.equal(rows, one.logits[start : start + 10]):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    native.use_threads(1)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_goes_on_without_the_threads(native: Native) -> None:
    torch.manual_seed(4)
    layer = native.prepare(Int4Linear.of(torch.randn(64, 64), None))
    assert layer is not None
    x = torch.randn(3, 64)
    expected = layer(x)
    for pause in (0, 0, 0, 0.01):
        native.use_threads(4)
        layer(x)
        time.sleep(pause)  # the helpers are awake, or asleep
        child = os.fork()
        if not child:
            same = all(torch.equal(layer(x), expected) for _ in range(50))
            native.use_threads(3)
            same = same and all(torch.equal(layer(x), expected) for _ in range(50))
            os._exit(0 if same else 1)
        for _ in range(1000):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the forked process hangs")
        assert status == 0
    native.use_threads(1)


# engines


@dataclass(frozen=True)
class Words:
    """A model with a tokenizer."""

    folder: Path
    tokens: tuple[int, ...]
    """A text's tokens, each a part of a word."""
    spelling: tuple[bytes, ...]


@pytest.fixture(scope="module")
def words(tiny: Callable, tmp_path_factory: pytest.TempPathFactory) -> Words:
    source = write_tiny_model(tmp_path_factory.mktemp("words") / "model")
    folder = tiny("words").folder
    shutil.copy(source / "tokenizer.json", folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "def add(a, b):\n    return value\nfor values in add(b, value):\n    print(a)\n" * 12
    tokens = tuple(tokenizer.encode(text).ids)
    assert len(tokens) > 2 * KEYS + 40
    return Words(folder, tokens, tuple(map(Vocabulary(tokenizer).bytes_of, tokens)))


_ids = count(1)

histories = st.lists(
    st.tuples(
        st.sampled_from(["type", "type", "type", "jump", "cancel", "step", "step"]),
        st.integers(1, 12),
        st.sampled_from([0, 0, 1, 2]),  # tokens of an unfinished word
    ),
    max_size=20,
)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(KINDS), histories, st.sampled_from([20, 110, 240]), st.sampled_from([0.0, 0.9])
)
def test_no_history_of_an_engine_changes_an_answer(
    native: Native,
    words: Words,
    load_engine: Callable[..., Engine],
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    history: list[tuple[str, int, int]],
    cursor: int,
    temperature: float,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPLETION_LS_CACHE_DIR", str(cache_of(tmp_path_factory)))
        engine = load_engine(words.folder, weights=kind, prefill_chunk=50)
        fresh = load_engine(words.folder, weights=kind, prefill_chunk=128)
    assert isinstance(engine, TorchCpuEngine) and engine.model.is_compiled
    jobs: dict[int, Job] = {}
    events: list[Event] = []
    cancelled: set[int] = set()
    for action, number, unfinished in history:
        if action == "step":
            events += [event for _ in range(number) for event in engine.step()]
        elif action == "cancel" and jobs:
            chosen = list(jobs)[-1 - number % len(jobs)]
            engine.cancel(chosen)
            cancelled.add(chosen)
        else:
            cursor = 10 + (cursor + (number if action == "type" else 37 * number)) % 260
            prompt = words.tokens[:cursor] + ((5, 6) if action == "jump" else ())
            tail = b"".join(words.spelling[cursor - unfinished : cursor])
            word = Unfinished(tail, unfinished) if unfinished and action == "type" else None
            one = Job(
                next(_ids),
                prompt,
                number,
                sampling=Sampling(temperature, seed=number),
                lane=Lane(number % 3),
                unfinished=word,
            )
            jobs[one.id] = one
            engine.add(one)
    while new := engine.step():
        events += new
    for one in jobs.values():
        if one.id in cancelled:
            continue
        got = answer([event for event in events if event.job_id == one.id])
        fresh.close()
        fresh.add(one)
        expected = []
        while new := fresh.step():
            expected += new
        assert got == answer(expected)


def answer(events: list[Event]) -> tuple[list[int], list[float], object]:
    tokens = [token for event in events for token in event.tokens]
    logprobs = [logprob for event in events for logprob in event.logprobs]
    return tokens, logprobs, events[-1].finish


_caches: list[Path] = []


def cache_of(factory: pytest.TempPathFactory) -> Path:
    """One cache of weights for all examples of a test."""
    if not _caches:
        _caches.append(factory.mktemp("weights"))
    return _caches[0]


# where it comes from


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and no $CC."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The functions without their insides, which take a moment less to compile."""
    names = ("use_threads", "linear", "attend")
    source = tmp_path / "small.c"
    source.write_text("".join(f"int {name}(int x) {{ return x; }}\n" for name in names))
    monkeypatch.setattr(native_module, "SOURCE", source)


def load() -> Native | None:
    return load_native.__wrapped__()


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def logging_compiler(path: Path, log: Path) -> Path:
    """The compiler, which notes what it is asked."""
    return script(path, f'echo "$*" >> "{log}"', f'exec "{compiler}" "$@"')


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("kernels/*"))


def test_without_a_compiler_everything_runs_on_torch(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny: Callable,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level(logging.INFO)
    assert load() is None
    assert "no C compiler" in caplog.text
    monkeypatch.setattr("completion_ls.engines.torch_cpu.load_native", load)
    for kind in KINDS:
        engine = TorchCpuEngine.load(tiny("qwen3").folder, EngineSettings(threads=1, weights=kind))
        engine.add(Job(1, tuple(TEXT[:40]), 5))
        tokens: list[int] = []
        while new := engine.step():
            tokens += [token for event in new for token in event.tokens]
        assert len(tokens) == 5


@needs_compiler
def test_it_is_compiled_once(
    cache: Path, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("CC", str(logging_compiler(tmp_path / "my cc", log)))
    assert load() is not None
    (first,) = libraries(cache)
    asked = log.read_text().splitlines()
    assert asked[0] == "--version" and len(asked) == 2
    assert load() is not None
    assert log.read_text().splitlines() == [*asked, "--version"]
    assert libraries(cache) == [first]


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "half", "a bit"])
def test_a_damaged_library_is_made_again(
    cache: Path, small: None, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load() is not None
    (made,) = libraries(cache)
    good = made.read_bytes()
    made.unlink()  # the one that is loaded stays as it is
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    made.write_bytes(
        {"empty": b"", "half": good[: len(good) // 2], "a bit": bytes(flipped)}[damage]
    )
    assert load() is not None
    assert libraries(cache) == [made] and made.read_bytes() == good


@needs_compiler
def test_cc_may_have_arguments_and_blanks_in_its_path(
    cache: Path, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "my tools"
    folder.mkdir()
    named = logging_compiler(folder / "cc", log)
    for value in (
        str(named),
        f"'{named}' -DONE",
        f"{str(named).replace(' ', chr(92) + ' ')} -DTWO",
    ):
        monkeypatch.setenv("CC", value)
        assert load() is not None
    asked = [line for line in log.read_text().splitlines() if not line.endswith("--version")]
    assert len(asked) == 3 and "-DONE" in asked[1] and "-DTWO" in asked[2]
    assert len(libraries(cache)) == 3


@needs_compiler
@pytest.mark.parametrize(
    "lines",
    [
        ['echo "it\'s broken: \\351" >&2', "exit 1"],  # and says so in no known encoding
        ['test "$1" = --version || exit 3'],
        ["exit 0"],  # makes nothing
        ['for last; do :; done; test "$1" = --version || echo foreign > "$last"'],
        ['for last; do :; done; test "$1" = --version || : > "$last"'],
        ["kill -9 $$"],
    ],
)
def test_after_a_compiler_that_fails_the_next_is_tried(
    cache: Path,
    small: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lines: list[str],
) -> None:
    bad = script(tmp_path / "badcc", *lines)
    monkeypatch.setenv("CC", str(bad))
    assert load() is not None
    assert str(bad) in caplog.text
    monkeypatch.setenv("PATH", "/nonexistent")
    caplog.clear()
    assert load() is None
    assert str(bad) in caplog.text
    assert not [path for path in libraries(cache) if path.is_dir()]


@pytest.mark.parametrize("hangs", ["always", "compiling"])
def test_a_compiler_that_hangs_is_ended_with_its_children(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: str,
) -> None:
    monkeypatch.setattr(native_module, "_VERSION_S", 0.3)
    monkeypatch.setattr(native_module, "_COMPILE_S", 0.3)
    child = tmp_path / "child"
    first = 'test "$1" = --version && exit 0' if hangs == "compiling" else ":"
    lines = [first, f'/bin/sleep 60 & echo $! > "{child}"', "wait"]
    monkeypatch.setenv("CC", str(script(tmp_path / "slow", *lines)))
    monkeypatch.setenv("PATH", "/nonexistent")
    began = time.monotonic()
    assert load() is None
    assert time.monotonic() - began < 30  # and not the child's sixty
    assert "slow" in caplog.text
    for _ in range(200):
        if not is_running(int(child.read_text())):
            break
        time.sleep(0.01)
    else:
        pytest.fail("the child still runs")
    assert libraries(cache) == []


def is_running(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@needs_compiler
@pytest.mark.parametrize("place", ["a file", "below a file", "closed"])
def test_a_cache_folder_that_cannot_be_used_is_no_error(
    cache: Path,
    small: None,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if place == "a file":
        cache.touch()
    elif place == "below a file":
        cache.touch()
        monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(cache / "deep"))
    else:
        cache.mkdir()
        (cache / "kernels").mkdir(mode=0o500)
    found = load()
    if place == "closed" and os.getuid() == 0:
        assert found is not None  # nothing is closed to root
    else:
        assert found is None
        assert "cannot be had" in caplog.text


@needs_compiler
def test_a_library_that_this_machine_cannot_load(
    cache: Path,
    small: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As from a cross compiler, or on a file system without execution: it is not made each time."""
    log = tmp_path / "log"
    lines = [
        f'echo "$*" >> "{log}"',
        "for last; do :; done",
        'test "$1" = --version || echo no > "$last"',
    ]
    monkeypatch.setenv("CC", str(script(tmp_path / "cross", *lines)))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert load() is None
    assert load() is None
    assert len([line for line in log.read_text().splitlines() if line != "--version"]) == 1
    assert "cross" in caplog.text


@needs_compiler
@pytest.mark.long
def test_two_processes_at_once_compile_one_library(cache: Path) -> None:
    code = (
        "from completion_ls.engines.native import load_native\nassert load_native() is not None\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    (made,) = libraries(cache)
    assert made.suffix == ".so"


@pytest.mark.long
@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "AVX512_CORE", "ALL"])
def test_products_of_bytes_are_exact_on_older_processors(isa: str) -> None:
    """There torch's own products of bytes are not (other machines ignore the variable)."""
    code = """
import torch
from completion_ls.engines.linear import Int8Linear, _product_of_bytes
from completion_ls.engines.native import load_native


torch.manual_seed(1)
for rows, outputs, inputs in ((1, 64, 64), (40, 100, 48), (70, 192, 1536)):
    a = torch.randint(-128, 128, (rows, inputs), dtype=torch.int8)
    w = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    a[0], a[-1], w[0], w[1] = 127, -128, 127, -127
    assert torch.equal(_product_of_bytes(a, w).long(), a.long() @ w.long().t())
    layer = Int8Linear(w, torch.rand(outputs), None)
    x = torch.randn(rows, inputs)
    x[0] = 1.0
    if native := load_native():
        assert torch.equal(native.prepare(layer)(x), layer(x))
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
