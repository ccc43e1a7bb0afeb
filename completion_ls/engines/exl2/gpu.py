"""The NVIDIA cards of this machine, as their driver tells of it: no torch, no CUDA toolkit."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MANAGEMENT = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
"""Part of the driver, too. It knows what is free without a context, which itself takes memory."""
MAJOR, MINOR = 75, 76
"""The driver's numbers for the two parts of the compute capability."""
NAME_BYTES = 256
BUS_BYTES = 32
VERSION_BYTES = 80


@dataclass(frozen=True, slots=True)
class GraphicsCard:
    """What matters of it when a model is chosen."""

    name: str
    total_bytes: int
    free_bytes: int | None
    """None where the driver does not say."""
    capability: tuple[int, int]


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Failed(Exception):
    """A call of the driver did not succeed."""


def find_card() -> GraphicsCard | None:
    """The GPU that CUDA calls the first one; None without a driver or a GPU."""
    try:
        driver, count = _driver()
        if count < 1:
            return None
        device = ctypes.c_int()
        _call(driver.cuDeviceGet, ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(NAME_BYTES)
        _call(driver.cuDeviceGetName, name, NAME_BYTES, device)
        total = ctypes.c_size_t()
        _call(driver.cuDeviceTotalMem_v2, ctypes.byref(total), device)
        parts = []
        for number in (MAJOR, MINOR):
            part = ctypes.c_int()
            _call(driver.cuDeviceGetAttribute, ctypes.byref(part), number, device)
            parts.append(part.value)
        bus = ctypes.create_string_buffer(BUS_BYTES)
        _call(driver.cuDeviceGetPCIBusId, bus, BUS_BYTES, device)
    except (OSError, AttributeError, _Failed):
        return None
    text = name.value.decode(errors="replace")
    return GraphicsCard(text, total.value, _free(bus.value), (parts[0], parts[1]))


def count_gpus() -> int:
    """How many there are, in milliseconds where torch takes seconds; 0 without a driver."""
    try:
        return _driver()[1]
    except (OSError, AttributeError, _Failed):
        return 0


def driver_version() -> str | None:
    """The driver's version, and the newest CUDA that it knows; None without a driver."""
    known = ctypes.c_int()
    try:
        _call(ctypes.CDLL(DRIVER).cuDriverGetVersion, ctypes.byref(known))
    except (OSError, AttributeError, _Failed):
        return None
    cuda = f"CUDA up to {known.value // 1000}.{known.value % 1000 // 10}"
    try:
        library, text = ctypes.CDLL(MANAGEMENT), ctypes.create_string_buffer(VERSION_BYTES)
        _call(library.nvmlInit_v2)
        try:
            _call(library.nvmlSystemGetDriverVersion, text, VERSION_BYTES)
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError, _Failed):
        return cuda
    return f"{text.value.decode(errors='replace')}, {cuda}"


def _driver() -> tuple[ctypes.CDLL, int]:
    """The driver's own library, ready for use, and the number of GPUs."""
    driver, count = ctypes.CDLL(DRIVER), ctypes.c_int()
    _call(driver.cuInit, 0)
    _call(driver.cuDeviceGetCount, ctypes.byref(count))
    return driver, count.value


def _free(bus: bytes) -> int | None:
    """Free bytes of the card at this place on the PCI bus."""
    try:
        library = ctypes.CDLL(MANAGEMENT)
        _call(library.nvmlInit_v2)
        try:
            handle, memory = ctypes.c_void_p(), _Memory()
            _call(library.nvmlDeviceGetHandleByPciBusId_v2, bus, ctypes.byref(handle))
            _call(library.nvmlDeviceGetMemoryInfo, handle, ctypes.byref(memory))
            return int(memory.free)
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError, _Failed):
        return None


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if function(*arguments) != 0:
        raise _Failed
