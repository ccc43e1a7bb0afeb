"""What the tests of promises share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.other_user import run_as


@pytest.fixture
def as_other_user() -> Callable[[Callable[[], None]], None]:
    """Run a function as another user of this machine. Skipped where only root could."""
    if not hasattr(os, "fork") or os.getuid() != 0:
        pytest.skip("only root can act as another user")
    return run_as


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    return folder
