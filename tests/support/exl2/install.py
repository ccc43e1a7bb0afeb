"""exllamav2 on a machine without a GPU: its own Python, on the reference modules.

`install` must run before anything imports exllamav2, which would start to compile its module.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from support.exl2 import attention
from support.exl2.extension import extension_module, make_module

EXTENSION = extension_module()
FLASH_ATTENTION = {
    "flash_attn": make_module(
        "flash_attn",
        attention.flash_attn_func,
        attention.flash_attn_varlen_func,
        attention.flash_attn_with_kvcache,
        __version__="2.8.3",
    ),
    "flash_attn_2_cuda": make_module("flash_attn_2_cuda"),  # imported, but not called
}


def install(flash_attention: bool = True) -> None:
    """Make exllamav2 run on the CPU in this process, with flash-attn or as if that were missing.

    May be called again, and with another choice. Raises RuntimeError where there is a GPU, and
    where exllamav2 was imported before.
    """
    if torch.cuda.is_available():
        raise RuntimeError("the reference modules are for machines without a GPU")
    if sys.modules.get("exllamav2_ext") is not EXTENSION:
        if "exllamav2" in sys.modules:
            raise RuntimeError("exllamav2 was imported before its reference modules were installed")
        sys.modules["exllamav2_ext"] = EXTENSION
        sys.modules.update(FLASH_ATTENTION)
        _import()
        _keep_to_the_cpu()
    for name, module in FLASH_ATTENTION.items():
        # None says that there is no such module.
        sys.modules[name] = module if flash_attention else None  # type: ignore[assignment]
    _replace("has_flash_attn", flash_attention)
    _replace("has_flash_attn_with_paged", flash_attention)
    _replace("has_xformers", False)


def _import() -> None:
    threads = torch.get_num_threads()
    with redirect_stdout(io.StringIO()):  # it tells that there is no GPU
        importlib.import_module("exllamav2")
        importlib.import_module("exllamav2.generator")
    torch.set_num_threads(threads)  # it sets them to one


def _keep_to_the_cpu() -> None:
    torch.cuda.synchronize = _nothing  # type: ignore[assignment]
    _replace("_torch_device", _cpu)
    _replace("safe_move_tensor", _unmoved)
    _replace("set_device_streams", _nothing)
    # With a stream for it, no context of the first device makes one.
    importlib.import_module("exllamav2.device").global_streams[0] = None


def _nothing(*_: object) -> None:
    pass


def _cpu(index: int) -> str:
    return "cpu"


def _unmoved(
    tensor: Tensor | tuple[Tensor, ...], device: object, non_blocking: bool = False
) -> Tensor | tuple[Tensor, ...]:
    return tensor


def _replace(name: str, value: Any) -> None:
    """Give a name another value in all modules of exllamav2 that have it."""
    for module in _modules():
        if name in vars(module):
            setattr(module, name, value)


def _modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "exllamav2":
            yield module
