"""The file of counts: written by several windows, damaged, or not to be written."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from filelock import FileLock

from completion_ls.lsp import count_file, counts
from completion_ls.lsp.counts import Counts

WRITER = """
from completion_ls.lsp import count_file
for number in range(100):
    count_file.add({"ours": {"shown": 1, "accepted": number % 2}, "FOO": {"rejected": 1}}, 60)
"""


@pytest.mark.process
def test_windows_that_write_at_once_lose_nothing() -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER]) for _ in range(2)]
    seen = 0
    while any(one.poll() is None for one in writers):
        found = count_file.read()  # at any time there is a whole file
        now = found["ours"]["shown"] if found else 0
        assert now >= seen
        seen = now
    assert [one.returncode for one in writers] == [0, 0]
    ours = count_file.read()["ours"]
    assert ours == {"since": date.today().isoformat(), "shown": 200, "accepted": 100}
    assert count_file.read()["FOO"]["rejected"] == 200


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"models": []}',
        b'{"models": {"a": 1}}',
        b'{"models": {"a": {"shown": ' + b"9" * 4300 + b"}}}",
        b'{"models": {"a": {"shown": "1"}}}',
        b'{"models": {"a": {"shown": true}}}',
        b'{"models": {"a": {"shown": 1.5}}}',
        b'{"models": {"a": {"since": 1}}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_moved_aside(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file = count_file.place()
    file.parent.mkdir(parents=True)
    file.write_bytes(damaged)
    assert count_file.read() == {}
    for _ in range(2):
        count_file.add({"model": {"shown": 1}}, 5)
    assert count_file.read()["model"]["shown"] == 2
    assert file.with_suffix(".damaged").read_bytes() == damaged
    assert len(caplog.records) == 1


def test_a_pipe_in_its_place_is_not_waited_for() -> None:
    file = count_file.place()
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert count_file.read() == {}
    count_file.add({"model": {"shown": 1}}, 5)
    assert count_file.read()["model"]["shown"] == 1
    assert file.with_suffix(".damaged").is_fifo()


def test_what_a_newer_version_counts_stays() -> None:
    file = count_file.place()
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"models": {"a": {"since": "2026-01-02", "laughed": 7}}}))
    count_file.add({"a": {"shown": 1}}, 5)
    assert count_file.read() == {"a": {"since": "2026-01-02", "laughed": 7, "shown": 1}}


async def test_a_window_waits_neither_for_the_lock_nor_loses_a_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counts, "WRITE_S", 0.0)
    monkeypatch.setattr(counts, "PATIENCE_S", 0.1)
    mine = Counts()
    lock = count_file.place().with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        for _ in range(2):
            mine.add("model", shown=1)
            while not mine._writing:
                await asyncio.sleep(0)
            await mine._writing  # the loop goes on meanwhile
        assert count_file.read() == {}
        assert (await mine.of("model"))["shown"] == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await mine.close()
    assert count_file.read()["model"]["shown"] == 2


async def test_a_folder_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPLETION_LS_STATE_DIR", str(tmp_path / "file" / "state"))
    mine = Counts()
    mine.add("model", shown=1)
    await mine.close()
    assert count_file.read() == {}
