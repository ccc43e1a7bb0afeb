"""What must hold after every fault."""

from __future__ import annotations

import asyncio
import re
import time

import psutil
from filelock import FileLock, Timeout

from soak.stand import NO_ANSWER_S, Failed, Stand

LIMIT_S = 2.0
"""An editor waits no longer for what the model has no part in."""
MOST_FILES = 60
TRACEBACK = "Traceback (most"
UNFORESEEN = re.compile("never retrieved|never awaited|was destroyed but")
STRANGE = re.compile(r"Errno|Traceback|\{|\}|0x[0-9a-f]{6}")


async def problems(stand: Stand, messages: int) -> list[str]:
    """What does not hold, a sentence each, in the order in which it is looked at; at most so many
    messages to the user are meant."""
    found = []
    for check in (
        lambda: _waits(stand),
        lambda: _messages(stand, messages),
        lambda: _answers(stand),
        lambda: _processes(stand),
        lambda: _locks(stand),
        lambda: _nothing_held(stand),
        lambda: _waits(stand),
        lambda: _messages(stand, messages),
        lambda: _text_untouched(stand),
        lambda: _files(stand),
        lambda: _logs(stand),
    ):
        try:
            await check()
        except Failed as failure:
            if str(failure) not in found:
                found.append(str(failure))
    return found


async def _waits(stand: Stand) -> None:
    # A process that only echoes is the measure of the machine.
    limit_s = LIMIT_S + 10 * stand.yardstick_s
    for front in stand.fronts:
        if front.waits.now_s > limit_s:
            raise Failed(
                f"A cheap request waited for {front.waits.now_s:.1f} s (at most {limit_s:.1f} s are meant)."
            )


async def _messages(stand: Stand, meant: int) -> None:
    for front in stand.fronts:
        said = front.heard.messages
        if len(said) > meant:
            raise Failed(f"The user was told more than {meant}: {said}.")
        for one in said:
            if not re.fullmatch(r"completion-ls: [A-Z].*[.]", one, re.DOTALL) or STRANGE.search(
                one
            ):
                raise Failed(f"This is no sentence for a user: {one!r}.")


async def _answers(stand: Stand) -> None:
    await stand.text()


async def _processes(stand: Stand) -> None:
    meant = {front.pid for front in stand.fronts}
    deadline = time.monotonic() + NO_ANSWER_S
    while True:
        found = stand.processes()
        daemons = {one.pid for one in stand.daemons()}
        strangers = [one for one in found if one.pid not in meant | daemons]
        if not strangers and len(daemons) == 1:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{len(daemons)} daemons, and who is left is {_told(strangers)}.")
        await asyncio.sleep(0.1)


def _told(processes: list[psutil.Process]) -> str:
    words = []
    for one in processes:
        try:
            words.append(f"{one.pid} {one.status()} {' '.join(one.cmdline())[-60:]}")
        except psutil.Error:
            continue
    return "; ".join(words) or "nobody"


async def _locks(stand: Stand) -> None:
    """Whoever wants to start a daemon may, but for the one that lives."""
    endpoint = stand.endpoint
    if not endpoint.socket_file.exists():
        raise Failed("The daemon has no socket.")
    for file, is_held in ((endpoint.start_lock, False), (endpoint.life_lock, True)):
        lock = FileLock(file)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not is_held:
                raise Failed(f"{file.name} is held by nobody who should.") from None
        else:
            lock.release()
            if is_held:
                raise Failed(f"{file.name} is free, though there is a daemon.")


async def _nothing_held(stand: Stand) -> None:
    deadline = time.monotonic() + NO_ANSWER_S
    while True:
        figures = await stand.figures()
        held = [figures.get(name) for name in ("jobs_active", "sequences_in_use")]
        if held == [0, 0]:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{held[0]} jobs are still active and {held[1]} sequences in use.")
        await asyncio.sleep(0.05)


async def _text_untouched(stand: Stand) -> None:
    if edits := sum(front.heard.edits for front in stand.fronts):
        raise Failed(f"The server has changed the document {edits} times.")


async def _files(stand: Stand) -> None:
    for process in stand.processes():
        if (count := process.num_fds()) > MOST_FILES:
            raise Failed(f"{' '.join(process.cmdline())} has {count} files open.")


async def _logs(stand: Stand) -> None:
    """What nobody has foreseen ends there."""
    for file in stand.logs:
        if not file.exists():
            continue
        text = file.read_text(errors="replace")
        file.write_text("")  # not again in the next trial
        # asyncio itself has no answer to a lack of memory but this.
        parts = [one for one in text.split(TRACEBACK)[1:] if "MemoryError" not in one]
        if parts or UNFORESEEN.search(text):
            raise Failed(f"{file.name} has: {(parts or [text])[0][:2000]}")
