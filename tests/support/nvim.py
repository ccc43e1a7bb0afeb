"""Real Neovims with the plugin, driven as a user does: keys in, the screen and the buffer out."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from completion_ls.config import paths

if TYPE_CHECKING:
    import pynvim

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "editors" / "nvim"
VERSIONS = ["0.10", "0.11", "0.12"]
ROWS, COLUMNS = 24, 80
PATIENCE_S = 20.0
"""What has not come by then does not come; only machines under load need most of it."""

T = TypeVar("T")


def program(version: str) -> Path:
    """Where a version is: 0.11 comes with pip, the others with scripts/editors/nvim."""
    if version == "0.11":
        return Path(sysconfig.get_path("scripts")) / "nvim"
    return paths.cache_dir() / "editors" / f"nvim-{version}" / "bin" / "nvim"


def missing(version: str) -> str:
    """Why the tests with a version cannot run; empty where they can."""
    if not program(version).exists():
        return f"Neovim {version} is not there: run scripts/test --editors."
    if not shutil.which("tmux"):
        return "tmux is not there: run scripts/test --editors."
    return ""


def until(found: Callable[[], object], what: str) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def until_equal(look: Callable[[], T], wanted: T) -> None:
    """Wait until what is found is what is wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == wanted, f"{found!r}, not {wanted!r}"


class Neovim:
    """One Neovim with the plugin, without a configuration, and with daemons of its own.

    `folder` becomes its own and should have a short name, for sockets lie in it.
    """

    def __init__(self, version: str, folder: Path, server: Path) -> None:
        import pynvim

        self.version = version
        self.folder = folder
        self._server = server
        (folder / "config.toml").touch()
        self.environment = {
            **{f"XDG_{kind}_HOME": str(folder / kind) for kind in ("STATE", "DATA", "CONFIG")},
            "COMPLETION_LS_RUNTIME_DIR": str(folder / "run"),
            "COMPLETION_LS_LOG_DIR": str(folder / "log"),
            "COMPLETION_LS_STATE_DIR": str(folder / "state"),
            "COMPLETION_LS_CONFIG": str(folder / "config.toml"),
        }
        words = [str(program(version)), "--embed", "--headless", "--clean", "-n"]
        words += ["--cmd", f"set rtp+={PLUGIN} lines={ROWS} columns={COLUMNS} noshowmode noruler"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        self.nvim: pynvim.Nvim = pynvim.attach("child", argv=["env", *variables, *words])
        self._messages_before = ""
        self._is_closed = False

    def close(self) -> None:
        """End it, and the daemons of its servers."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(EOFError, OSError):  # it goes
            self.nvim.command("qa!")
        self.nvim.close()
        stop = [sys.executable, "-m", "completion_ls", "daemon", "stop"]
        subprocess.run(
            stop,
            env={**os.environ, **self.environment},
            check=False,
            stdout=subprocess.DEVNULL,
        )

    def reset(self) -> None:
        """As after its start, but for a server that runs."""
        self.keys("<Esc><Esc>")
        self.nvim.command("silent! only! | silent! %bwipeout! | messages clear | set all&")
        self.nvim.command(f"set lines={ROWS} columns={COLUMNS} noshowmode noruler")
        self.nvim.command("silent! autocmd! test")
        self.lua("require('completion_ls').enable(true)")

    def complaints(self) -> str:
        """Errors among its messages, and in the log of its LSP client since the last time."""
        log = [line for file in self.folder.rglob("lsp.log") for line in _lines(file)]
        text = "\n".join(line for line in log if line.startswith(("[ERROR]", "[WARN]")))
        new = text.removeprefix(self._messages_before)
        self._messages_before = text
        messages: str = self.nvim.funcs.execute("messages")
        bad = [line for line in messages.splitlines() if re.search(r"\bE\d+:|[Ee]rror", line)]
        return "\n".join([*bad, new]).strip()

    def lua(self, code: str, *given: object) -> Any:
        """Run Lua code; `...` are the values given."""
        return self.nvim.exec_lua(code, *given)

    def setup(self, wait: bool = True, **options: object) -> None:
        """The plugin's setup, with the test's server; waits until it is ready."""
        options.setdefault("cmd", [str(self._server), "--stdio"])
        self.lua("require('completion_ls').setup(...)", options)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """The engine of the current buffer's server is ready."""
        code = """
            local client = require('completion_ls.client')
            return client.of(0) ~= nil and client.state.state == 'ready'
        """
        until(lambda: self.lua(code), "the engine is not ready")

    def open(self, name: str, content: str | bytes, **options: object) -> Path:
        """Write a file and edit it; no indentation of the file type's own."""
        file = self.folder / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.nvim.command(f"edit {file}")
        plain = {"autoindent": False, "smartindent": False, "cindent": False, "indentexpr": ""}
        for option, value in {**plain, **options}.items():
            self.nvim.command(f"let &l:{option} = {_literal(value)}")
        return file

    def keys(self, keys: str) -> None:
        """Type, in Neovim's notation."""
        assert self.nvim.input(keys) == len(keys.encode())

    def servers(self) -> list[psutil.Process]:
        """The language servers that it runs."""
        own = psutil.Process(self.nvim.funcs.getpid())
        return [one for one in own.children(recursive=True) if "--stdio" in _words(one)]

    @property
    def lines(self) -> list[str]:
        """Of the current buffer."""
        lines: list[str] = self.nvim.current.buffer[:]
        return lines

    @property
    def ghost(self) -> str:
        """What is drawn that is not there, in the order of the screen; `‸` is text between."""
        code = """
            local ghost = require('completion_ls.ghost')
            local marks = vim.api.nvim_buf_get_extmarks(
              0, ghost.namespace, 0, -1, { details = true })
            local parts, last = {}, nil
            for _, mark in ipairs(marks) do
              local details = mark[4]
              if details.virt_text_pos == 'inline' then
                if last and last ~= mark[3] then parts[#parts + 1] = '‸' end
                last = mark[3]
                parts[#parts + 1] = details.virt_text[1][1]
              end
            end
            for _, mark in ipairs(marks) do
              for _, line in ipairs(mark[4].virt_lines or {}) do
                parts[#parts + 1] = '\\n'
                for _, piece in ipairs(line) do parts[#parts + 1] = piece[1] end
              end
            end
            return table.concat(parts)
        """
        drawn: str = self.lua(code)
        return drawn

    def wait_for_ghost(self, text: str) -> None:
        """Until it is exactly this."""
        until_equal(lambda: self.ghost, text)

    def wait_for_lines(self, *lines: str) -> None:
        """Until the buffer is exactly this."""
        until_equal(lambda: self.lines, list(lines))

    def wait_for_mode(self, mode: str) -> None:
        """Until it is in a mode ("i", "n")."""
        until_equal(lambda: self.nvim.api.get_mode()["mode"], mode)

    def screen(self) -> list[str]:
        """What is drawn, by rows, without blanks at the end."""
        code = """
            vim.cmd.redraw()
            local rows = {}
            for row = 1, vim.o.lines do
              local cells = {}
              for column = 1, vim.o.columns do
                cells[column] = vim.fn.screenstring(row, column)
              end
              rows[row] = table.concat(cells):gsub('%s+$', '')
            end
            return rows
        """
        rows: list[str] = self.lua(code)
        return rows

    def wait_for_screen(self, *rows: str, at: int = 0) -> None:
        """Until these rows are drawn, from row `at` on."""
        until_equal(lambda: self.screen()[at : at + len(rows)], list(rows))

    def wait_for_message(self, part: str) -> None:
        """Until a message has this in it."""
        until(lambda: part in self.nvim.funcs.execute("messages"), f"no message has {part!r}")


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(int(value))  # type: ignore[call-overload]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines()
