"""Turning a GGUF file, once, into a folder that loads in a second: float32 weights, tokenizer."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from completion_ls.config.paths import cache_dir
from completion_ls.models.errors import ModelError
from completion_ls.models.store import (
    SLACK,
    Progress,
    check_room,
    no_room,
    says_disk_full,
    silent,
    workspace,
)

log = logging.getLogger(__name__)

CONVERTER = 1
"""Raised when the same file would be converted to something else: old folders are then redone."""

MARKER = "completion-ls.json"
NEEDED = {"config.json", "tokenizer.json", "model.safetensors"}


def converted_folder(file_name: str, size: int, sha256: str) -> Path:
    """Where the converted form of a GGUF file of this name, size and SHA-256 lies or would lie."""
    # File names may be as long as folder names, so there must be room for the rest.
    name = file_name.encode()[:150].decode(errors="ignore")
    return cache_dir() / "converted" / f"{name}-{size}-{sha256[:16]}"


def is_converted(folder: Path, sha256: str) -> bool:
    """Whether the folder is there and each file in it has the size it was written with."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        files = marker["files"]
        return (
            marker["converter"] == CONVERTER
            and marker["sha256"] == sha256
            and files.keys() >= NEEDED
            and all((folder / name).stat().st_size == size for name, size in files.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_gguf(file: Path) -> bool:
    """Whether the file begins like a GGUF file. Raises OSError when it cannot be read."""
    with file.open("rb") as stream:
        return stream.read(4) == b"GGUF"


def convert(gguf: Path, sha256: str, progress: Progress = silent) -> Path:
    """Folder with config.json, tokenizer.json and model.safetensors (float32) made from `gguf`.

    Done at most once per content; a folder with a missing or cut file is made again. Safe to call
    in several processes at once. Raises ModelError.
    """
    try:
        target = converted_folder(gguf.name, gguf.stat().st_size, sha256)
    except OSError as error:
        raise ModelError(f"The model file {gguf} cannot be read ({error.strerror}).") from error
    if is_converted(target, sha256):
        return target
    with workspace(progress) as temp:
        if is_converted(target, sha256):
            return target
        made = temp / "model"
        made.mkdir()
        _run_child(gguf, made, progress)
        marker = {
            "converter": CONVERTER,
            "source": str(gguf),
            "sha256": sha256,
            "files": {path.name: path.stat().st_size for path in sorted(made.iterdir())},
        }
        (made / MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    return target


def _run_child(gguf: Path, folder: Path, progress: Progress) -> None:
    """Run `gguf_to_folder` and pass on its progress. Raises ModelError with its sentence."""
    script = Path(__file__).with_name("gguf_to_folder.py")
    environment = os.environ | {
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUTF8": "1",
    }
    need = 0
    error = ""
    with tempfile.TemporaryFile(dir=folder.parent) as output:
        with subprocess.Popen(
            # -P: the current folder is the user's project; its files must not shadow libraries.
            [sys.executable, "-P", str(script), str(gguf), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            encoding="utf-8",
        ) as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    match json.loads(line):
                        case {"text": str(text), "fraction": float(fraction)}:
                            progress(text, fraction)
                        case {"need": int(need)}:
                            check_room(folder, need)
                        case {"error": str(error)}:
                            pass
            except BaseException:
                child.kill()
                raise
        output.seek(0)
        said = output.read().decode("utf-8", errors="replace")
    if child.returncode == 0:
        return
    log.debug("conversion ended with %s: %s", child.returncode, said)
    if says_disk_full(error or said):
        raise no_room(folder, need + SLACK)
    if not error:
        error = (
            "The conversion was killed, most likely for lack of memory; close other programs or "
            "choose a smaller model."
            if child.returncode < 0
            else f"The conversion failed ({' / '.join(said.split(chr(10))[-3:]).strip(' /')})."
        )
    raise ModelError(f"The model file {gguf} cannot be used. {error}")
