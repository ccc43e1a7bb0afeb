"""How logs are written: of an error its type and where it was, never its text, which may hold the code
that it is about."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType

FORM = "%(asctime)s %(name)s %(levelname)s %(message)s"


def set_up() -> None:
    """Have logs, and errors that nobody catches, written to stderr without the text of errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WithoutCode(FORM))
    logging.basicConfig(handlers=[handler])
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


class WithoutCode(logging.Formatter):
    """Writes a record; of an error its type and the places it passed."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and the places of its error."""
        if record.name == "asyncio" and record.exc_info:
            # What it says of a task or callback names the error and its arguments.
            record = logging.makeLogRecord({**record.__dict__, "msg": "an error in the event loop"})
            record.args = None
        # What another handler has formatted is kept in the record.
        record.exc_text = None
        return super().format(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Types and places of an error and of what it came from."""
        return described(ei[1]) if ei[1] is not None else ""


def described(error: BaseException) -> str:
    """Types and places of an error and of what it came from, the first one first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = [described(before), "and then:"] if before is not None else []
    for frame in traceback.extract_tb(error.__traceback__):
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
    kind = type(error)
    return "\n".join([*lines, f"{kind.__module__}.{kind.__qualname__}"])


def _uncaught(
    kind: type[BaseException], error: BaseException, places: TracebackType | None
) -> None:
    _say(f"completion-ls failed:\n{described(error)}")


def _uncaught_in_thread(what: threading.ExceptHookArgs) -> None:
    if what.exc_value is not None and not isinstance(what.exc_value, SystemExit):
        _uncaught(what.exc_type, what.exc_value, what.exc_traceback)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Of an error at the end of an object or generator Python would say its text, and the object."""
    if what.exc_value is not None:
        _say(f"an error was ignored:\n{described(what.exc_value)}")


def _say(text: str) -> None:
    if sys.stderr is not None:  # print would take stdout, where an editor may listen
        print(text, file=sys.stderr)  # noqa: T201
