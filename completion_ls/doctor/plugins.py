"""Whether an editor has our plugin, or settings that name us, from its files alone.

No editor is started and no settings of one are run, so nothing found is no proof: people keep such
files in many places.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from completion_ls.models.store import shown

EXTENSION = "completion-ls.completion-ls-"
NAMES = (b"completion-ls", b"completion_ls", b"completionLs")
MOST_FILES, MOST_BYTES = 400, 2**20
MODULE = "lua/completion_ls/init.lua"
VSCODE_FOLDERS = {
    "code": (".vscode", ".vscode-server"),
    "code-insiders": (".vscode-insiders", ".vscode-server-insiders"),
    "codium": (".vscode-oss",),
    "code-server": (".local/share/code-server",),
    "cursor": (".cursor",),
    "windsurf": (".windsurf",),
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """What was found: where it is, or what is wrong with it; neither where there is nothing."""

    found: str = ""
    broken: str = ""


def vscode(command: str) -> Plugin:
    """The extension, in the folders that VS Code and its relatives install into."""
    named = os.environ.get("VSCODE_EXTENSIONS")
    places = [Path(named)] if named else []
    places += [_home() / one / "extensions" for one in VSCODE_FOLDERS.get(command, ())]
    for place in places:
        removed = _removed(place)
        for folder in sorted(place.glob(f"{EXTENSION}*")):
            if folder.name in removed:
                continue
            if not (folder / "package.json").is_file():
                return Plugin(
                    broken=f"{folder} has no package.json: the extension was not installed as a whole. "
                    f"Delete the folder, then install it again."
                )
            return Plugin(f"extension {folder.name.removeprefix(EXTENSION)} in {shown(place)}")
    return Plugin()


def neovim(command: str) -> Plugin:
    """The plugin in Neovim's packages or lazy.nvim's folder, or named in the configuration."""
    name = os.environ.get("NVIM_APPNAME", "nvim")
    data, config = _data() / name, _config() / name
    for root in (data / "site", config):
        for folder in islice(root.glob("pack/*/*/*"), MOST_FILES):
            if (folder / MODULE).is_file():
                return Plugin(f"plugin in {shown(folder)}")
            if folder.is_symlink() and not folder.exists() and "completion" in folder.name:
                return Plugin(
                    broken=f"{folder} is a link to {folder.readlink()}, which is not there. Make it "
                    "anew to editors/nvim of the repository."
                )
    for folder in islice((data / "lazy").glob("*"), MOST_FILES):
        for inside in (folder, folder / "editors/nvim"):
            if (inside / MODULE).is_file():
                return Plugin(f"plugin in {shown(inside)}")
    files = (config.rglob(f"*.{kind}") for kind in ("lua", "vim"))
    return _named_in(file for some in files for file in some)


def emacs(command: str) -> Plugin:
    """Settings of Emacs that name us."""
    home, config = _home(), _config()
    folders = (home / ".emacs.d", config / "emacs", config / "doom", home / ".doom.d")
    files = [home / ".emacs", home / ".emacs.el", home / ".spacemacs"]
    return _named_in([*files, *(file for folder in folders for file in folder.glob("*.el"))])


def helix(command: str) -> Plugin:
    """Helix's languages.toml."""
    return _named_in([_config() / "helix/languages.toml"])


def zed(command: str) -> Plugin:
    """Zed's settings.json."""
    return _named_in([_config() / "zed/settings.json"])


def sublime(command: str) -> Plugin:
    """The settings of Sublime's package LSP."""
    there = "Packages/User/LSP.sublime-settings"
    mac = _home() / "Library/Application Support/Sublime Text"
    return _named_in([_config() / "sublime-text" / there, mac / there])


def kate(command: str) -> Plugin:
    """The servers of Kate's LSP client."""
    return _named_in([_config() / "kate/lspclient/settings.json"])


def jetbrains(command: str) -> Plugin:
    """Options of the IDEs, where LSP4IJ keeps the servers that it was told of."""
    mac = _home() / "Library/Application Support"
    roots = (_config() / "JetBrains", mac / "JetBrains")
    return _named_in(file for root in roots for file in root.glob("*/options/*.xml"))


def _named_in(files: Iterable[Path]) -> Plugin:
    """The first of `files` that names us."""
    for file in islice(files, MOST_FILES):
        try:
            if not file.is_file() or file.stat().st_size > MOST_BYTES:
                continue
            text = file.read_bytes()
        except OSError:
            continue
        if any(name in text for name in NAMES):
            return Plugin(f"named in {shown(file)}")
    return Plugin()


def _removed(place: Path) -> set[str]:
    """Folders of extensions that were removed and only wait to be deleted."""
    try:
        values = json.loads((place / ".obsolete").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return set(values) if isinstance(values, dict) else set()


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home() raises where there is no home


def _config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config")


def _data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local/share")
