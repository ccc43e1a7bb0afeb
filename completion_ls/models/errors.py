"""The one exception of this room."""

from __future__ import annotations

from completion_ls.config.printable import printable


class ModelError(Exception):
    """A model cannot be had or used; the text is a sentence that says why and what to do.

    It may quote what a host or a file says."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))
