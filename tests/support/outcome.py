"""Whether a test failed, for the fixtures that tidy up behind it. A conftest imports both names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Note it in the item's stash."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report
