"""Faults inside the real processes, ordered through files: Python imports this where it is on PYTHONPATH.

Without FAULTS (a folder) in the environment nothing happens. `faults.py` says what the files of that
folder mean: each is an order, and there is no hook for them in the product.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ.get("FAULTS") or "/nonexistent")


def order(name: str) -> str | None:
    """What the file of this name says; None where there is none."""
    try:
        return (FOLDER / name).read_text()
    except OSError:
        return None


def taken(name: str) -> str | None:
    """The same, and it is carried out only once."""
    found = order(name)
    if found is not None:
        (FOLDER / name).unlink(missing_ok=True)
    return found


def hold(place: str) -> None:
    """Where the order `hold` names this place, say so, and stay as long as it does."""
    if order("hold") == place:
        (FOLDER / "held").write_text(str(os.getpid()))
        while order("hold") == place:
            time.sleep(0.01)


def fail(name: str) -> None:
    """Raise what an order says."""
    match taken(name):
        case None:
            return
        case "memory":
            raise MemoryError
        case "torch memory":
            import torch

            torch.empty(2**50)
        case "end":
            raise SystemExit  # a thread ends of it, and says nothing
        case what:
            raise RuntimeError(f"A fault was injected: {what}.")


def patch_engine(module: ModuleType) -> None:
    """A step may be held up, or fail, for its job or outside of it."""
    engine: Any = module.TorchCpuEngine
    step, prefill, decode = engine.step, engine._prefill, engine._decode

    def faulty_step(self: Any) -> Any:
        if self._jobs:
            fail("break_engine")
        return step(self)

    def faulty_prefill(self: Any, running: Any) -> Any:
        hold("prefill")
        if running.lane.name != "BACKGROUND":  # nobody hears of those
            fail("fail_step")
        return prefill(self, running)

    def faulty_decode(self: Any, running: Any) -> Any:
        hold("decode")
        if running.lane.name != "BACKGROUND":
            fail("fail_decode")
        return decode(self, running)

    engine.step, engine._prefill, engine._decode = faulty_step, faulty_prefill, faulty_decode


def patch_worker(module: Any) -> None:
    """Loading may be held up."""
    load = module.load

    def slow_load(*arguments: Any) -> Any:
        hold("load")
        return load(*arguments)

    module.load = slow_load


def patch_version(module: Any) -> None:
    """Another version."""
    module.__version__ = order("version") or module.__version__


def patch_protocol(module: Any) -> None:
    """Another protocol, for those who ask from now on."""
    module.PROTOCOL = int(order("protocol") or module.PROTOCOL)


def patch_hello(module: Any) -> None:
    """Only what is said is another protocol: the names of the files are those of the real one."""
    module.PROTOCOL = int(order("said_protocol") or module.PROTOCOL)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "completion_ls": patch_version,
    "completion_ls.wire.messages": patch_protocol,
    "completion_ls.daemon.server": patch_hello,
    "completion_ls.daemon.worker": patch_worker,
    "completion_ls.engines.torch_cpu": patch_engine,
}


class Patching(importlib.abc.MetaPathFinder):
    """Finds these modules as Python does, and patches them when they were run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            PATCHES[name](module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


def patch_clock() -> None:
    """The wall clock goes wrong by so many seconds as the order `wall_clock` says."""
    wall = time.time
    time.time = lambda: wall() + float(order("wall_clock") or 0)


if "FAULTS" in os.environ:
    sys.meta_path.insert(0, Patching())
    patch_clock()
