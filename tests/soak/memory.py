"""The memory of a front and its daemon over a long time of typing."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

TRACED = Path(__file__).parent / "traced"


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(psutil.Process(pid).memory_info().rss)


def traced(pid: int) -> int:
    """Bytes that Python has in use in a process that was started in `tracing`."""
    file = Path(os.environ["TRACED"], str(pid))
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    while not file.exists():
        if not psutil.pid_exists(pid):
            raise ProcessLookupError(f"Process {pid} has ended.")
        time.sleep(0.01)
    return int(file.read_text())


ALLOWED = {resident: (0.05, 8 * 2**20), traced: (0.02, 2**20)}
"""So much more (a share, and bytes) may be in use at the end than in the middle: a cache fills up, and an
allocator's memory is never quite flat."""


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Processes that are started meanwhile can be asked by `traced`."""
    before = os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory(prefix="traced-") as folder:
        os.environ["TRACED"] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TRACED), before]))
        try:
            yield
        finally:
            del os.environ["TRACED"]
            os.environ["PYTHONPATH"] = before


@dataclass(slots=True)
class Memory:
    """What processes use, by their names, one sample after the other."""

    pids: dict[str, int]
    read: Callable[[int], int] = resident
    samples: dict[str, list[int]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def sample(self) -> None:
        """Look."""
        for name, pid in self.pids.items():
            try:
                self.samples.setdefault(name, []).append(self.read(pid))
            except (ProcessLookupError, psutil.NoSuchProcess):
                self.gone.add(name)

    def growth(self, name: str) -> tuple[float, float]:
        """Median bytes in the middle third of the samples, and in the last."""
        samples = self.samples[name] or [0]
        third = max(1, len(samples) // 3)
        return median(samples[third : 2 * third] or samples), median(samples[-third:])

    def problems(self) -> list[str]:
        """What has grown."""
        found = [f"The {name} (process {self.pids[name]}) has gone." for name in sorted(self.gone)]
        share, size = ALLOWED[self.read]
        for name in self.samples:
            middle, last = self.growth(name)
            if last - middle > share * middle + size:
                found.append(
                    f"The {self.read.__name__} memory of the {name} grew from {_mib(middle)} to {_mib(last)}."
                )
        return found

    def figures(self) -> list[tuple[str, str]]:
        """For the report."""
        return [
            (
                f"{self.read.__name__} memory of the {name}",
                f"at first {_mib((samples or [0])[0])}, middle third {_mib(self.growth(name)[0])}, "
                f"last third {_mib(self.growth(name)[1])}",
            )
            for name, samples in self.samples.items()
        ]


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
