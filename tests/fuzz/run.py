"""The properties for as long as one likes, each with fresh seeds in turns, and what came of it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.property import Property
from fuzz.targets import PROPERTIES
from soak.outcome import Outcome
from support.apart import PREFIX, folders

ROUND = 200
"""Inputs of a property in a row."""
LONGEST_S = 60
"""No input takes longer, however busy the machine is."""


class Hangs(BaseException):
    """An input takes for ever."""


def run(
    minutes: float, seed: int, say: Callable[[str], None], targets: Sequence[str] = ()
) -> list[Outcome]:
    """Try these targets (all without any) for so long. Each finding is said at once, with its
    smallest input, and ends the property that it was found with. On the main thread."""
    wanted = [one for one in PROPERTIES if not targets or one.target in targets]
    trials = [_Trial(one) for one in wanted]
    end = time.monotonic() + 60 * minutes
    with _alone():
        for trial in trials:
            trial.go_on(one_by_one=True, seed=seed, say=say)
        while time.monotonic() < end and not all(trial.problems for trial in trials):
            seed += 1
            for trial in trials:
                if time.monotonic() < end:
                    trial.go_on(one_by_one=False, seed=seed, say=say)
    return [trial.outcome() for trial in trials]


@dataclass
class _Trial:
    property: Property
    tried: int = 0
    problems: list[str] = field(default_factory=list)

    def go_on(self, *, one_by_one: bool, seed: int, say: Callable[[str], None]) -> None:
        """Another round, unless something was found."""
        if self.problems:
            return
        counted = replace(self.property, check=self._check)
        try:
            if one_by_one:
                counted.try_written()
            else:
                counted.try_drawn(ROUND, seed)
        except (Exception, Hangs) as error:
            name = f"{self.property.target} {self.property.name}"
            found = "".join(traceback.format_exception(error))
            self.problems.append(f"{type(error).__name__}: {str(error)[:500]}")
            say(f"{name}, seed {seed}:\n{found}")

    def _check(self, value: Any) -> None:
        self.tried += 1
        signal.alarm(LONGEST_S)
        try:
            self.property.check(value)
        finally:
            signal.alarm(0)

    def outcome(self) -> Outcome:
        return Outcome(
            f"fuzz: {self.property.target} {self.property.name}", self.tried, tuple(self.problems)
        )


@contextmanager
def _alone() -> Iterator[None]:
    """Settings and files of its own, and an end for what hangs."""
    before = dict(os.environ)
    levels = [(one, one.level) for one in (logging.getLogger(), logging.getLogger("completion_ls"))]
    handler = signal.signal(signal.SIGALRM, _hangs)
    with tempfile.TemporaryDirectory(prefix="cls-fuzz-") as folder:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        os.environ.update(folders(Path(folder)))
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, handler)
            os.environ.clear()
            os.environ.update(before)
            for logger, level in levels:
                logger.setLevel(level)


def _hangs(number: int, frame: FrameType | None) -> None:
    where = "".join(traceback.format_stack(frame, 4)) if frame else ""
    raise Hangs(f"An input took more than {LONGEST_S} s, at\n{where}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where something was found."""
    import argparse

    names = sorted({one.target for one in PROPERTIES})
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="for so long (5)")
    parser.add_argument("--seed", type=int, metavar="S", help="begin with this seed")
    parser.add_argument("target", nargs="*", help=f"of {', '.join(names)}; all without any")
    options = parser.parse_args(arguments)
    if unknown := set(options.target) - set(names):
        parser.error(f"no target is called {min(unknown)!r}; there are {', '.join(names)}")
    seed = time.time_ns() % 10**9 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    found = run(options.minutes, seed, lambda text: print(text, flush=True), options.target)
    for one in found:
        what = f"{len(one.problems)} findings" if one.problems else "nothing found"
        print(f"{one.name}: {one.tried:,} inputs, {what}")
    return 1 if any(one.problems for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
