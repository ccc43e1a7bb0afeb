"""What the tests of promises share."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support.other_user import run_as


@pytest.fixture
def as_other_user() -> Callable[[Callable[[], None]], None]:
    """Run a function as another user of this machine. Skipped where only root could."""
    if not hasattr(os, "fork") or os.getuid() != 0:
        pytest.skip("only root can act as another user")
    return run_as
