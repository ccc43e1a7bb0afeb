"""The file of counts: what was shown, accepted and kept, by the name of the model. Numbers only.

Several windows add to it at once, each under a lock and by a new file in the old one's place.
"""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from completion_ls.config import private
from completion_ls.config.paths import state_dir

log = logging.getLogger(__name__)

SHOWN = "shown"
ACCEPTED = "accepted"
WORDS = "accepted_words"
LINES = "accepted_lines"
REJECTED = "rejected"
CHARACTERS = "characters_accepted"
JUDGED = ("characters_judged_after_30_s", "characters_judged_after_5_min")
KEPT = ("characters_kept_after_30_s", "characters_kept_after_5_min")
NAMES = (SHOWN, ACCEPTED, WORDS, LINES, REJECTED, CHARACTERS, *JUDGED, *KEPT)
SINCE = "since"
"""The day of a model's first count."""

MOST = 10**18
"""No count has come to more by counting."""

Numbers = Mapping[str, int]


class Damaged(ValueError):
    """The file holds something else than counts."""


def place() -> Path:
    """Where the file is; it need not be there."""
    return state_dir() / "counts.json"


def read() -> dict[str, dict[str, Any]]:
    """The counts of each model, with the day of the first one; none where there is no file that can be
    read."""
    try:
        return _read(place())
    except (OSError, Damaged):
        return {}


def add(changes: Mapping[str, Numbers], timeout_s: float) -> None:
    """Add numbers, by model. Waits for other windows, for at most `timeout_s`. A damaged file is moved
    aside. Raises OSError (TimeoutError where it is another window's turn all the time)."""
    # It takes longer to import than a window should wait for its first answer.
    from filelock import FileLock

    file = place()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock"), timeout=timeout_s):
        try:
            models = _read(file)
        except Damaged:
            aside = file.with_suffix(".damaged")
            log.warning("%s is damaged; counts begin anew, and it is kept as %s", file, aside.name)
            file.replace(aside)
            models = {}
        for model, numbers in changes.items():
            counts = models.setdefault(model, {SINCE: date.today().isoformat()})
            for name, number in numbers.items():
                counts[name] = counts.get(name, 0) + number
        private.write(file, json.dumps({"models": models}, indent=1))


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise Damaged
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise Damaged from error
    models = found.get("models") if isinstance(found, dict) else None
    if not isinstance(models, dict) or not all(_are_counts(one) for one in models.values()):
        raise Damaged
    return models


def _are_counts(found: object) -> bool:
    """Whether these are a day and whole numbers of a size that counts have."""
    return isinstance(found, dict) and all(
        isinstance(value, str) if name == SINCE else type(value) is int and abs(value) <= MOST
        for name, value in found.items()
    )
