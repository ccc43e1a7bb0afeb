"""Whether the files of a model are still those that were fetched, as far as anybody knows their hashes."""

from __future__ import annotations

from dataclasses import dataclass

from completion_ls.models import catalogue, fetch, hub, local
from completion_ls.models.catalogue import CatalogueEntry
from completion_ls.models.store import Progress, file_sha256, silent


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared, as a sentence, and a sentence for each file that is wrong."""

    text: str
    wrong: tuple[str, ...] = ()


def compare(name: str, progress: Progress = silent) -> Compared:
    """Read the files of the model `name`, which is here, and compare them. Large files that have not
    changed since they were last read are not read again. Raises OSError."""
    if entry := catalogue.find(name):
        return _fetched(entry, progress)
    if repository := local.hub_model(name):
        return _of_hub(repository, progress)
    return Compared(
        "no checksum is known, as the files are your own; each is as long as its header says"
    )


def _fetched(entry: CatalogueEntry, progress: Progress) -> Compared:
    file = fetch.gguf_path(entry)
    if not file.exists():
        return Compared(
            "the fetched file has gone, so only the sizes of what was made of it were compared"
        )
    if file_sha256(file, progress) == entry.sha256:
        return Compared(
            f"SHA-256 of {file.name} is the pinned one; what was made of it has the sizes that it was "
            "written with"
        )
    return Compared(
        "compared with the pinned SHA-256",
        (
            f"The file {file} is damaged or was changed: its SHA-256 is not the pinned one. Delete it "
            f"and the folder {local.folder_of(entry)}, then `completion-ls models pull {entry.name}`.",
        ),
    )


def _of_hub(model: hub.HubModel, progress: Progress) -> Compared:
    wrong = []
    files = hub.listed(model)
    only = "" if hub.has_weights(files) else " --tokenizer"
    for file in files:
        path = model.folder / file.name
        kind, _, digest = file.digest.partition(":")
        right = file_sha256(path, progress) == digest if kind == "sha256" else None
        if not (hub.is_right(path, file) if right is None else right):
            wrong.append(
                f"The file {path} is damaged or was changed: its hash is not the one that the hub "
                f"listed. Delete it, then `completion-ls models pull {model}{only}` fetches it again."
            )
    what = " of the tokenizer, which is all that is here," if only else ""
    return Compared(
        f"{len(files)} files{what} compared with the hashes that the hub listed", tuple(wrong)
    )


def cut(name: str) -> str:
    """A sentence where the model was here as a whole and something of it is missing or cut; else
    empty. Nothing is read but sizes."""
    if entry := catalogue.find(name):
        return _cut_fetched(entry)
    repository = local.hub_model(name)
    return _cut_of_hub(repository, name) if repository else ""


def _cut_fetched(entry: CatalogueEntry) -> str:
    folder = local.folder_of(entry)
    if not folder.exists() or local.find(entry):
        return ""
    again = "from the fetched file" if fetch.gguf_path(entry).exists() else "and fetched"
    return (
        f"A file in {folder} is missing or cut short; all of it is made again, {again}, when the "
        f"model is next used, or now by `completion-ls models pull {entry.name}`."
    )


def _cut_of_hub(model: hub.HubModel, name: str) -> str:
    files = hub.listed(model)
    only = "" if hub.has_weights(files) else " --tokenizer"
    for file in files:
        path = model.folder / file.name
        size = path.stat().st_size if path.exists() else 0
        if size != file.size:
            return (
                f"The file {path} has {size:,} bytes and should have {file.size:,}; `completion-ls "
                f"models pull {name}{only}` fetches what is missing."
            )
    return ""
