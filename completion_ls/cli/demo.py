"""`completion-ls demo`: a small function is typed, ghost text streams in grey, figures below."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from completion_ls.bench.editor import Editor, EditorError, Request
from completion_ls.bench.figures import rows, summarize
from completion_ls.bench.session import Session
from completion_ls.bench.trace import Patch
from completion_ls.config.sources import SettingsError, resolve_strict
from completion_ls.wire.client import EngineFailed

KEY_GAP_S = 0.09
PAUSE_S = 1.2
REFRESH_S = 0.03
PROGRAM = '''\
def fibonacci(n):
    """Return the first n Fibonacci numbers."""
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]


def is_prime(n):
    """Return True if n is a prime number."""
    if n < 2:
        return False
    for i in range(2, n):
        if n % i == 0:
            return False
    return True
'''


def run(*, speed: float) -> int:
    """Type the program; returns the exit status."""
    console = Console()
    if speed <= 0:
        print("completion-ls demo: --speed must be greater than 0.", file=sys.stderr)
        return 2
    session = Session(Editor("untitled:demo.py", "python", ""))
    try:
        resolve_strict()  # before anything is started with those settings that can be used
        asyncio.run(_type(console, session, speed))
    except (SettingsError, EngineFailed, EditorError) as error:
        print(f"completion-ls demo: {error}", file=sys.stderr)
        return 1
    console.print()
    for message in session.editor.messages:
        console.print(message, style="yellow")
    return 0


async def _type(console: Console, session: Session, speed: float) -> None:
    ghosts = 0
    try:
        with console.status("Starting the engine") as status:
            await session.start(lambda text, percent: status.update(f"{text} ({percent} %)"))
        with Live(console=console, auto_refresh=False) as live:
            offset = 0
            for character in PROGRAM:
                request = await session.type(Patch(offset, 0, character))
                offset += 1
                # Longer at line ends, as people do; there the suggestions are the longest.
                gap = (PAUSE_S if character == "\n" else KEY_GAP_S) / speed
                deadline = asyncio.get_running_loop().time() + gap
                while True:
                    live.update(_picture(console, session, offset, request), refresh=True)
                    if asyncio.get_running_loop().time() >= deadline:
                        break
                    await asyncio.sleep(REFRESH_S)
                ghosts += bool(request.text)
            live.update(_picture(console, session, offset, None), refresh=True)
    finally:
        await session.stop()
    if not ghosts:
        raise EngineFailed("No ghost text was offered in the whole session; see the daemon's log.")


def _picture(console: Console, session: Session, cursor: int, request: Request | None) -> Group:
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    code = syntax.highlight(session.editor.text)[:cursor]  # it ends with a line end of its own
    code.append("▏", style="bold")
    if request:
        code.append(request.text, style="bright_black italic")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows(summarize(session.keystrokes, session.engine_time)):
        table.add_row(Text(name, style="dim"), value)
    height = max(5, min(22, console.height - 8))
    lines = code.split("\n", allow_blank=True)[-(height - 2) :]
    return Group(Panel(Text("\n").join(lines), title="demo.py", height=height), table)
