"""How busy the machine is, which every figure of a benchmark depends on."""

from __future__ import annotations

import os


def load_average() -> float | None:
    """Of the last minute: processes that run or wait to. None where the system does not tell (Windows)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
