"""`kernels.c`, compiled once for this machine.

Where there is no C compiler everything runs on torch, slower and with the same results up to
rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from completion_ls.config import private
from completion_ls.config.paths import cache_dir
from completion_ls.engines.linear import (
    BF16,
    INT4,
    INT8,
    Bf16Linear,
    Int4Linear,
    Int8Linear,
    Linear,
)
from completion_ls.engines.model import KvShape
from completion_ls.engines.shape import LlamaShape
from completion_ls.engines.tree import View

_log = logging.getLogger(__name__)

ROW_OF = 64
"""Rows of keys and values are padded to a multiple of this."""
MULTIPLE = 16
"""The size of a head, and the inputs of a layer in bfloat16, must be a multiple of this."""
MOST_GROUP = 16
"""A key head may serve so many query heads."""
MOST_SIZE = 512
"""Largest size of a head."""

SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = (
    *("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread"),
    # Not -ffast-math, which would take liberties with the order of sums; nor may the compiler choose
    # which products are rounded before they are added.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
_X86_FLAGS = ("-march=native", "-mprefer-vector-width=512")
_VERSION_S, _COMPILE_S = 20, 120

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
_POINTERS = 2 * [_POINTER]


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs")),
        ("limit", _FLOAT),
        *((name, _POINTER) for name in ("weight", "scale", "pairs", "bias")),
    )


class _Heads(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "size")),
        ("eps", _FLOAT),
        *((name, _POINTER) for name in ("q_norm", "k_norm")),
    )


class Native:
    """The compiled functions. Tensors are float32 and contiguous where nothing else is said."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.use_threads.argtypes = [_INT]
        library.linear.argtypes = [*_POINTERS, _INT, _POINTER, _FLOAT, _INT, _POINTER, _INT]
        library.attend.argtypes = [
            *(5 * [_POINTER]),
            *(4 * [_INT]),
            _POINTER,
            _INT,
            *_POINTERS,
        ]
        library.linear.restype = library.attend.restype = _INT

    def use_threads(self, threads: int) -> None:
        """Use so many threads from now on, the calling one included."""
        self._library.use_threads(threads)

    def prepare(self, layer: Linear) -> NativeLinear | None:
        """The layer as the functions take it; None where they cannot do it."""
        fields: dict[str, float | int | None] = {}
        match layer:
            case Int8Linear():
                scale = layer.scale.data_ptr()
                fields = {"kind": INT8, "limit": layer.limit, "scale": scale}
            case Int4Linear():
                fields = {"kind": INT4, "pairs": layer.pairs.data_ptr()}
            case Bf16Linear() if layer.inputs % MULTIPLE == 0:
                fields = {"kind": BF16}
            case _:
                return None
        return NativeLinear(
            layer,
            _Layer(
                outputs=layer.outputs,
                inputs=layer.inputs,
                weight=layer.weight.data_ptr(),
                bias=None if layer.bias is None else layer.bias.data_ptr(),
                **fields,
            ),
            self._library,
        )

    def attention(
        self, shape: LlamaShape, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> NativeAttention:
        """Attention of one layer, with its norms [head_dim] where it has any."""
        return NativeAttention(shape, q_norm, k_norm, self._library)


class NativeLinear:
    """One linear layer."""

    def __init__(self, layer: Linear, fields: _Layer, library: ctypes.CDLL) -> None:
        self._layer = layer  # holds the memory
        self._fields = fields
        self._address = ctypes.addressof(fields)
        self._linear = library.linear
        self.outputs = layer.outputs

    def __call__(
        self,
        x: Tensor,
        norm: Tensor | None = None,
        eps: float = 0.0,
        *,
        gated: bool = False,
        add_to: Tensor | None = None,
    ) -> Tensor:
        """The layer's output for `x` [rows, inputs], [rows, outputs]; or `add_to` with that added.
        With a `norm` [inputs] x goes through the RMS norm first; if it is `gated`, through silu of
        its first half times its second ([rows, 2 * inputs])."""
        rows = len(x)
        out = x.new_empty(rows, self.outputs) if add_to is None else add_to
        failed = self._linear(
            self._address,
            x.data_ptr(),
            rows,
            _address(norm),
            eps,
            gated,
            out.data_ptr(),
            add_to is not None,
        )
        if failed:
            raise MemoryError
        return out


class NativeAttention:
    """The attention of one layer."""

    def __init__(
        self, shape: LlamaShape, q_norm: Tensor | None, k_norm: Tensor | None, library: ctypes.CDLL
    ) -> None:
        self._norms = q_norm, k_norm
        self._width = shape.heads * shape.head_dim
        self._fields = _Heads(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            size=shape.head_dim,
            eps=shape.norm_eps,
            q_norm=None if q_norm is None else q_norm.data_ptr(),
            k_norm=None if k_norm is None else k_norm.data_ptr(),
        )
        self._address = ctypes.addressof(self._fields)
        self._attend = library.attend

    def __call__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, past: int, seen: Seen
    ) -> Tensor:
        """Attention [rows, heads * head_dim] of `qkv` [rows, (heads + 2 * kv_heads) * head_dim] over
        what each row sees of a cache (of `kv_shape`) with the rows themselves, which are put behind
        its first `past` slots. `cos` and `sin` are [rows, 1, head_dim]."""
        rows = len(qkv)
        out = qkv.new_empty(rows, self._width)
        failed = self._attend(
            self._address,
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cache.data_ptr(),
            cache.shape[2],
            rows,
            past,
            seen.common,
            _address(seen.slots),
            0 if seen.slots is None else seen.slots.shape[1],
            seen.ends.data_ptr(),
            out.data_ptr(),
        )
        if failed:
            raise MemoryError
        return out


def kv_shape(shape: LlamaShape) -> KvShape:
    """Keys and values as the functions keep them: a byte an element, padded, and the unit that these
    are counted in. Rounding makes more of a small difference in a sum, so it is for sums that are
    the same in every pass."""
    width = -(-shape.head_dim // ROW_OF) * ROW_OF + torch.float32.itemsize
    return KvShape(shape.layers, shape.kv_heads, width, torch.int8)


@dataclass(frozen=True, slots=True)
class Seen:
    """A `View` as the functions take it: how many tokens each row sees, [rows], and the slots of
    those behind the first `common`, [rows, longest], if not all are in a line. int32."""

    ends: Tensor
    common: int
    slots: Tensor | None

    @classmethod
    def of(cls, view: View) -> Seen:
        ends = torch.tensor(view.positions, dtype=torch.int32) + 1
        if view.paths is None:
            return cls(ends, view.common, None)
        longest = max(map(len, view.paths))
        padded = [path + [0] * (longest - len(path)) for path in view.paths]
        return cls(ends, view.common, torch.tensor(padded, dtype=torch.int32))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@lru_cache(maxsize=1)
def load_native() -> Native | None:
    """The functions, compiled if that was not done before; None where they cannot be had."""
    found, troubles = try_native()
    for trouble in troubles:
        _log.warning("%s", trouble)
    if not found and not troubles:
        _log.info("no C compiler was found: the CPU engine runs on torch alone, which is slower")
    return found


def try_native() -> tuple[Native | None, list[str]]:
    """The functions, and what each compiler said that was tried in vain; without either there is no
    compiler, or it is another system."""
    troubles: list[str] = []
    for compiler in compilers() if os.name == "posix" else ():
        try:
            return Native(_library(compiler)), troubles
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or error
            troubles.append(f"the kernels cannot be had from {shlex.join(compiler)}: {said}")
    return None, troubles


def compilers() -> list[list[str]]:
    """Commands to try, each compiler once; $CC may come with arguments."""
    named = os.environ.get("CC", "")
    try:
        words = shlex.split(named)
    except ValueError:
        words = []
    found: dict[tuple[str, ...], list[str]] = {}
    for command in ([named], words, ["cc"], ["gcc"], ["clang"]):
        if command and (path := shutil.which(command[0])):
            found.setdefault((os.path.realpath(path), *command[1:]), [path, *command[1:]])
    return list(found.values())


def _library(compiler: list[str]) -> ctypes.CDLL:
    """The library that this compiler makes. The file is named after all that it was made from, and
    after what it holds: one that was damaged is never loaded."""
    flags = [*_FLAGS, *(_X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())]
    version = _run([*compiler, "--version"], _VERSION_S)
    made_from = "\n".join([*compiler, version, *flags, platform.machine(), processor()])
    key = hashlib.sha256(SOURCE.read_bytes() + made_from.encode()).hexdigest()[:32]
    folder = cache_dir() / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private.check_owned(folder)
    for kept in folder.glob(f"{key}-*.so"):
        if kept.name == _name(key, kept):
            return ctypes.CDLL(str(kept))
        kept.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place, "kernels.so")
        _run([*compiler, *flags, str(SOURCE), "-o", str(made)], _COMPILE_S)
        target = made.replace(folder / _name(key, made))
    return ctypes.CDLL(str(target))


def _name(key: str, library: Path) -> str:
    return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()[:16]}.so"


def _run(command: list[str], seconds: float) -> str:
    """What a command prints. Ends it in time, together with all that it started: `run` would wait
    for those, as they hold its output open."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    ) as process:
        try:
            printed, said = process.communicate(timeout=seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, said)
    return printed


def processor() -> str:
    """What the processor can do: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
