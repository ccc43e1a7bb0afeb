"""Each fault once, on one front and its daemon (another pair where one was left broken)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from soak.faults import FAULTS, SILENT_S, Fault, trial
from soak.stand import Stand

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

STOPPED_S = SILENT_S + 2.0


class Stands:
    """The one stand of now."""

    def __init__(self) -> None:
        self.now: Stand | None = None

    async def get(self) -> Stand:
        if self.now is None:
            self.now = Stand()
            await self.now.start()
        return self.now

    async def drop(self) -> None:
        if self.now is not None:
            await self.now.close()
            self.now = None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stands() -> AsyncIterator[Stands]:
    stands = Stands()
    yield stands
    await stands.drop()


@pytest.mark.parametrize("fault", FAULTS, ids=[one.name.replace(" ", "_") for one in FAULTS])
async def test_after_a_fault_everything_goes_on(stands: Stands, fault: Fault) -> None:
    found = await trial(await stands.get(), fault, STOPPED_S)
    if found.problems:
        await stands.drop()
    assert not found.problems
