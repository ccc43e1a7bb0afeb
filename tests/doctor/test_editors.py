"""Editors that are found on the PATH, and what of ours they have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from completion_ls.doctor import editors
from completion_ls.doctor.lines import Line, Notes

Lines = Callable[[Callable[[Notes], Any]], dict[str, Line]]
NVIM = Path(__file__).parents[2] / "editors/nvim"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and a PATH with nothing on it."""
    folder = tmp_path / "home"
    (folder / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", str(folder / "bin"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "NVIM_APPNAME", "VSCODE_EXTENSIONS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def put(home: Path, command: str, prints: str) -> None:
    """A program on the PATH that prints a version, and tells of it when it is started otherwise."""
    program = home / "bin" / command
    program.write_text(
        f'#!/bin/sh\n[ "$*" = --version ] || echo "$0 $*" >> "{home}/started"\n{prints}\n'
    )
    program.chmod(0o755)


def test_no_editor_and_no_program(home: Path, lines: Lines) -> None:
    found = lines(editors.look)
    assert "None that is known was found" in found["editors"].text
    assert "It is not on this PATH" in found["completion-ls"].text


def test_the_program_of_another_environment(home: Path, lines: Lines) -> None:
    own = Path(sys.executable).with_name("completion-ls")
    put(home, "completion-ls", "echo no")
    line = lines(editors.look)["completion-ls"]
    if own.exists():
        assert line.verdict == "remark" and f"is another than {own}" in line.text
    else:
        assert line.verdict == "ok"


def test_an_editor_that_knows_nothing_of_us(home: Path, lines: Lines) -> None:
    put(home, "nvim", 'echo "NVIM v0.11.4"')
    config = home / ".config/nvim"
    config.mkdir(parents=True)
    (config / "init.lua").write_text(f'os.execute("touch {home}/started")')
    line = lines(editors.look)["Neovim"]
    assert line.verdict == "remark" and line.text.startswith("0.11.4 (")
    assert "nothing of us was found in the usual places; editors/nvim/README.md" in line.text
    assert not (home / "started").exists()


def test_neovim_with_the_plugin(home: Path, lines: Lines) -> None:
    put(home, "nvim", 'echo "NVIM v0.10.0"')
    pack = home / ".local/share/nvim/site/pack/ours/start"
    pack.mkdir(parents=True)
    (pack / "completion-ls").symlink_to(NVIM)
    line = lines(editors.look)["Neovim"]
    assert line.verdict == "ok" and "plugin in ~/.local/share/nvim/site/pack/ours" in line.text
    put(home, "nvim", 'echo "NVIM v0.9.5"')
    line = lines(editors.look)["Neovim"]
    assert line.verdict == "remark" and "too old for the plugin, which needs 0.10." in line.text


def test_neovim_with_a_link_that_leads_nowhere(home: Path, lines: Lines) -> None:
    put(home, "nvim", 'echo "NVIM v0.11.4"')
    pack = home / ".local/share/nvim/site/pack/ours/start"
    pack.mkdir(parents=True)
    (pack / "completion-ls").symlink_to("/no/such/clone/editors/nvim")
    line = lines(editors.look)["Neovim"]
    assert line.verdict == "failed"
    assert "is a link to /no/such/clone/editors/nvim, which is not there. Make it anew" in line.text


def test_neovim_with_lazy_or_its_own_client(home: Path, lines: Lines) -> None:
    put(home, "nvim", 'echo "NVIM v0.12.0"')
    plugins = home / ".config/nvim/lua/plugins"
    plugins.mkdir(parents=True)
    (plugins / "ghost.lua").write_text('return { { main = "completion_ls" } }')
    line = lines(editors.look)["Neovim"]
    assert line.verdict == "ok" and line.text.endswith(
        "named in ~/.config/nvim/lua/plugins/ghost.lua"
    )


def test_vscode_and_its_extension(home: Path, lines: Lines) -> None:
    def said(name: str = "VS Code") -> tuple[str, str]:
        line = lines(editors.look)[name]
        return line.verdict, line.text

    put(home, "code", "echo 1.107.1; echo 0c0ffee; echo x64")
    assert said()[0] == "remark"
    folder = home / ".vscode/extensions/completion-ls.completion-ls-0.1.0"
    folder.mkdir(parents=True)
    verdict, text = said()
    assert verdict == "failed" and "Delete the folder, then install it again." in text
    (folder / "package.json").write_text("{}")
    verdict, text = said()
    assert verdict == "ok" and text.endswith("extension 0.1.0 in ~/.vscode/extensions")
    (folder.parent / ".obsolete").write_text(json.dumps({folder.name: True}))
    assert said()[0] == "remark"
    put(home, "codium", "echo 1.99.0")
    verdict, text = said("VSCodium")
    assert verdict == "remark" and "too old for the plugin, which needs 1.100" in text


@pytest.mark.parametrize(
    ("command", "name", "file"),
    [
        ("emacs", "Emacs", ".emacs.d/init.el"),
        ("hx", "Helix", ".config/helix/languages.toml"),
        ("zed", "Zed", ".config/zed/settings.json"),
        ("subl", "Sublime Text", ".config/sublime-text/Packages/User/LSP.sublime-settings"),
        ("kate", "Kate", ".config/kate/lspclient/settings.json"),
        ("pycharm", "pycharm", ".config/JetBrains/PyCharm2026.1/options/servers.xml"),
    ],
)
def test_settings_that_name_us(
    home: Path, lines: Lines, command: str, name: str, file: str
) -> None:
    put(home, command, "echo An editor 30.1")
    place = home / file
    place.parent.mkdir(parents=True)
    place.write_text("something else")
    assert lines(editors.look)[name].verdict == "remark"
    place.write_text('command = "completion-ls"')
    line = lines(editors.look)[name]
    assert line.verdict == "ok" and line.text.endswith(f"named in ~/{file}")
    assert command == "pycharm" or line.text.startswith("30.1 (")
    assert not (home / "started").exists()


def test_an_editor_that_does_not_answer(
    home: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editors, "ANSWER_S", 0.3)
    put(home, "kate", "/bin/sleep 600 & /bin/sleep 600")
    put(home, "zed", "exit 1")
    found = lines(editors.look)
    assert "it does not say its version" in found["Kate"].text
    assert "it does not say its version" in found["Zed"].text
