"""One trained model for all of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trained_model import write_trained_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return write_trained_model(tmp_path_factory.mktemp("trained") / "model")
