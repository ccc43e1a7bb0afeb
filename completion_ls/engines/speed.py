"""What this machine does: measured once for a model, and kept, unless other work was in the way."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from completion_ls import __version__
from completion_ls.config.paths import cache_dir
from completion_ls.decode.draft_length import MOST, PassCost
from completion_ls.engines.cores import thread_counts
from completion_ls.engines.kv import KvCache
from completion_ls.engines.model import Model
from completion_ls.engines.native import SOURCE, processor

_log = logging.getLogger(__name__)

WIDTHS = (1, 2, 4, 8, 1 + MOST)
CONTEXT = 512
"""Tokens that are there already when a pass is timed."""
ROUNDS = 5
"""The fastest of so many counts: other work on the machine only ever adds."""
KERNELS = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
MOST_BUSY = 0.25
"""What was measured while other work kept more processors busy is not kept."""
WORTH = 0.95
"""More threads must be faster by this to be taken."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The number of threads that is best, and the seconds of a pass by its width in tokens."""

    threads: int
    seconds: tuple[tuple[int, float], ...]

    @property
    def cost(self) -> PassCost:
        """The passes' cost relative to the narrowest."""
        return PassCost.of(self.seconds)


def speed_of(model: Model, folder: Path, threads: int) -> Speed:
    """How fast `model`, read from `folder`, is here with so many threads; with 0, the best number of
    threads is looked for. Measured if it was not before, in a second or two, and again the next time
    where the machine was busy; leaves the model with those threads."""
    file = _file(model, folder, threads)
    try:
        found = json.loads(file.read_text())
        speed = Speed(int(found["threads"]), tuple((int(w), float(s)) for w, s in found["seconds"]))
        if speed.threads < 1 or [width for width, _ in speed.cost.points] != list(WIDTHS):
            raise ValueError("Something else was measured.")
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError):
        others = OtherWork()
        speed = _measure(model, [threads] if threads else thread_counts())
        if (busy := others.processors()) > MOST_BUSY:
            _log.info("other work kept %.1f processors busy: it will be measured again", busy)
        else:
            _keep(file, speed)
    model.use_threads(speed.threads)
    return speed


class OtherWork:
    """What other processes do from now on."""

    def __init__(self) -> None:
        self._began, self._done = time.perf_counter(), self._seconds()

    def processors(self) -> float:
        """How many processors they have kept busy since, on average."""
        passed = time.perf_counter() - self._began
        return (self._seconds() - self._done) / passed if passed else 0.0

    @staticmethod
    def _seconds() -> float:
        all_times = psutil.cpu_times()
        idle = all_times.idle + getattr(all_times, "iowait", 0.0)
        # Linux counts a guest's time twice, and what a host takes away is not ours to use either.
        busy = sum(all_times) - idle - getattr(all_times, "guest", 0.0)
        return float(busy - getattr(all_times, "guest_nice", 0.0) - time.process_time())


def _keep(file: Path, speed: Speed) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}.part")
        try:
            made.write_text(json.dumps({"threads": speed.threads, "seconds": speed.seconds}))
            made.replace(file)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("what was measured could not be kept (%s)", error)


def _measure(model: Model, candidates: Iterable[int]) -> Speed:
    kv = KvCache(model.kv, 0).acquire([0], CONTEXT + max(WIDTHS))
    assert kv is not None
    # Some models know no position behind their context.
    past = max(1, min(CONTEXT, model.shape.context - max(WIDTHS)))
    widths = [width for width in WIDTHS if width == 1 or past + width <= model.shape.context]
    tokens = [number % model.shape.vocabulary for number in range(past + max(widths))]
    for layer in kv.layers:
        layer.zero_()  # what they are makes no difference to the time
    kv.extend(tokens[:past])

    def seconds(width: int) -> float:
        times = []
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            model.forward(tokens[past : past + width], kv, width)
            times.append(time.perf_counter() - began)
        return min(times[1:])

    best, least = 0, float("inf")
    for threads in candidates:  # few first
        model.use_threads(threads)
        needed = seconds(1)
        if needed < WORTH * least:
            best, least = threads, needed
    model.use_threads(best)
    return Speed(best, tuple((width, seconds(width)) for width in widths))


def _file(model: Model, folder: Path, threads: int) -> Path:
    """Named after all that the speed depends on."""
    depends = (__version__, KERNELS, str(folder.resolve()), repr(model.shape), model.nbytes)
    machine = (processor(), thread_counts(), model.is_compiled, threads, WIDTHS, CONTEXT)
    key = hashlib.sha256(repr((depends, machine)).encode()).hexdigest()[:32]
    return cache_dir() / "measured" / f"{key}.json"
