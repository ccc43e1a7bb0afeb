"""The memory of a front and its daemon over a long time of typing."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import psutil

ALLOWED_SHARE = 0.05
ALLOWED_BYTES = 8 * 2**20
"""So much more may be in use at the end than in the middle: an allocator's memory is never quite flat."""


@dataclass(slots=True)
class Memory:
    """Resident bytes of processes, by name, one sample after the other."""

    processes: dict[str, psutil.Process]
    samples: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, **pids: int) -> Memory:
        """The processes with these ids."""
        return cls({name: psutil.Process(pid) for name, pid in pids.items()})

    def sample(self) -> None:
        """Look."""
        for name, process in self.processes.items():
            self.samples.setdefault(name, []).append(process.memory_info().rss)

    def growth(self, name: str) -> tuple[float, float]:
        """Median bytes in the middle third of the samples, and in the last."""
        samples = self.samples[name]
        third = max(1, len(samples) // 3)
        return median(samples[third : 2 * third] or samples), median(samples[-third:])

    def problems(self) -> list[str]:
        """What has grown."""
        found = []
        for name in self.samples:
            middle, last = self.growth(name)
            if last - middle > ALLOWED_SHARE * middle + ALLOWED_BYTES:
                found.append(f"The {name} grew from {_mib(middle)} to {_mib(last)}.")
        return found

    def figures(self) -> list[tuple[str, str]]:
        """For the report."""
        return [
            (
                f"memory of the {name}",
                f"at first {_mib(samples[0])}, middle third {_mib(self.growth(name)[0])}, "
                f"last third {_mib(self.growth(name)[1])}",
            )
            for name, samples in self.samples.items()
        ]


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
