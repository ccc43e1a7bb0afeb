"""People who type recorded sessions into real fronts, at the recorded pace."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from completion_ls.bench.editor import Editor, EditorError, Request
from completion_ls.bench.trace import Trace, cut, read_trace, recorded_gaps

RECORDED = Path(__file__).parents[1] / "data" / "own_trace.json.gz"
LONGEST_GAP_S = 1.0


@dataclass(slots=True)
class Typist:
    """One person at one editor. `waits_s` has for each key the seconds to its first text, or to the
    answer that there is none; infinite where the next key came first, or an error."""

    editor: Editor
    trace: Trace
    start: int
    """The transaction that is typed next; after the last one comes the first again, below another first
    line, so that nothing is known from the time before."""
    pace: float = 1.0
    """How many times faster than recorded."""
    patient: bool = False
    """Whether the next key waits for the first text, so that every key has a time to it."""
    times: int = 0
    """How often the recording was typed to its end."""
    waits_s: list[float] = field(default_factory=list)
    with_text: int = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, place: int, *, start: int, pace: float = 1.0, patient: bool = False) -> Typist:
        """The person at editor number `place`, who begins with the transaction `start`. Each place has
        another first line, so that no prompt is the beginning of another one's."""
        trace = read_trace(RECORDED)
        text = cut(trace, start=start, keystrokes=1, gaps_s=[0.0] * len(trace.transactions)).text
        text = f"# Desk {place}\n{text}"
        editor = Editor(f"file:///soak/{place}/typed.py", "python", text)
        return cls(editor, trace, start, pace, patient)

    async def begin(self) -> None:
        """Start the editor, and wait for the first answer."""
        await self.editor.start()
        request = self.editor.ask(len(self.editor.text))
        with contextlib.suppress(EditorError):
            await self.editor.answered(request)

    def come(self) -> None:
        """Come to the window, as the user of an editor that says so."""
        shown = {"textDocument": {"uri": self.editor.uri}}
        self.editor.notify("completionLs/didShowDocument", shown)

    async def type(self, seconds: float = math.inf, keys: float = math.inf) -> None:
        """Type for so long, or so many keys. Raises EditorError where the front has gone."""
        gaps = recorded_gaps(self.trace.times, most_s=LONGEST_GAP_S)
        began = time.perf_counter()
        typed, next_key = 0, began
        while typed < keys and next_key < began + seconds:
            if self.start == len(self.trace.transactions):
                self.start, self.times = 0, self.times + 1
                head = self.editor.text[: self._head].split(" again")[0].rstrip("\n")
                text = f"{head} again {self.times}\n{self.trace.start}"
                self.editor.edit(0, len(self.editor.text), text)
            transaction, gap_s = self.trace.transactions[self.start], gaps[self.start]
            self.start += 1
            if not transaction:
                continue
            cursor = 0
            for patch in transaction:
                position = self._head + patch.position
                cursor = self.editor.edit(position, patch.deleted, patch.inserted)
            request = self.editor.ask(cursor)
            typed += 1
            if self.patient:
                with contextlib.suppress(EditorError):
                    await self.editor.first(request)
                next_key = max(next_key, time.perf_counter() - gap_s)
            if self.editor.has_gone:
                raise EditorError("The front has gone.")
            next_key += gap_s / self.pace
            await asyncio.sleep(max(0.0, next_key - time.perf_counter()))
            self._note(request)

    def taken(self) -> list[float]:
        """`waits_s`, which begins anew."""
        waits_s, self.waits_s = self.waits_s, []
        return waits_s

    async def stop(self) -> None:
        """Close the editor."""
        with contextlib.suppress(EditorError):
            await self.editor.stop()

    @property
    def _head(self) -> int:
        return self.editor.text.index("\n") + 1

    def _note(self, request: Request) -> None:
        self.editor.cancel(request)
        wait_s = None if request.error else request.first_s
        self.waits_s.append(math.inf if wait_s is None else wait_s)
        self.with_text += request.first_text_s is not None
        if request.error:
            self.errors.append(request.error)
