"""Run a small Python program that nobody has read, and say whether it ran to its end.

It runs in a process of its own (`python -I -S`), in an empty folder that is removed afterwards, without
the user's environment, input or output, with limits on time, memory and the size of files, and is killed
with its process group. Where Linux lets users have one, it has a network namespace of its own with nothing in
it; everywhere Python's audit events refuse sockets, new processes, signals, foreign code (ctypes) and
writing outside of its folder.

This is a guard against what a model writes by accident, not a jail for one that means harm. What it does
not do: it does not keep the program from reading any file that the user may read. Python's audit events
can be got round by code that sets out to (a bug of the interpreter, a module of the standard library
that raises none). Then only the limits of the operating system hold, and of those the limit on processes
(and threads) does not bind root, a process that leaves its group outlives the kill, files may be written
wherever the user may, each up to its limit but any number of them, and without namespaces the network is
there. macOS does not enforce the limit on memory; Windows has none of the limits but the time, and no
process groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from completion_ls.bench import sandboxed

MIB = 1 << 20
CHILD = Path(sandboxed.__file__)


class Outcome(StrEnum):
    """How a program ended."""

    PASSED = "passed"
    """It ran to its end."""
    FAILED = "failed"
    """An exception, an exit before its end, or a limit on something other than time."""
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes. `wall_s` is longer than `cpu_s`: on a busy machine a program waits."""

    cpu_s: int = 5
    wall_s: float = 20.0
    memory: int = 1024 * MIB
    file: int = MIB


USUAL = Limits()


def run(program: str, limits: Limits = USUAL) -> Outcome:
    """Run the text of a program. Raises OSError where no process can be started."""
    with tempfile.TemporaryDirectory(prefix="cls-run-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "program.py"
        file.write_bytes(program.encode("utf-8", "replace"))
        sizes = (str(size) for size in (limits.cpu_s, limits.memory, limits.file))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD.resolve()), str(file), *sizes],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            return Outcome.TIMED_OUT
        finally:
            _kill(process)
    if status in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)) and status:
        return Outcome.TIMED_OUT  # at its limit of CPU time; the kernel may send either
    return Outcome.PASSED if status == sandboxed.PASSED else Outcome.FAILED


def _environment(folder: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    return {**kept, "HOME": folder, "TMPDIR": folder}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the whole group, whose id is kept as long as anything of it is left."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
