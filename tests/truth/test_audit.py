"""A daemon that computes every answer again from nothing finds no other: real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from completion_ls.config.settings import Settings
from completion_ls.wire.client import EngineClient
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete
from support.typing import PROGRAM, Editor, State

pytestmark = pytest.mark.process


def session() -> list[State]:
    """Some 60 keys, with backspace and jumps."""
    half = PROGRAM.index("\n\nclass Summary")
    editor = Editor(PROGRAM[:half], PROGRAM[half:])
    editor.seen()
    editor.type("\nfor event in events:\n    print(ev")
    editor.backspace(4)
    editor.move(-8)
    editor.type("  # 日本 🎉\n")
    editor.move(12)
    editor.backspace(3)
    editor.type("elf.counts[")
    editor.undo(6)
    editor.move(-12)
    editor.left(5)
    return editor.states


async def quiet(client: EngineClient) -> dict[str, Any]:
    """The daemon's figures once it has nothing to do: it audits one answer at a time."""
    while (figures := (await client.status()).figures)["jobs_active"]:
        await asyncio.sleep(0.01)
    return figures


async def test_no_answer_of_a_session_is_another_from_nothing(trained: Path) -> None:
    sections = {
        "model": {"name": str(trained)},
        "engine": {"threads": 1, "kv_memory_mb": 16, "prefill_chunk": 64},
        "daemon": {"audit": 1},
    }
    client = EngineClient(DaemonConfig.of(Settings.model_validate(sections)))
    try:
        states = session()
        assert 60 <= len(states) <= 100
        for number, state in enumerate(states):
            request = Complete(
                id=0,
                document="file:///a.py",
                prefix=state.prefix,
                suffix=state.suffix,
                prompt_tokens=256,
                max_tokens=16,
            )
            answer = await client.complete(request)
            # Every third key comes before its forerunner is answered.
            pieces = 1 if number % 3 == 2 else 100
            async for _ in answer:
                pieces -= 1
                if not pieces:
                    break
            client.cancel(answer)
            if pieces:
                await quiet(client)

        figures = await quiet(client)
        assert figures["audited"] > len(states) / 2
        assert figures["audit_mismatches"] == 0
        assert figures["audit_ties"] <= 1
    finally:
        await client.close()
