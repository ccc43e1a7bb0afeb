"""Which versions run here."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from completion_ls import __version__
from completion_ls.doctor.lines import Notes

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pygls")


def look(notes: Notes) -> None:
    """Read from what is installed; nothing is imported."""
    notes.ok("completion-ls", __version__)
    notes.ok("Python", f"{platform.python_version()} ({sys.executable})")
    notes.ok("platform", platform.platform())
    found = {name: _version(name) for name in LIBRARIES}
    notes.ok("libraries", ", ".join(f"{name} {number}" for name, number in found.items() if number))
    for name in (name for name, number in found.items() if not number):
        notes.failed(
            name, f"It is not installed here; run `{sys.executable} -m pip install {name}`."
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
