"""What a test needs and this machine may lack."""

from __future__ import annotations

import os

import pytest


def require(reason: str) -> None:
    """Skip the test where there is a reason, or fail it where CI is set: CI installs all that it needs."""
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
