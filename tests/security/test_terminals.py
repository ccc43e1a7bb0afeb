"""What others have named is shown, and no terminal obeys it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from completion_ls.cli import models
from completion_ls.config.settings import EngineSettings
from completion_ls.doctor import architecture
from completion_ls.doctor.lines import Notes
from completion_ls.models import hub
from support.fake_hub import BRANCH, REPOSITORY, serving
from support.tiny_model import write_tiny_model

ODD = "\x1b]0;title\x07\x1b[2J\x9b1m\r"
"""Sets a window's title, clears the screen, goes to the beginning of the line."""


@pytest.mark.parametrize("revision", ["old", "none", "main"])
def test_names_that_the_hub_lists_are_no_commands(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    revision: str,
) -> None:
    """A file in the place of weights, and branches, which are told where another one was asked for."""
    with serving(monkeypatch) as server:
        files = server.branches[BRANCH]
        server.branches[f"branch{ODD}"] = files
        server.branches["old"] = {
            f"file{ODD}.bin": b"x",
            **{name: files[name] for name in hub.NEEDED},
        }
        assert models.pull(f"{REPOSITORY}@{revision}") == 1
    said = capsys.readouterr().err
    assert ("file" if revision == "old" else "branch") + "\ufffd]0;title" in said
    assert not set("\x1b\x07\x9b\r") & set(said)


def test_what_a_model_says_of_itself_is_no_command(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "architectures": [f"Llama{ODD}"]}))
    notes = Notes("model")
    architecture.look(notes, "model", folder, EngineSettings(), compiled=True)
    [line] = notes.lines
    assert "Llama\ufffd]0;title" in line.text
    assert line.text.isprintable()
