"""Lines of one look, and a model that works until a test breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from completion_ls.doctor.examine import examine
from completion_ls.doctor.lines import Line, Notes
from completion_ls.models.store import silent
from support.tiny_model import write_tiny_model


@pytest.fixture
def lines() -> Callable[[Callable[[Notes], Any]], dict[str, Line]]:
    """Of a look, by their names."""

    def of(look: Callable[[Notes], Any]) -> dict[str, Line]:
        notes = Notes("a group")
        look(notes)
        assert len({line.name for line in notes.lines}) == len(notes.lines)
        return {line.name: line for line in notes.lines}

    return of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that the settings name."""
    made = write_tiny_model(tmp_path / "model")
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(made))
    return made


@pytest.fixture
def failures() -> Callable[[], list[str]]:
    """The sentences of all lines that fail, of all looks. Something must: a keystroke is tried else."""

    def of() -> list[str]:
        report = examine(silent)
        tried = [line for line in report.lines if line.group == "one keystroke"]
        assert [line.text for line in tried] == [
            "Not tried, as something that it needs failed above."
        ]
        return [line.text for line in report.failed]

    return of
