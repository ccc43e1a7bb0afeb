"""A window for the tests of the language server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.window import Window, window


@pytest.fixture
async def editor(shared: dict[str, str]) -> AsyncIterator[Window]:
    """A window on the shared daemon, initialized."""
    async with window(shared) as found:
        await found.initialize()
        yield found
