"""What a request that fails says to the user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from completion_ls.lsp import items
from completion_ls.wire.client import EngineFailed

SAID = "The engine daemon does not answer."


@pytest.mark.parametrize("told", [True, False])
async def test_what_the_user_was_told_of_the_engine_is_not_told_by_each_request_too(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """A request may fail late: then the trouble is over, and its sentence would be news once more."""
    shown: list[str] = []

    async def fails(*_: Any) -> None:
        raise EngineFailed(SAID, told=told)

    suggester = SimpleNamespace(suggest=fails, is_on_screen=lambda situation: False)
    server: Any = SimpleNamespace(
        configured=lambda: suggester,
        settings=None,
        notices=SimpleNamespace(show=lambda text, kind: shown.append(text)),
    )
    situation: Any = SimpleNamespace(manual=False)
    monkeypatch.setattr(items, "is_wanted", lambda *_, **__: True)
    assert await items._ask(server, situation) is None
    assert shown == ([] if told else [SAID])
