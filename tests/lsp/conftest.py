"""A window for the tests of the language server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.window import Window, window


@pytest.fixture
async def editor(shared: dict[str, str]) -> AsyncIterator[Window]:
    """A window on the shared daemon, initialized. Nothing is done ahead of the user, so that the
    daemon's counters tell what a request costs."""
    async with window(shared) as found:
        await found.initialize(initialization_options={"completion": {"ahead": False}})
        yield found


@pytest.fixture
async def eager(shared: dict[str, str]) -> AsyncIterator[Window]:
    """A window with the settings that users have."""
    async with window(shared) as found:
        await found.initialize()
        yield found
