"""`completion-ls status --watch`: the figures of the daemons, live, until one has seen enough."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from completion_ls.cli.status import collect
from completion_ls.cli.watched import Watch

REFRESH_S = 0.5
LINES_EVERY_S = 10.0
"""Where there is no terminal, a line for each daemon is printed as often as this."""
ENDS = ("q", "Q", "\x03", "\x04", "")
"""Keys; the last one is the end of the input."""


def run() -> int:
    """Show them until q or Ctrl-C; 0."""
    console = Console()
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _live(console)
        else:
            _lines()
    return 0


def _live(console: Console) -> None:
    watch = Watch()
    with _keys() as is_to_end, Live(console=console, auto_refresh=False) as live:
        while True:
            watch.update(asyncio.run(collect()), time.monotonic())
            now = time.monotonic()
            shown = watch.panels(now)
            if len(console.render_lines(shown)) >= console.height:
                shown = watch.panels(now, is_brief=True)
            live.update(shown, refresh=True)
            if is_to_end(REFRESH_S):
                return


def _lines() -> None:
    watch = Watch()
    while True:
        watch.update(asyncio.run(collect()), time.monotonic())
        for line in watch.lines(time.monotonic()):
            print(time.strftime("%H:%M:%S"), line, flush=True)
        time.sleep(LINES_EVERY_S)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits for so many seconds, and says whether a key that ends it was pressed."""
    if sys.platform == "win32" or not sys.stdin.isatty():  # Ctrl-C is left
        yield _wait
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def is_to_end(seconds: float) -> bool:
        if not select.select([descriptor], [], [], seconds)[0]:
            return False
        return os.read(descriptor, 1).decode(errors="replace") in ENDS

    try:
        tty.setcbreak(descriptor)
        yield is_to_end
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False
