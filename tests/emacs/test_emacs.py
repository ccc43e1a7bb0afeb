"""A real Emacs in a terminal (tmux), with lsp-mode set up as `editors/emacs/README.md` says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from completion_ls.cli.status import collect
from completion_ls.config import paths
from support.missing import require
from support.program import real_program
from support.scripted_daemon import Script
from support.terminal import Terminal

pytestmark = [pytest.mark.editor, pytest.mark.process]

README = Path(__file__).parents[2] / "editors" / "emacs" / "README.md"
INSTALL = "Run scripts/editors/emacs."
PATIENCE_S = 60
GHOST = "4"
"""The rendition that tells ghost text from the rest: underlined."""

SETUP = """\
(setq inhibit-startup-screen t make-backup-files nil auto-save-default nil create-lockfiles nil
      lsp-session-file {session:s} lsp-auto-guess-root t lsp-enabled-clients '(completion-ls)
      lsp-headerline-breadcrumb-enable nil lsp-diagnostics-provider :none
      lsp-client-packages nil)  ; those of other servers take seconds to load
(menu-bar-mode -1)
(electric-indent-mode -1)
(dolist (folder (directory-files {packages:s} t "^[a-z]"))
  (add-to-list 'load-path folder)
  (dolist (file (directory-files folder t "-autoloads\\\\.el$"))
    (load file nil t)))
(with-eval-after-load 'lsp-inline-completion
  (set-face-attribute 'lsp-inline-completion-overlay-face nil :inherit nil :underline t))
"""


def packages() -> Path:
    """Where scripts/editors/emacs puts lsp-mode."""
    return paths.cache_dir() / "editors" / "lsp-mode"


def what_is_missing() -> str:
    """Why these tests cannot run here; empty where they can."""
    for name in ("emacs", "tmux"):
        if shutil.which(name) is None:
            return f"There is no {name}. {INSTALL}"
    if not packages().is_dir():
        return f"There is no lsp-mode. {INSTALL}"
    return ""


def lisp(text: object) -> str:
    """A string of Lisp."""
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


class Emacs(Terminal):
    """A terminal with Emacs in it; its `completion-ls` is this program."""

    def __init__(self, folder: Path, program: Path) -> None:
        super().__init__(folder, columns=100, rows=30)
        self._folder = folder
        self._work = folder / "work"
        self._work.mkdir()
        (self._work / ".git").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "completion-ls").symlink_to(program)
        configuration = README.read_text().split("<!-- lsp-mode -->\n```elisp\n")[1]
        setup = SETUP.format(session=lisp(folder / "session"), packages=lisp(packages()))
        (folder / "init.el").write_text(setup + configuration.split("```")[0])

    def open(self, name: str, content: bytes) -> Path:
        """Write a file and open it; the cursor is at its end."""
        file = self._work / name
        file.write_bytes(content)
        command = ["emacs", "-nw", "-Q", "-l", str(self._folder / "init.el"), str(file)]
        variables = {
            "HOME": str(self._folder),
            "COMPLETION_LS_CACHE_DIR": str(paths.cache_dir()),  # not that of the new home
            "LC_ALL": "C.UTF-8",
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
        }
        self.run(command, variables)
        # What is typed before that is no change, and asks for nothing.
        self.wait("the server", lambda: "initialized successfully" in self.screen())
        self.press("M->")
        return file

    def save(self, file: Path) -> bytes:
        """Save the buffer; the file's content."""
        before = file.stat().st_mtime_ns
        self.press("C-x", "C-s")
        self.wait("a save", lambda: file.stat().st_mtime_ns != before)
        return file.read_bytes()

    def ghost(self) -> str:
        """The ghost text on the screen, without the spaces in front of its lines."""
        shown, lines = False, []
        for line in self.screen(colours=True).split("\n"):
            ghost = ""
            for piece in re.findall(r"\x1b\[[\d;]*m|[^\x1b]+", line):
                if piece.startswith("\x1b"):
                    codes = piece[2:-1].split(";")
                    shown = GHOST in codes or (shown and not {"", "0", "24"} & set(codes))
                elif shown:
                    ghost += piece
            if ghost.strip():
                lines.append(ghost.strip())
        return "\n".join(lines)

    def wait_for_ghost(self, text: str) -> None:
        """Until this ghost text is shown, or none is."""
        self.wait(f"ghost text {text!r}", lambda: self.ghost() == text)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Until a condition holds."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"{what} did not come; on the screen is:\n{self.screen()}")
            time.sleep(0.1)


@pytest.fixture
def folder(isolated: dict[str, str]) -> Iterator[Path]:
    """An empty one with a short path, for a socket; without an Emacs the test is skipped, or fails
    where CI is set."""
    require(what_is_missing())
    folder = Path(tempfile.mkdtemp(prefix="cls-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def script(folder: Path) -> Script:
    """What the engine says."""
    return Script.make(folder / "script")


@pytest.fixture
def emacs(folder: Path, script: Script) -> Iterator[Emacs]:
    """An Emacs whose engine follows the script."""
    editor = Emacs(folder, script.program)
    yield editor
    editor.close()


def test_ghost_text_is_shown_typed_along_and_accepted(emacs: Emacs, script: Script) -> None:
    script.say('print("😀é𝄞", ', "area(2, ", "3))")
    file = emacs.open("area.py", "# an area of 😀\n".encode())
    emacs.type('print("😀é𝄞", ')
    emacs.wait_for_ghost("area(2, 3))")
    emacs.type("area")
    emacs.wait_for_ghost("(2, 3))")
    emacs.press("Tab")
    emacs.wait_for_ghost("")
    assert emacs.save(file).decode() == '# an area of 😀\nprint("😀é𝄞", area(2, 3))\n'


def test_several_lines_in_a_file_with_crlf(emacs: Emacs, script: Script) -> None:
    body = "\n    size = width * height\n    return size"
    script.say("def area(width, height):", body)  # at once: Emacs would get the first line early
    file = emacs.open("area.py", b"import math\r\n\r\n")
    # The first answer may not wait for the engine to start, or the first line would be enough.
    emacs.wait("the engine is there", lambda: bool(script.heard("done")))
    emacs.type("def area(width, height):")
    emacs.wait_for_ghost("size = width * height\nreturn size")
    emacs.press("Tab")
    emacs.wait_for_ghost("")
    lines = ["import math", "", "def area(width, height):", "    size = width * height"]
    expected = [*lines, "    return size", ""]
    assert emacs.save(file).decode().split("\r\n") == expected


def test_what_is_not_accepted_leaves_nothing(emacs: Emacs, script: Script) -> None:
    script.say("total = ", "width * height")
    file = emacs.open("area.py", b"width, height = 2, 3\n")
    emacs.type("total = ")
    emacs.wait_for_ghost("width * height")
    emacs.press("C-g")
    emacs.wait_for_ghost("")
    emacs.type("7")
    assert emacs.save(file) == b"width, height = 2, 3\ntotal = 7\n"


def test_brackets_that_were_closed_already_stay_single(emacs: Emacs, script: Script) -> None:
    script.say("print(", "area(2, 3))")
    file = emacs.open("area.py", b"from shapes import area\n")
    emacs.press("M-x")
    emacs.type("electric-pair-mode")
    emacs.press("Enter")
    emacs.type("print(a")  # directly behind the pair, lsp-mode shows nothing
    emacs.wait("ghost text", lambda: emacs.ghost().startswith("rea(2, 3)"))
    emacs.press("Tab")
    emacs.wait_for_ghost("")
    assert emacs.save(file) == b"from shapes import area\nprint(area(2, 3))\n"


def test_by_hand_there_are_alternatives(emacs: Emacs, script: Script) -> None:
    script.say("total = ", "width * height", others=["width + height"])
    file = emacs.open("area.py", b"width, height = 2, 3\n")
    emacs.type("total = ")
    emacs.wait_for_ghost("width * height")
    emacs.press("C-g", "M-x")
    emacs.type("lsp-inline-completion-display")
    emacs.press("Enter")
    emacs.wait_for_ghost("width * height")
    emacs.press("C-n")
    emacs.wait_for_ghost("width + height")
    emacs.press("Tab")
    emacs.wait_for_ghost("")
    assert emacs.save(file) == b"width, height = 2, 3\ntotal = width + height\n"


def engine_is_ready() -> bool:
    """Whether there is one that has loaded its model."""
    return any("loading" not in figures for figures in asyncio.run(collect()))


@pytest.mark.model
def test_the_real_engine_completes(folder: Path) -> None:
    emacs = Emacs(folder, real_program(folder))
    try:
        file = emacs.open("area.py", b"def area(width, height):\n    ")
        emacs.wait("the engine", engine_is_ready)  # lsp-mode waits 10 s for an answer
        emacs.type("ret")
        emacs.wait_for_ghost("urn width * height")
        emacs.press("Tab")
        emacs.wait_for_ghost("")
        assert emacs.save(file) == b"def area(width, height):\n    return width * height\n"
    finally:
        emacs.close()
