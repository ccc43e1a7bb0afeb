"""The measured session where its daemon goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from completion_ls.bench.editor import Editor
from completion_ls.bench.session import Session
from completion_ls.config.sources import resolve_strict
from completion_ls.wire.client import EngineFailed
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.stop import stop_daemon
from support.tiny_model import write_tiny_model


@pytest.mark.process
async def test_a_daemon_that_is_stopped_meanwhile_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(write_tiny_model(tmp_path / "model")))
    session = Session(Editor("untitled:a.py", "python", ""))
    await session.start()
    await stop_daemon(Endpoint.of(DaemonConfig.of(resolve_strict())))
    with pytest.raises(EngineFailed, match=r"stopped|leaving|gone"):
        for _ in range(2):  # the first may hear of the end of the connection only
            await session.finish()
    await session.stop()
