"""Every property of the targets, with a fixed budget of inputs that are always the same."""

from __future__ import annotations

import pytest

from fuzz.property import Property
from fuzz.targets import PROPERTIES


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: f"{one.target}-{one.name}")
def test_it_holds_for_any_input(one: Property) -> None:
    one.try_written()
    one.try_drawn(one.budget)
