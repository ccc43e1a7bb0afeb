"""The EXL2 format: what is packed comes back, and the kernels read it as it was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.exl2 import matrices
from support.exl2.weights import (
    BITS,
    Exl2Matrix,
    Group,
    converter_groups,
    dequantize,
    even_groups,
    quantize,
)
from support.exl2.words import pack_nibbles, pack_stream, unpack_nibbles, unpack_stream

pytestmark = pytest.mark.exl2

NONE = torch.empty(1, 1, device="meta")

bits = st.sampled_from(BITS)
seeds = st.integers(0, 2**32)
blocks = st.tuples(bits, st.integers(1, 3)).map(lambda made: Group(made[0], 32 * made[1]))
mixed = st.lists(blocks, min_size=1, max_size=6).map(lambda groups: sorted(groups, reverse=True))
sizes = st.sampled_from([1e-3, 0.05, 1.0, 30.0])


def quantized(
    groups: list[Group], outputs: int, size: float, seed: int
) -> tuple[Tensor, Tensor, Exl2Matrix]:
    """A random matrix [outputs, inputs], the order of its inputs, and its quantised form."""
    random = torch.Generator().manual_seed(seed)
    inputs = sum(group.inputs for group in groups)
    weight = size * torch.randn(outputs, inputs, generator=random)
    weight *= torch.logspace(-2, 0, outputs)[:, None]  # outputs of their own size
    order = torch.randperm(inputs, generator=random)
    bias = torch.randn(outputs, generator=random)
    return weight, order, quantize(weight, groups, order, bias)


def made(matrix: Exl2Matrix, **changed: Tensor) -> int:
    """The kernels' handle of a matrix, made as exllamav2 makes it."""
    tensors = {**vars(matrix), **changed}
    words = len(tensors["q_weight"])
    return matrices.make_q_matrix(
        tensors["q_weight"],
        tensors["q_invperm"].argsort().short(),
        tensors["q_invperm"].short(),
        tensors["q_scale"],
        tensors["q_scale_max"] * (1 / 256),
        tensors["q_groups"],
        matrices.make_group_map(tensors["q_groups"], words),
        NONE,
        NONE,
        NONE,
        NONE if tensors["bias"] is None else tensors["bias"],
        NONE,
        0,
    )


# words


@given(bits, st.integers(1, 4), st.integers(1, 5), seeds)
def test_a_stream_is_one_large_number_down_a_column(
    bits: int, blocks: int, columns: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 2**bits, (32 * blocks, columns), generator=random)
    words = pack_stream(numbers, bits)
    assert words.dtype == torch.int32 and words.shape == (bits * blocks, columns)
    for column in range(columns):
        large = sum(n << (bits * row) for row, n in enumerate(numbers[:, column].tolist()))
        expected = large.to_bytes(4 * bits * blocks, "little")
        assert words[:, column].contiguous().numpy().tobytes() == expected
    assert torch.equal(unpack_stream(words, bits), numbers)


def test_a_stream_must_fill_its_words() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        pack_stream(torch.zeros(16, 1), 3)


@given(st.integers(1, 5), st.integers(1, 5), seeds)
def test_nibbles(rows: int, words: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 16, (rows, 8 * words), generator=random)
    packed = pack_nibbles(numbers)
    assert packed.dtype == torch.int32 and packed.shape == (rows, words)
    assert torch.equal(unpack_nibbles(packed), numbers)


def test_the_first_nibble_is_the_lowest() -> None:
    packed = pack_nibbles(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]))
    assert int(packed) & 0xFFFFFFFF == 0x87654321


# matrices


@settings(deadline=None)
@given(mixed, st.integers(1, 70), sizes, seeds)
def test_numbers_are_the_nearest(groups: list[Group], outputs: int, size: float, seed: int) -> None:
    weight, order, matrix = quantized(groups, outputs, size, seed)
    read = dequantize(matrix)
    inputs = weight.shape[1]
    assert read.dtype == torch.float16 and read.shape == (inputs, outputs + -outputs % 32)
    assert not read[:, outputs:].any()
    steps = unpack_nibbles(matrix.q_scale) + 1
    scales = steps * steps * (matrix.q_scale_max.float() / 256)[:, None]
    unit = scales.repeat_interleave(torch.tensor([group.inputs for group in groups]), 0)
    stored = weight.T[order]
    # Half of a number, and what float16 rounds off.
    rounding = 2**-9 * stored.abs().amax(0) + 1e-7
    error = (read[order].float()[:, :outputs] - stored).abs()
    assert (error <= 0.5 * unit[:, :outputs] + rounding).all()


def test_more_bits_are_nearer() -> None:
    torch.manual_seed(1)
    weight = torch.randn(96, 128)
    errors = []
    for bits in sorted(BITS):
        read = dequantize(quantize(weight, even_groups(128, bits)))
        errors.append((read.float() - weight.T).square().mean().sqrt().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 0.7 and errors[-1] < 0.012


@settings(deadline=None)
@given(mixed, st.integers(1, 70), sizes, seeds)
def test_the_kernels_read_what_was_written(
    groups: list[Group], outputs: int, size: float, seed: int
) -> None:
    matrix = quantized(groups, outputs, size, seed)[-1]
    expected = dequantize(matrix)
    handle = made(matrix)
    output = torch.empty_like(expected)
    matrices.reconstruct(handle, output)
    assert torch.equal(output, expected)
    with pytest.raises(RuntimeError, match="shape"):
        matrices.reconstruct(handle, output[1:])
    matrices.free_q_matrix(handle)
    with pytest.raises(RuntimeError, match="no matrix"):
        matrices.reconstruct(handle, output)


@settings(deadline=None)
@given(mixed, st.integers(1, 70), st.integers(1, 9), seeds)
def test_products(groups: list[Group], outputs: int, rows: int, seed: int) -> None:
    matrix = quantized(groups, outputs, 0.05, seed)[-1]
    assert matrix.bias is not None
    weight = dequantize(matrix)
    handle = made(matrix)
    a = torch.randn(rows, len(weight), generator=torch.Generator().manual_seed(seed)).half()
    c = torch.empty(rows, weight.shape[1], dtype=torch.float16)
    matrices.gemm_half_q_half(a, handle, c, False)
    expected = a.double() @ weight.double() + matrix.bias.double()
    assert torch.equal(c, expected.half())
    one = torch.empty_like(c[:1])
    matrices.gemm_half_q_half(a[-1:], handle, one, False)
    assert torch.equal(one, c[-1:])
    with pytest.raises(RuntimeError, match="float16"):
        matrices.gemm_half_q_half(a.float(), handle, c, False)
    with pytest.raises(RuntimeError, match="does not fit"):
        matrices.gemm_half_q_half(a, handle, c[:, 1:], False)
    matrices.free_q_matrix(handle)


@settings(deadline=None)
@given(mixed, seeds)
def test_outputs_in_another_order(groups: list[Group], seed: int) -> None:
    """exllamav2 puts the outputs of a layer in the order in which the next has its inputs."""
    matrix = quantized(groups, 64, 1.0, seed)[-1]
    before = dequantize(matrix)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    matrices.tensor_remap(matrix.q_weight, order.int())
    matrices.tensor_remap_4bit(matrix.q_scale, order.int())
    assert torch.equal(dequantize(matrix), before[:, order])


def test_groups_that_the_kernels_cannot_do() -> None:
    weight = torch.randn(32, 96)
    for groups, why in (
        ([Group(4, 32), Group(5, 64)], "must not grow"),
        ([Group(7, 96)], "must be of"),
        ([Group(5, 48), Group(4, 48)], "multiple of 32"),
        ([Group(4, 64)], "96 inputs"),
    ):
        with pytest.raises(ValueError, match=why):
            quantize(weight, groups)


def test_tensors_that_do_not_fit_together() -> None:
    torch.manual_seed(2)
    matrix = quantize(torch.randn(64, 128), converter_groups(128, 4))
    matrices.free_q_matrix(made(matrix))
    rising = matrix.q_groups.clone()
    rising[0] = 3
    changes: list[tuple[str, Tensor, str]] = [
        ("q_weight", matrix.q_weight.long(), "int32"),
        ("q_weight", matrix.q_weight[:, :32], "q_scale does not fit"),
        ("q_scale", matrix.q_scale[1:], "q_scale_max does not fit"),
        ("q_scale_max", matrix.q_scale_max.float(), "float16"),
        ("q_groups", rising, "more bits"),
        ("q_groups", matrix.q_groups[:-2], "q_groups does not fit"),
        ("q_invperm", matrix.q_invperm[:-1], "q_perm does not fit"),
        ("bias", torch.zeros(65).half(), "bias does not fit"),
    ]
    for name, tensor, why in changes:
        with pytest.raises(RuntimeError, match=why):
            made(matrix, **{name: tensor})
