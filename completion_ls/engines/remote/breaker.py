"""Whether a server is asked at all: after some failures it is left alone, and tried again now and then.

A key is then answered at once with "no", instead of after a timeout; the user hears of it once, and once
more is nobody's wish. A server may pass its trial and fail all the same: until it has answered, the pauses
before the next trials grow on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from completion_ls.engines.remote.errors import ServerError

log = logging.getLogger(__name__)

FAILURES = 3
"""So many in a row are no accident."""
FIRST_PAUSE_S = 2.0
LAST_PAUSE_S = 30.0


class Breaker:
    """The state of one server, on one event loop."""

    def __init__(self, tell: Callable[[str], None], trial: Callable[[], Awaitable[None]]) -> None:
        """`tell` hears why the server is not asked any more, and "" when it is again. `trial` raises
        ServerError where it still fails."""
        self._tell = tell
        self._trial = trial
        self._failures = 0
        self._trouble: ServerError | None = None
        self._trying: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE_S
        """Before the next trial: longer from one to the next, until a request has succeeded."""
        self._silent_s = 0.0
        """So long was waited in all, for a first word to requests that were then not wanted any more."""

    @property
    def trouble(self) -> str:
        """Why the server is not asked; empty where it is."""
        return str(self._trouble or "")

    def check(self) -> None:
        """Raise the ServerError for which the server is not asked."""
        if self._trouble:
            raise ServerError(str(self._trouble))

    def heard(self) -> None:
        """It has said something."""
        self._silent_s = 0.0

    def given_up(self, waited_s: float, patience_s: float, error: ServerError) -> None:
        """A request to which nothing was said is not wanted any more. Who types gives up one after the
        other, so it is their time together that counts: above `patience_s` this is the `error`."""
        self._silent_s += waited_s
        if self._silent_s > patience_s:
            self.failed(error)

    def succeeded(self) -> None:
        """It has answered."""
        self.heard()
        self._failures = 0
        self._pause = FIRST_PAUSE_S

    def failed(self, error: ServerError) -> None:
        """A request has failed, after all tries."""
        self._failures += 1
        self.heard()
        log.warning("%s", error)
        if self._trouble or not (error.lasts or self._failures >= FAILURES):
            return
        self._trouble = error
        self._tell(str(error))
        self._trying = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        while True:
            await asyncio.sleep(self._pause * random.uniform(0.75, 1.25))
            self._pause = min(2 * self._pause, LAST_PAUSE_S)
            try:
                await self._trial()
            except ServerError as error:
                log.info("still: %s", error)
                continue
            except Exception as error:  # without an end the server would never be asked again
                log.warning("the trial failed: %s", type(error).__name__)
                continue
            self._failures, self._trouble, self._trying = 0, None, None
            self._tell("")
            return
