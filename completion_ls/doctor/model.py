"""Whether a model is here, and whether its files are whole and what was fetched."""

from __future__ import annotations

from pathlib import Path

from completion_ls.doctor.lines import Notes
from completion_ls.models import catalogue, local, verify
from completion_ls.models.errors import ModelError
from completion_ls.models.store import Progress, megabytes, shown


def look(notes: Notes, role: str, name: str, progress: Progress) -> Path | None:
    """The folder of the model that `role` ("model" or "draft") names; None where there is none,
    or none yet. Nothing is fetched or converted."""
    cut = verify.cut(name)
    try:
        found = local.ready(name, progress)
    except ModelError as error:
        notes.failed(role, cut or str(error))
        return None
    if found:
        size = sum(file.stat().st_size for file in found.folder.glob("*.safetensors"))
        notes.ok(role, f"{name}: {shown(found.folder)}, {megabytes(size)} of weights")
        return found.folder
    if cut:
        notes.remark(role, cut)
    elif entry := catalogue.find(name):
        what = f"fetched ({megabytes(entry.size)})" if local.to_fetch(name) else "converted"
        notes.remark(
            role,
            f"{name} is not here yet; it is {what} when it is first used, or now by `completion-ls "
            f"models pull {name}`.",
        )
    else:
        notes.remark(
            role, f"{name} is converted when it is first used, which takes from seconds to minutes."
        )
    return None


def tokenizer(notes: Notes, name: str, progress: Progress) -> Path | None:
    """As `look`, where a server has the weights: the folder with the tokenizer."""
    role = "tokenizer of"
    if catalogue.find(name) or name.lower().endswith(".gguf"):
        return look(notes, role, name, progress)  # it is made together with the rest
    try:
        folder = local.tokenizer_folder(name, progress)
    except ModelError as error:
        notes.failed(role, verify.cut(name) or str(error))
        return None
    notes.ok(role, f"{name}: {shown(folder)}")
    return folder


def compare(notes: Notes, role: str, name: str, progress: Progress) -> None:
    """Read the files of a model that is here, and compare what is known of them."""
    label = f"{role}: checksums"
    try:
        compared = verify.compare(name, progress)
    except OSError as error:
        notes.failed(
            label, f"{error.filename or name} cannot be read ({error.strerror}); fetch it again."
        )
        return
    for sentence in compared.wrong:
        notes.failed(label, sentence)
    if not compared.wrong:
        notes.ok(label, compared.text)
