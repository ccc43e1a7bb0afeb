"""The VS Code extension's settings are the server's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from completion_ls.config import vscode
from completion_ls.config.settings import Settings
from completion_ls.config.sources import OF_THE_USER

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"


def test_the_extension_is_up_to_date(tmp_path: Path) -> None:
    """`npm run settings` in its folder brings it there."""
    (tmp_path / "src").mkdir()
    shutil.copy(EXTENSION / "package.json", tmp_path)
    vscode.write(tmp_path)
    for name in ("package.json", "src/settings.generated.ts"):
        assert (tmp_path / name).read_text() == (EXTENSION / name).read_text(), name


def test_all_settings_that_an_editor_may_have_are_there_with_their_defaults() -> None:
    properties = vscode.properties()
    for section, values in Settings().model_dump(mode="json", exclude=set(OF_THE_USER)).items():
        for key, default in values.items():
            found = properties[f"completion-ls.{section}.{key}"]
            assert found["default"] == default
            assert found["type"] and found["markdownDescription"]
    assert json.loads(json.dumps(properties)) == properties


def test_the_settings_stand_in_the_order_of_the_readme() -> None:
    properties = vscode.properties()
    assert [one["order"] for one in properties.values()] == list(range(len(properties)))
    assert list(properties)[:2] == ["completion-ls.enabled", "completion-ls.program"]


def test_a_workspace_names_no_programs_and_no_models() -> None:
    restricted = vscode.restricted()
    for name in ("program", "package", "model.name", "draft.model", "daemon.transport"):
        assert f"completion-ls.{name}" in restricted
    assert "completion-ls.completion.lines" not in restricted
    assert set(restricted) <= set(vscode.properties())
