"""What must hold for any input of a kind: where the inputs come from, and the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy

WRITTEN, DRAWN = (Phase.explicit,), (Phase.generate, Phase.shrink)


@dataclass(frozen=True, slots=True)
class Property:
    """`check` raises for no input of `inputs`. `written` are inputs that were findings once, and are
    tried every time; `budget` is how many others pytest draws."""

    target: str
    name: str
    inputs: SearchStrategy[Any]
    check: Callable[[Any], None]
    written: tuple[Any, ...] = ()
    budget: int = 200

    def try_written(self) -> None:
        """Those that are written down. Raises what the check raises."""
        if self.written:
            self._run(WRITTEN, settings(phases=WRITTEN, deadline=None, database=None), None)

    def try_drawn(self, inputs: int, seed: int | None = None) -> None:
        """So many others: always the same ones without a seed. Raises what the check raises for the
        smallest input that was found."""
        chosen = settings(
            max_examples=inputs,
            phases=DRAWN,
            deadline=None,
            database=None,
            derandomize=seed is None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        self._run(DRAWN, chosen, seed)

    def _run(self, phases: tuple[Phase, ...], chosen: settings, seed: int | None) -> None:
        def holds(value: Any) -> None:
            self.check(value)

        holds.__name__ = holds.__qualname__ = self.check.__name__
        test = given(value=self.inputs)(holds)
        for value in self.written if phases is WRITTEN else ():
            test = example(value=value)(test)
        if seed is not None:
            test = seeded(seed)(test)
        chosen(test)()
