"""One window's counts on their way to the file that all windows share."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from typing import Any

from completion_ls.lsp import count_file

log = logging.getLogger(__name__)

WRITE_S = 3.0
"""So long after a count the file is written."""
PATIENCE_S = 10.0
LAST_PATIENCE_S = 1.0
"""For other windows that write; where they take longer, the next time. When the window closes there is
none, and its last counts are lost."""


class Counts:
    """Adds numbers to a model's counts; the file is written a while later, by a thread."""

    def __init__(self) -> None:
        self._new: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._trouble = ""

    def add(self, model: str, **numbers: int) -> None:
        """Count something, on the event loop; a number may take back an earlier one."""
        for name, number in numbers.items():
            self._new[model][name] += number
        self._write_later()

    async def of(self, model: str) -> dict[str, Any]:
        """All counts of a model, with those that are not written yet; empty before the first."""
        found = (await asyncio.to_thread(count_file.read)).get(model, {})
        for name, number in self._new.get(model, {}).items():
            found[name] = found.get(name, 0) + number
        return dict.fromkeys(count_file.NAMES, 0) | found if found else {}

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._timer:
            self._timer.cancel()
        if self._writing:
            await self._writing
        if self._new:
            await self._write(LAST_PATIENCE_S)

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(PATIENCE_S))
        else:
            self._write_later()

    async def _write(self, patience_s: float) -> None:
        taken, self._new = self._new, defaultdict(Counter)
        try:
            await asyncio.to_thread(count_file.add, taken, patience_s)
        except OSError as error:
            for model, numbers in taken.items():
                self._new[model].update(numbers)
            if self._trouble != str(error):
                self._trouble = str(error)
                log.warning("counts of what was accepted cannot be written: %s", error)
        finally:
            self._writing = None
