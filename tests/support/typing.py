"""A person at an editor: what stands before and behind the cursor after each thing they do."""

from __future__ import annotations

from dataclasses import dataclass, field

OPEN = {"(": ")", "[": "]"}

PROGRAM = '''
def load_events(path: Path, limit: int | None = None) -> list[Event]:
    """Read events from a file, oldest first."""
    events: list[Event] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise BadEvent(path, number) from error
            events.append(Event(**record))
            if limit is not None and len(events) >= limit:
                break
    return sorted(events, key=lambda event: event.timestamp)


class Summary:
    """Counts and durations by kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.durations: dict[str, list[float]] = defaultdict(list)

    def add(self, event: Event) -> None:
        self.counts[event.kind] += 1
        if event.finished is None:
            return
        self.durations[event.kind].append(event.finished - event.started)

    def slowest(self, count: int = 10) -> list[tuple[str, float]]:
        means = {
            kind: sum(values) / len(values)
            for kind, values in self.durations.items()
        }
        return sorted(means.items(), key=lambda item: -item[1])[:count]


def report(summary: Summary, stream: TextIO) -> None:
    for kind, mean in summary.slowest():
        share = summary.counts[kind] / summary.counts.total()
        print(f"{kind:20} {mean:8.3f} s {share:6.1%}", file=stream)
    stream.flush()
'''


@dataclass(frozen=True, slots=True)
class State:
    """The document after a step; `typed` where that was one character, put in or taken back."""

    prefix: str
    suffix: str
    typed: bool


@dataclass(slots=True)
class Editor:
    """A document with a cursor in it."""

    before: str
    behind: str
    states: list[State] = field(default_factory=list)

    def seen(self, typed: bool = False) -> None:
        """Remember what the server would be asked now."""
        self.states.append(State(self.before, self.behind, typed))

    def type(self, text: str) -> None:
        """Type as in an editor that closes brackets and indents new lines."""
        for line in text.splitlines(keepends=True):
            body = line.lstrip(" ")
            wanted = len(line) - len(body)
            if self.before.endswith("\n") and body != "\n":
                self._indent(wanted)
            for character in body:
                self._key(character)

    def backspace(self, count: int) -> None:
        """Take characters back, one by one."""
        for _ in range(count):
            self.before = self.before[:-1]
            self.seen(typed=True)

    def move(self, lines: int) -> None:
        """Put the cursor at the end of another line."""
        whole = self.before + self.behind
        ends = [n for n, character in enumerate(whole) if character == "\n"]
        line = self.before.count("\n") + lines
        self.before, self.behind = whole[: ends[line]], whole[ends[line] :]
        self.seen()

    def left(self, count: int) -> None:
        """Put the cursor further left."""
        self.before, self.behind = self.before[:-count], self.before[-count:] + self.behind
        self.seen()

    def paste(self, text: str) -> None:
        """Put in a text at once."""
        self.before += text
        self.seen()

    def undo(self, length: int) -> None:
        """Take the last characters back at once."""
        self.before = self.before[:-length]
        self.seen()

    def replace(self, old: str, new: str) -> None:
        """Change a text wherever it stands before the cursor, as a formatter does."""
        self.before = self.before.replace(old, new)
        self.seen()

    def _indent(self, wanted: int) -> None:
        here = len(self.before) - len(self.before.rstrip(" "))
        if wanted != here:
            self.before = self.before.rstrip(" ") + " " * wanted
            self.seen(typed=True)

    def _key(self, character: str) -> None:
        if character in OPEN.values() and self.behind.startswith(character):
            self.behind = self.behind[1:]  # typed over the one that the editor had put there
        if character == "\n":
            last = self.before.rpartition("\n")[2]
            blanks = len(last) - len(last.lstrip(" "))
            deeper = 4 if last.endswith((":", "(", "[", "{")) else 0
            self.before += "\n" + " " * (blanks + deeper if last.strip() else 0)
        else:
            self.before += character
            self.behind = OPEN.get(character, "") + self.behind
        self.seen(typed=True)


def document() -> str:
    """Some 300 lines."""
    nouns = ["Order", "Invoice", "Packet", "Sample", "Session", "Ticket"]
    return "\n".join(PROGRAM.replace("Event", n).replace("event", n.lower()) for n in nouns)


def session(text: str) -> list[State]:
    """Some 2,000 keys in the middle of a document, and what happens between them."""
    lines = text.splitlines(keepends=True)
    half = next(n for n in range(len(lines) // 2, len(lines)) if lines[n] == "\n")
    editor = Editor("".join(lines[:half]), "".join(lines[half:]))
    editor.seen()
    function, summary, report = PROGRAM.split("\n\n\n")
    first, last = summary.split("\n\n    def slowest")
    editor.type(function + "\n")
    editor.move(-4)  # up by a few lines, to put one in
    editor.type('\nlog.debug("%d events", len(events))')
    editor.move(4)
    editor.type("\n\n" + first)
    editor.backspace(25)
    editor.type(first[-25:])
    editor.left(9)  # into the line
    editor.type("_at")
    editor.backspace(3)
    editor.move(0)
    pasted = "".join(lines[10:22])
    editor.paste(pasted)
    editor.type("x = 1")
    editor.undo(len(pasted) + 5)
    editor.type("\n\n    def slowest" + last)
    editor.move(15)  # an edit below, and back
    editor.type("  # see above")
    editor.move(-15)
    editor.replace("\n        for number", "\n      for number")  # the file is saved, and formatted
    editor.type("\n\n" + report)
    return editor.states
