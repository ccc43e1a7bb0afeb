"""The editors on the PATH, their versions, and whether they know of us."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from completion_ls.doctor import plugins
from completion_ls.doctor.lines import Notes
from completion_ls.models.store import shown

ANSWER_S = 5.0
PROGRAM = "completion-ls"
JETBRAINS = ("idea", "pycharm", "webstorm", "clion", "goland", "rider", "phpstorm", "rubymine")


@dataclass(frozen=True, slots=True)
class Editor:
    """One that we have a page for."""

    name: str
    command: str
    page: str
    """The folder of `editors/` whose README says how it is attached."""
    plugin: Callable[[str], plugins.Plugin]
    least: tuple[int, ...] = ()
    """The oldest version that the plugin works with."""
    says_version: bool = True
    """Whether `--version` is answered without starting it."""


EDITORS = (
    Editor("Neovim", "nvim", "nvim", plugins.neovim, (0, 10)),
    *(
        Editor(name, command, "vscode", plugins.vscode, least)
        for name, command, least in (
            ("VS Code", "code", (1, 100)),
            ("VS Code Insiders", "code-insiders", (1, 100)),
            ("VSCodium", "codium", (1, 100)),
            ("code-server", "code-server", ()),
            ("Cursor", "cursor", ()),
            ("Windsurf", "windsurf", ()),
        )
    ),
    Editor("Emacs", "emacs", "emacs", plugins.emacs),
    Editor("Helix", "hx", "helix", plugins.helix),
    Editor("Helix", "helix", "helix", plugins.helix),
    Editor("Zed", "zed", "zed", plugins.zed),
    Editor("Zed", "zeditor", "zed", plugins.zed),
    Editor("Sublime Text", "subl", "sublime", plugins.sublime),
    Editor("Kate", "kate", "kate", plugins.kate),
    *(Editor(name, name, "jetbrains", plugins.jetbrains, says_version=False) for name in JETBRAINS),
)


def look(notes: Notes) -> None:
    """Each editor is asked for its version and for nothing else."""
    _program(notes)
    there = [(one, path) for one in EDITORS if (path := shutil.which(one.command))]
    if not there:
        notes.remark("editors", "None that is known was found on the PATH.")
        return
    versions = _versions([path for editor, path in there if editor.says_version])
    for editor, path in there:
        _say(notes, editor, path, versions.get(path, ""))


def _program(notes: Notes) -> None:
    """Editors start the `completion-ls` of the PATH where they are not given a path."""
    own = Path(sys.executable).with_name(PROGRAM)
    found = shutil.which(PROGRAM)
    if found is None:
        where = f": name {own} there" if own.exists() else ""
        notes.remark(PROGRAM, f"It is not on this PATH, so an editor needs its whole path{where}.")
    elif own.exists() and Path(found).resolve() != own.resolve():
        notes.remark(
            PROGRAM,
            f"The one on this PATH, {found}, is another than {own}, whose doctor speaks here; name the "
            "one that you mean in your editor, by its whole path.",
        )
    else:
        notes.ok(PROGRAM, f"{shown(Path(found))} is on the PATH")


def _say(notes: Notes, editor: Editor, path: str, version: str) -> None:
    what = f"{version or 'it does not say its version'} ({path})" if editor.says_version else path
    plugin = editor.plugin(editor.command)
    page = f"editors/{editor.page}/README.md in the repository says how to attach it"
    numbers = tuple(map(int, re.findall(r"\d+", version)[: len(editor.least)]))
    if plugin.broken:
        notes.failed(editor.name, f"{what}: {plugin.broken}")
    elif numbers < editor.least and numbers:
        least = ".".join(map(str, editor.least))
        notes.remark(editor.name, f"{what}: it is too old for the plugin, which needs {least}.")
    elif plugin.found:
        notes.ok(editor.name, f"{what}: {plugin.found}")
    else:
        notes.remark(editor.name, f"{what}: nothing of us was found in the usual places; {page}.")


def _versions(paths: list[str]) -> dict[str, str]:
    """Of all at once, as some take a second; those that come in time."""
    found: dict[str, str] = {}

    def ask(path: str) -> None:
        found[path] = _version(path)

    # Not a pool, whose threads this process would wait for at its end.
    threads = [threading.Thread(target=ask, args=[path], daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * ANSWER_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def _version(path: str) -> str:
    """The number in what `--version` prints; empty where there is none in time."""
    try:
        with subprocess.Popen(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=ANSWER_S)
            except subprocess.TimeoutExpired:
                # With all that it started, which hold its output open.
                with contextlib.suppress(ProcessLookupError, AttributeError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                return ""
    except OSError:
        return ""
    found = re.search(r"\d+(\.\d+)*", printed)
    return found[0] if found else ""
