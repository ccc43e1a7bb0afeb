"""The key of a server, where it stands in the environment. It is taken out of there when a program of ours
begins, so that what we start (a compiler, pip, an editor's `--version`) does not get it; the engine daemon
does, where it computes on a server."""

from __future__ import annotations

import os

API_KEY_VARIABLE = "COMPLETION_LS_API_KEY"

_key = ""


def set_aside() -> None:
    """Take the key out of the environment; from now on only we know it."""
    global _key
    _key = os.environ.pop(API_KEY_VARIABLE, "") or _key


def of_environment() -> str:
    """The key that this process was started with; empty where there is none."""
    return os.environ.get(API_KEY_VARIABLE) or _key


def environment(*, with_key: bool) -> dict[str, str]:
    """Variables for a process that we start."""
    others = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    key = of_environment()
    return others | {API_KEY_VARIABLE: key} if with_key and key else others
