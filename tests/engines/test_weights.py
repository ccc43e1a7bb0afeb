"""Weights of fewer bits: how near they are, and the file that they are kept in."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from completion_ls.engines import linear as linear_module
from completion_ls.engines import weight_cache
from completion_ls.engines.linear import (
    GROUP,
    Bf16Linear,
    Float32Linear,
    Int4Linear,
    Int8Linear,
    bytes_multiply_exactly,
)
from completion_ls.engines.shape import LlamaShape, read_shape
from completion_ls.engines.weight_cache import load_weights
from completion_ls.engines.weights import LlamaWeights, WeightKind, read_weights, tensors_of

KINDS: list[WeightKind] = ["int8", "int4", "bf16"]

sizes = st.sampled_from([1e-30, 1e-4, 1.0, 1e4, 1e30])


def all_rows(layer: Int8Linear | Bf16Linear | Float32Linear) -> Tensor:
    return layer.rows(torch.arange(layer.outputs))


# layers


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.integers(1, 100), sizes, st.integers(0, 2**32))
def test_eight_bits_are_within_half_a_unit_of_a_row(
    outputs: int, inputs: int, size: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(outputs, inputs, generator=random)
    weight *= torch.logspace(-3, 0, outputs)[:, None]  # rows of their own size
    layer = Int8Linear.of(weight, None)
    assert (layer.outputs, layer.inputs) == (outputs, inputs)
    unit = weight.abs().amax(1, keepdim=True) / 127
    assert ((all_rows(layer) - weight).abs() <= 0.50001 * unit).all()
    assert (layer.weight.abs().amax(1) == 127).all()
    # The largest of a row is as it was.
    torch.testing.assert_close(
        all_rows(layer).abs().amax(1), weight.abs().amax(1), rtol=1e-6, atol=0
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), sizes, st.floats(-20, 20), st.integers(0, 2**32))
def test_four_bits_are_within_half_a_unit_of_a_group(
    outputs: int, groups: int, size: float, offset: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = size * (torch.randn(outputs, groups * GROUP, generator=random) + offset)
    layer = Int4Linear.of(weight, None)
    assert (layer.outputs, layer.inputs) == (outputs, groups * GROUP)
    away = (layer._floats() - weight).abs().view(outputs, groups, GROUP)
    parts = weight.view(outputs, groups, GROUP)
    unit = (parts.amax(-1, keepdim=True) - parts.amin(-1, keepdim=True)) / 15
    rounding = 2e-6 * parts.abs().amax(-1, keepdim=True)
    assert (away <= 0.50001 * unit + rounding).all()


def test_weights_on_the_grid_are_kept_exactly() -> None:
    torch.manual_seed(1)
    numbers = torch.randint(-127, 128, (30, 64))
    numbers[:, 5] = 127
    scale = torch.exp2(torch.randint(-9, 9, (30, 1)))
    eight = Int8Linear.of(numbers * scale, None)
    assert torch.equal(all_rows(eight), numbers * scale)
    numbers = torch.randint(0, 16, (30, 2, GROUP))
    numbers[..., 3], numbers[..., 31] = 0, 15
    scale = torch.exp2(torch.randint(-9, 9, (30, 2, 1)))
    least = torch.randint(-20, 20, (30, 2, 1)) * scale
    weight = (numbers * scale + least).view(30, -1)
    assert torch.equal(Int4Linear.of(weight, None)._floats(), weight)
    weight = torch.randn(30, 64).bfloat16()
    assert torch.equal(all_rows(Bf16Linear(weight, None)), weight.float())


def test_what_is_read_from_four_bits_stays_as_it_is() -> None:
    """Weights that were of four bits once, with a scale and a least value in float16."""
    torch.manual_seed(2)
    numbers = torch.randint(0, 16, (50, 4, GROUP)).float()
    numbers[..., 3], numbers[..., 30] = 0, 15
    scale = (0.1 * torch.rand(50, 4, 1)).half().float()
    weight = (numbers * scale - (0.5 * torch.rand(50, 4, 1)).half().float()).view(50, -1)
    layer = Int4Linear.of(weight, None)
    torch.testing.assert_close(layer._floats(), weight, rtol=0, atol=1e-6)
    again = Int4Linear.of(layer._floats(), None)
    assert torch.equal(again.weight, layer.weight)


def test_rows_and_groups_of_zeros_and_of_one_value() -> None:
    weight = torch.randn(4, 2 * GROUP)
    weight[1] = 0
    weight[2, :GROUP] = 0
    weight[3, GROUP:] = -7.25
    eight, four = Int8Linear.of(weight, None), Int4Linear.of(weight, None)
    assert not all_rows(eight)[1].any() and not all_rows(eight)[2, :GROUP].any()
    assert not four._floats()[1].any() and not four._floats()[2, :GROUP].any()
    assert (four._floats()[3, GROUP:] == -7.25).all()
    for layer in (eight, four):
        out = layer(torch.randn(3, 2 * GROUP))
        assert torch.isfinite(out).all() and not out[:, 1].any()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_damaged_weight_shows(wrong: float) -> None:
    weight = torch.randn(5, 64)
    weight[2, 40] = wrong
    x = torch.rand(3, 64) + 1
    for layer in (Int8Linear.of(weight, None), Int4Linear.of(weight, None)):
        out = layer(x)
        assert not torch.isfinite(out[:, 2]).any()
        assert torch.isfinite(out[:, [0, 1, 3, 4]]).all()
    assert not torch.isfinite(Int8Linear.of(weight, None).rows(torch.tensor([2]))).any()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(2, 300), st.integers(0, 2**32))
def test_products_with_eight_bits(rows: int, outputs: int, inputs: int, seed: int) -> None:
    """The inputs' own rounding is far below that of bfloat16."""
    random = torch.Generator().manual_seed(seed)
    layer = Int8Linear.of(
        torch.randn(outputs, inputs, generator=random), torch.randn(outputs, generator=random)
    )
    x = torch.randn(rows, inputs, generator=random)
    x *= torch.logspace(-5, 5, rows)[:, None]
    y = layer(x)
    expected = x.double() @ all_rows(layer).double().t() + layer.bias
    unit = x.abs().amax(1, keepdim=True) / layer.limit
    most = 0.51 * unit * all_rows(layer).abs().sum(1) + 1e-5 * expected.abs() + 1e-6
    assert ((y - expected).abs() <= most).all()
    for row in range(0, rows, 7):
        assert torch.equal(layer(x[row : row + 1])[0], y[row])


def test_products_of_bytes_where_torch_has_none_that_are_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    layer = Int8Linear.of(torch.randn(40, 200), None)
    x = torch.randn(50, 200)
    expected = layer(x)
    monkeypatch.setattr(linear_module, "bytes_multiply_exactly", lambda: False)
    assert torch.equal(layer(x), expected) or not bytes_multiply_exactly()
    most = torch.full((3, 64), 127, dtype=torch.int8)
    for x in (most, -most, most - 127, (-128 * torch.ones(3, 64)).to(torch.int8)):
        for weight in (most, -most):
            expected = x.int() @ weight.int().t()
            assert torch.equal(linear_module._product_of_bytes(x, weight), expected)


def test_rows_of_a_table() -> None:
    torch.manual_seed(4)
    weight = torch.randn(20, 48)
    ids = torch.tensor([3, 3, 19, 0])
    for table, near in (
        (Float32Linear(weight, None), 0.0),
        (Bf16Linear(weight.bfloat16(), None), 0.02),
        (Int8Linear.of(weight, None), 0.02),
    ):
        rows = table.rows(ids)
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows, weight[ids], rtol=0, atol=near)
        rows.zero_()  # it is a copy
        torch.testing.assert_close(table.rows(ids), weight[ids], rtol=0, atol=near)


# models


def test_inputs_that_do_not_divide_into_groups_are_kept_in_eight_bits(tiny: Callable) -> None:
    model = tiny("qwen3")  # 48 and 80 do not, 96 does
    layer = read_weights(model.folder, read_shape(model.folder), "int4").layers[0]
    kinds = [type(one) for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    assert kinds == [Int8Linear, Int4Linear, Int8Linear, Int8Linear]


def test_tables_are_kept_in_eight_bits(tiny: Callable) -> None:
    for name in ("heads-of-16", "one-key-head"):
        folder = tiny(name).folder
        weights = read_weights(folder, read_shape(folder), "int4")
        assert isinstance(weights.embedding, Int8Linear) and isinstance(weights.head, Int8Linear)
        assert (weights.head is weights.embedding) == (name == "one-key-head")


def test_fewer_bits_take_less_memory(tiny: Callable) -> None:
    folder = tiny("heads-of-16").folder
    shape = read_shape(folder)
    float32, bf16, int8, int4 = (
        read_weights(folder, shape, kind).nbytes for kind in ("float32", "bf16", "int8", "int4")
    )
    assert float32 > 1.9 * bf16 > 3.4 * int8 > 3.8 * int4


# the file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    return folder / "weights"


@pytest.fixture
def folder(tiny: Callable, tmp_path: Path) -> Path:
    """A model's folder that a test may change."""
    return Path(shutil.copytree(tiny("heads-of-16").folder, tmp_path / "model"))


@pytest.fixture
def shape(folder: Path) -> LlamaShape:
    return read_shape(folder)


def named(weights: LlamaWeights) -> dict[str, Tensor]:
    found = {"norm": weights.norm}
    parts: dict[str, object] = {"embedding": weights.embedding, "head": weights.head}
    for number, layer in enumerate(weights.layers):
        parts |= {f"{number}.{name}": getattr(layer, name) for name in layer.__slots__}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            found[name] = part
        elif part is not None:
            found |= {f"{name}.{field}": one for field, one in tensors_of(part).items()}
    return found


def assert_same(one: LlamaWeights, other: LlamaWeights) -> None:
    first, second = named(one), named(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.equal(tensor, second[name])
    types = [[type(w.embedding), type(w.head), type(w.layers[0].qkv)] for w in (one, other)]
    assert types[0] == types[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["heads-of-16", "qwen3", "llama"])
def test_it_is_made_once(
    cache: Path, tiny: Callable, tmp_path: Path, name: str, kind: WeightKind
) -> None:
    folder = Path(shutil.copytree(tiny(name).folder, tmp_path / "model"))
    shape = read_shape(folder)
    expected = read_weights(folder, shape, kind)
    assert_same(load_weights(folder, shape, kind), expected)
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    # The source looks as before, but cannot be read.
    source = folder / "model.safetensors"
    state = source.stat()
    source.write_bytes(bytes(state.st_size))
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(ValueError, match="safetensors"):
        read_weights(folder, shape, kind)
    again = load_weights(folder, shape, kind)
    assert_same(again, expected)
    assert (again.head is again.embedding) == shape.tied
    assert again.nbytes == expected.nbytes
    assert list(cache.iterdir()) == [file] and file.stat().st_mtime_ns == written


def test_float32_is_read_from_the_folder(cache: Path, folder: Path, shape: LlamaShape) -> None:
    load_weights(folder, shape, "float32")
    assert not cache.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_off_leaves_what_was_read(
    cache: Path, folder: Path, shape: LlamaShape, kind: WeightKind
) -> None:
    # Where a tensor lay in the mapped file, looking at it would end this process.
    made = load_weights(folder, shape, kind)
    stored = load_weights(folder, shape, kind)
    (file,) = cache.iterdir()
    os.truncate(file, 0)
    for path in folder.glob("*.safetensors"):
        os.truncate(path, 0)
    assert_same(stored, made)


@pytest.mark.parametrize("damage", ["empty", "short", "a bit", "foreign", "a folder of no name"])
def test_a_damaged_file_is_made_again(
    cache: Path,
    folder: Path,
    shape: LlamaShape,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    expected = load_weights(folder, shape, "int4")
    (file,) = cache.iterdir()
    good = file.read_bytes()
    assert not caplog.text
    file.unlink()
    match damage:
        case "empty":
            file.touch()
        case "short":
            file.write_bytes(good[: len(good) // 2])
        case "a bit":
            file.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        case "foreign":  # without a digest
            save_file({"norm": torch.zeros(3)}, file)
        case _:
            save_file({"norm": torch.zeros(3)}, file, metadata={"sha256": "0"})
    assert_same(load_weights(folder, shape, "int4"), expected)
    assert "damaged" in caplog.text
    assert file.read_bytes() == good
    assert list(cache.iterdir()) == [file]


def test_what_was_read_before_survives_a_new_file(
    cache: Path, folder: Path, shape: LlamaShape
) -> None:
    read = load_weights(folder, shape, "int8")
    before = {name: tensor.clone() for name, tensor in named(read).items()}
    os.utime(folder / "config.json", ns=(1, 1))
    load_weights(folder, shape, "int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in named(read).items())


def test_a_source_that_changed_takes_the_place_of_the_old(
    cache: Path, folder: Path, shape: LlamaShape, tiny: Callable
) -> None:
    other = tiny("qwen3").folder
    load_weights(other, read_shape(other), "int8")
    load_weights(folder, shape, "int4")
    old = load_weights(folder, shape, "int8")
    assert len(list(cache.iterdir())) == 3
    source = folder / "model.safetensors"
    tensors = load_file(source)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, source)
    new = load_weights(folder, shape, "int8")
    assert torch.equal(new.norm, old.norm + 1)
    assert len(list(cache.iterdir())) == 3  # the old file of this kind is gone, no other


def test_a_link_to_nothing_in_the_folder_does_no_harm(
    cache: Path, folder: Path, shape: LlamaShape
) -> None:
    (folder / "gone.json").symlink_to(folder / "nothing")
    load_weights(folder, shape, "int8")
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_weights_says_so(
    cache: Path, folder: Path, shape: LlamaShape, kind: WeightKind
) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no model"):
        load_weights(folder, shape, kind)
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.parametrize("trouble", ["a file", "closed", "full"])
def test_where_nothing_can_be_kept_the_weights_are_served(
    cache: Path,
    folder: Path,
    shape: LlamaShape,
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache.parent.mkdir()
    match trouble:
        case "a file":
            cache.touch()
        case "closed":
            if os.getuid() == 0:
                pytest.skip("nothing is closed to root")
            cache.mkdir(mode=0o500)
        case "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        weights = load_weights(folder, shape, "int8")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(weights, read_weights(folder, shape, "int8"))
    assert "could not be kept" in caplog.text
    assert trouble == "a file" or not list(cache.iterdir())


def test_what_was_never_finished_is_removed_later(
    cache: Path, folder: Path, shape: LlamaShape
) -> None:
    old, young = cache / "old.part", cache / "young.part"
    for part in (old, young):
        part.mkdir(parents=True)
        (part / "x").write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    load_weights(folder, shape, "int8")
    assert not old.exists() and young.exists()  # somebody may still write there


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_others_may_read_it_as_they_may_all_files(
    cache: Path, folder: Path, shape: LlamaShape, mask: int
) -> None:
    before = os.umask(mask)
    try:
        load_weights(folder, shape, "bf16")
    finally:
        os.umask(before)
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


LOAD = """
import sys
from pathlib import Path
from completion_ls.engines.shape import read_shape
from completion_ls.engines.weight_cache import load_weights
folder = Path(sys.argv[1])
print(float(load_weights(folder, read_shape(folder), "int8").norm.sum()))
"""


@pytest.mark.long
def test_two_processes_at_once_leave_one_good_file(
    cache: Path, folder: Path, shape: LlamaShape
) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", LOAD, str(folder)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    expected = read_weights(folder, shape, "int8")
    assert said == {f"{float(expected.norm.sum())}\n".encode()}
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    assert_same(load_weights(folder, shape, "int8"), expected)
    assert file.stat().st_mtime_ns == written


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_model_is_converted_in_a_process_of_its_own(
    cache: Path,
    folder: Path,
    shape: LlamaShape,
    kind: WeightKind,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(weight_cache, "LARGE", 0)
    assert_same(load_weights(folder, shape, kind), read_weights(folder, shape, kind))
    assert len(list(cache.iterdir())) == 1 and not caplog.text
    shutil.rmtree(cache)
    cache.touch()
    assert_same(load_weights(folder, shape, kind), read_weights(folder, shape, kind))
    assert "could not be kept" in caplog.text
