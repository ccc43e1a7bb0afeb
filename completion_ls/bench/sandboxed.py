"""The child's end of `sandbox.py`: gives itself limits, then runs a program. Run as a file, with `-I -S`:

    sandboxed.py PROGRAM CPU_SECONDS MEMORY_BYTES FILE_BYTES

The folder of the program is the only one in which it may write. Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

PASSED = 77
"""Exit status of a program that ran to its end; no other ending has it by accident."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED = ("socket.", "ctypes.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn")
REFUSED_TOO = {
    *("os.system", "os.startfile", "os.kill", "os.killpg", "pty.spawn", "signal.pthread_kill"),
}
ON_PATHS = {
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "os.chflags"),
}


def limit(cpu_s: int, memory: int, file: int) -> None:
    """Limits of the operating system, where there are any: seconds and bytes."""
    try:
        import resource
    except ImportError:
        return
    wanted = {
        "RLIMIT_CPU": cpu_s,
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": file,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,  # of the user, who has some already: no more
    }
    for name, value in wanted.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def leave_network() -> None:
    """Go where there is no network, on a Linux that lets users do so."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        unshare = ctypes.CDLL(None).unshare
        if unshare(CLONE_NEWUSER | CLONE_NEWNET):
            unshare(CLONE_NEWNET)


def guard(folder: str) -> None:
    """From here on Python refuses sockets, processes, signals, and writing outside of `folder`."""
    inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118

    def check(path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path))
            if real != os.devnull and not real.startswith(inside):
                raise PermissionError("A program in the sandbox may write in its own folder only.")

    def hook(event: str, arguments: Sequence[Any]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                check(path)
        elif event in ON_PATHS:
            for argument in arguments:
                check(argument)
        elif event in REFUSED_TOO or event.startswith(REFUSED):
            raise PermissionError(f"A program in the sandbox may not do this: {event}.")

    sys.addaudithook(hook)


def main(program: str, cpu_s: str, memory: str, file: str) -> None:
    """Run the program; ends the process."""
    limit(int(cpu_s), int(memory), int(file))
    leave_network()
    guard(os.path.dirname(program))  # noqa: PTH120
    sys.argv = [program]
    status = 1
    try:
        runpy.run_path(program, run_name="__main__")
        status = PASSED
    except BaseException:  # an exit of any status, too, is not the end of the program
        status = 1
    finally:
        os._exit(status if threading.active_count() == 1 else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
