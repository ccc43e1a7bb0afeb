"""The processor cores that an engine may use."""

from __future__ import annotations

import os

import psutil


def thread_counts() -> list[int]:
    """The numbers of threads that are worth trying, few first: up to all physical cores that this
    process may use."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return sorted({1, (cores + 1) // 2, max(1, cores - 1), cores})
