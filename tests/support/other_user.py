"""Another user of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable

NUMBER = 65533
"""A user that nobody is."""


def run_as(work: Callable[[], None]) -> None:
    """Run a function in a process of another user (only root can), and wait until it has ended well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NUMBER)
            os.setuid(NUMBER)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
