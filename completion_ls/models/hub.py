"""Models of the Hugging Face hub: fetching one branch of a repository, and finding it again.

The files go into `hub/OWNER--NAME@REVISION.part` in the cache, each under a name of its own until it
is whole and what the hub says it is; the folder gets its final name when all are. What a killed
process leaves is therefore gone on with, byte for byte. The hub's own client keeps no partial file
of a process that died, so it is asked for the list of files, and they are fetched here. Of a model that
a server computes only the tokenizer may be fetched: then the marker names no weights, until a later
pull has the rest come.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from completion_ls import __version__
from completion_ls.config import shortage
from completion_ls.config.paths import cache_dir
from completion_ls.models import pickles
from completion_ls.models.errors import ModelError
from completion_ls.models.store import (
    CHUNK,
    SLACK,
    Progress,
    check_room,
    megabytes,
    no_room,
    silent,
    sole,
)

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoSibling

PLACE = "hub"
MARKER = "completion-ls.json"
"""In a folder: which repository it is of, and its files with their sizes and hashes."""
UNFINISHED = ".part"
"""After the name of a folder or a file that is not whole yet."""
MAIN = "main"
RETRIES = 5
"""So often a connection is made again that brings nothing."""

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@([\w][\w./-]{0,99}))?", re.ASCII)
LONGEST_REPOSITORY = 96
"""The hub's own limit."""
WEIGHTS = re.compile(r"[A-Za-z0-9_][\w.-]{0,199}\.safetensors", re.ASCII)
"""No folders, drives or dots in front, and nothing too long for a disk: the hub's word is not taken for
where a file is put."""
LARGEST = 1 << 50
"""Bytes of a file; whoever says more means something else."""
RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")
LONGEST_WAIT_S = 120
"""Most that a busy hub can have us wait."""

SAFETENSORS = "*.safetensors"
TOKENIZER = "tokenizer.json"
NEEDED = ("config.json", TOKENIZER)
WANTED = {
    *NEEDED,
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
    "model.safetensors.index.json",
}
"""What is fetched beside weights."""
OF_WEIGHTS = (".safetensors", ".safetensors.index.json")
"""How names end that a tokenizer has no use for."""

SHAPELESS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What comes of JSON that is none, or of another shape than was promised."""


class _OtherPart(Exception):
    """A host does not send the part of a file that it was asked for."""


@dataclass(frozen=True)
class HubModel:
    """One revision (branch, tag or commit) of a repository."""

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision != MAIN else self.repository

    @property
    def folder(self) -> Path:
        """Where it lies, or would lie, once it is whole."""
        name = f"{self.repository}@{self.revision}".replace("/", "--")
        return cache_dir() / PLACE / name

    @property
    def unfinished(self) -> Path:
        """Where it lies before."""
        return self.folder.with_name(self.folder.name + UNFINISHED)


@dataclass(frozen=True)
class HubFile:
    """A file that the hub lists: its size in bytes, and `sha256:` or `git:` with its hash."""

    name: str
    size: int
    digest: str


def parse(name: str) -> HubModel | None:
    """What `owner/name` or `owner/name@revision` means; None where it is neither."""
    found = NAME.fullmatch(name)
    if not found or len(found[1]) > LONGEST_REPOSITORY or ".." in name or "--" in name:
        return None
    if name.endswith((UNFINISHED, ".lock")):  # what we call folders that are something else
        return None
    return HubModel(found[1], found[2] or MAIN)


def find(model: HubModel) -> Path | None:
    """Its folder, if all files are there in their sizes. Touches no network."""
    files = _marked(model, model.folder)
    return model.folder if has_weights(files) and _are_here(model.folder, files) else None


def find_tokenizer(model: HubModel) -> Path | None:
    """The folder with its tokenizer, whether the weights are there or not, or only in part. Touches no
    network."""
    for folder in (model.folder, model.unfinished):
        files = _of_tokenizer(_marked(model, folder))
        if files and _are_here(folder, files):
            return folder
    return None


def progress_of(model: HubModel) -> tuple[int, int] | None:
    """Bytes here and bytes of all, where it was begun with its weights and not brought to an end."""
    files = _marked(model, model.unfinished)
    if not has_weights(files):
        return None
    return sum(_have(model.unfinished, file) for file in files), sum(file.size for file in files)


def known() -> list[HubModel]:
    """All of which there is something in the cache, whole or not, by name."""
    found = set()
    for marker in (cache_dir() / PLACE).glob(f"*/{MARKER}"):
        try:
            values = json.loads(marker.read_text(encoding="utf-8"))
            model = parse(f"{values['repository']}@{values['revision']}")
        except (OSError, *SHAPELESS):
            continue
        if model and marker.parent in (model.folder, model.unfinished):
            found.add(model)
    return sorted(found, key=str)


def pull(model: HubModel, progress: Progress = silent, *, only_tokenizer: bool = False) -> Path:
    """Its folder, fetched where it is not there yet; what an earlier attempt brought is kept. With
    `only_tokenizer` no weights come, and where some are there already they stay.

    Safe to call in several processes at once: one fetches, the others wait and find it. Raises
    ModelError.
    """
    found = find_tokenizer if only_tokenizer else find
    if ready := found(model):
        return ready
    with sole(f"{PLACE}/{model.folder.name}.lock", progress):
        if ready := found(model):
            return ready
        with _sentences(model):
            api = _api()
            commit, files = _listing(api, model, only_tokenizer)
            wanted = _of_tokenizer(files) if only_tokenizer else files
            if not any(has_weights(_marked(model, at)) for at in (model.folder, model.unfinished)):
                files = wanted
            part = _unfinished_folder(model, commit, files)
            left = sum(file.size - _have(part, file) for file in wanted)
            check_room(part, left)
            try:
                _fetch_all(api, model, commit, wanted, part, progress)
            except OSError as error:
                if error.errno in shortage.DISK:
                    raise no_room(part, left + SLACK) from error
                raise
        if not _are_here(part, files):  # a pull of the weights was begun, and is gone on with later
            return part
        part.rename(model.folder)
    return model.folder


def _api() -> HfApi:
    from huggingface_hub import HfApi, is_offline_mode

    if is_offline_mode():
        raise ModelError(
            "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so nothing is fetched from the "
            "Hugging Face hub; unset it and try again."
        )
    # It warns of requests without a token, in the midst of our progress.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    _session()
    return HfApi(library_name="completion-ls", library_version=__version__)


def _session() -> httpx2.Client:
    """The client of the hub's library, which all requests go through; from now on it is never led from
    HTTPS to HTTP, and tells nothing of this machine but the versions of Python and of the library."""
    from huggingface_hub import constants, get_session

    # Else it tells which torch there is and which program has started us, after asking the hub for a list
    # of such programs, which it keeps for a day, whatever it is.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    session = get_session()
    hooks = session.event_hooks
    if _refuse_http not in hooks["request"]:
        session.event_hooks = {**hooks, "request": [*hooks["request"], _refuse_http]}
    return session


def _refuse_http(request: httpx2.Request) -> None:
    """Called before each request, those that another answer leads to among them."""
    from huggingface_hub import constants

    if request.url.scheme != "https" and constants.ENDPOINT.startswith("https:"):
        raise ModelError(
            f"The Hugging Face hub, or something before it, leads to {request.url.scheme}://"
            f"{request.url.host}, where anybody on the way can change what comes; nothing was fetched "
            "from there. Try again from another network."
        )


def _listing(api: HfApi, model: HubModel, only_tokenizer: bool) -> tuple[str, list[HubFile]]:
    """The commit that the revision is at, and the files of it that are wanted: with `only_tokenizer` the
    weights may be missing."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError

    try:
        info = api.model_info(
            model.repository,
            revision=model.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        commit = info.sha or model.revision
        commit.encode("ascii")  # or it is none
        files = [_hub_file(one) for one in info.siblings or [] if _is_wanted(one.rfilename)]
    except HFValidationError:
        raise
    except SHAPELESS as error:
        raise ModelError(
            f"What came for {model} is no answer of the Hugging Face hub: the network may want you to "
            "log in (open any page in a browser), or a proxy stands between. Then try again."
        ) from error
    names = {file.name for file in files}
    missing = [name for name in ((TOKENIZER,) if only_tokenizer else NEEDED) if name not in names]
    if not only_tokenizer and not has_weights(files):
        missing.append(SAFETENSORS)
    pickle = pickles.first(one.rfilename for one in info.siblings or [])
    if missing == [SAFETENSORS] and pickle:
        raise ModelError(f"The repository {model} has its weights only in {pickle}: {pickles.WHY}")
    if missing:
        others = [name for name in _branches(api, model) if name != model.revision]
        hint = (
            f"it has other revisions: {', '.join(others)}; name one as {model.repository}@REVISION"
            if others
            else "name another repository"
        )
        raise ModelError(
            f"The repository {model.repository} is no {'tokenizer' if only_tokenizer else 'model'} that "
            f"can be used at its revision {model.revision}: it has no {' and no '.join(missing)} there; "
            f"{hint}."
        )
    return commit, files


def _is_wanted(name: str) -> bool:
    """No pickles, no code, no pictures, nothing in folders."""
    return name in WANTED or WEIGHTS.fullmatch(name) is not None


def _hub_file(sibling: RepoSibling) -> HubFile:
    size = sibling.size
    is_size = isinstance(size, int) and 0 <= size < LARGEST
    if size is None or not is_size or (sibling.lfs is None and sibling.blob_id is None):
        raise ModelError(
            f"The Hugging Face hub does not say how large {sibling.rfilename} is; try again later."
        )
    digest = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}"
    return HubFile(sibling.rfilename, size, digest)


def _branches(api: HfApi, model: HubModel) -> list[str]:
    """The repository's branches, for a hint; none where they cannot be had."""
    import httpx2

    try:
        return sorted(branch.name for branch in api.list_repo_refs(model.repository).branches)
    except (httpx2.HTTPError, OSError, *SHAPELESS):
        return []


def _unfinished_folder(model: HubModel, commit: str, files: list[HubFile]) -> Path:
    """The folder to fetch into, with what is there of these very files. Nothing goes but files that an
    earlier attempt put there."""
    part = there = model.unfinished
    if os.path.lexists(model.folder):  # whole once, and something of it is gone now
        there = model.folder
        if os.path.lexists(part):
            raise _in_the_way(there)
    elif not os.path.lexists(part):
        part.mkdir()
    before = _ours(model, there, files)
    if there != part:
        there.rename(part)
    for file in set(before) - set(files):
        for path in _places(part, file.name):
            path.unlink(missing_ok=True)
    marker = {
        "repository": model.repository,
        "revision": model.revision,
        "commit": commit,
        "files": {file.name: [file.size, file.digest] for file in files},
    }
    new = part / (MARKER + UNFINISHED)
    new.write_text(json.dumps(marker, indent=1), encoding="utf-8")
    new.replace(part / MARKER)
    return part


def _ours(model: HubModel, folder: Path, files: list[HubFile]) -> list[HubFile]:
    """The files that the folder's marker names. Raises ModelError where a link or something of the
    user's own is in the place of the folder, of one of these or of `files`."""
    if folder.is_symlink() or not folder.is_dir():
        raise _in_the_way(folder)
    marked = _marked(model, folder)
    if not marked and not set(folder.iterdir()) <= set(_places(folder, MARKER)):
        raise _in_the_way(folder)
    own = {MARKER, *(file.name for file in marked)}
    for name in own.union(file.name for file in files):
        for path in _places(folder, name):
            if os.path.lexists(path) and (
                name not in own or not stat.S_ISREG(path.lstat().st_mode)
            ):
                raise _in_the_way(path)
    return marked


def _in_the_way(path: Path) -> ModelError:
    return ModelError(
        f"{path} is in the way: it is not what a pull leaves there, so it was left as it is. Move it "
        "away, or delete it if you do not need it, then run the command again."
    )


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    """Where a file lies once it is whole, and before."""
    return folder / name, folder / (name + UNFINISHED)


def _fetch_all(
    api: HfApi,
    model: HubModel,
    commit: str,
    files: list[HubFile],
    part: Path,
    progress: Progress,
) -> None:
    total = max(1, sum(file.size for file in files))
    have = sum(_have(part, file) for file in files)
    for number, file in enumerate(files, 1):
        text = f"fetching file {number} of {len(files)}, {megabytes(total)} in all"
        others = have - _have(part, file)
        have = others + file.size

        def tell(text: str = text, file: HubFile = file, others: int = others) -> None:
            progress(text, (others + _have(part, file)) / total)

        tell()
        path, unfinished = _places(part, file.name)
        if _size(path) == file.size:
            continue
        url = _url(api, model, commit, file)
        _fetch(url, file, unfinished, tell)
        if file.size >= CHUNK * 64:
            tell(f"checking {file.name}")
        if not is_right(unfinished, file):
            unfinished.unlink()
            raise ModelError(
                f"The file {file.name} of {model} was damaged on its way (its hash is wrong) and was "
                f"deleted; run `completion-ls models pull {model}` again."
            )
        unfinished.replace(path)


def _url(api: HfApi, model: HubModel, commit: str, file: HubFile) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(model.repository, file.name, revision=commit, endpoint=api.endpoint)


def _fetch(url: str, file: HubFile, path: Path, tell: Callable[[], None]) -> None:
    """Bring `path` to the file's size, from what is there on; a lost connection is made again. A host
    that sends another part is asked for the whole file once, and where the address that the hub gave
    has run out, the hub is asked once more."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if (_size(path) or 0) > file.size:
        path.unlink()
    path.touch()
    failures, is_anew, is_again = 0, False, False
    while (have := path.stat().st_size) < file.size:
        lost: Exception | None = None
        wait_s = 0
        try:
            _stream(url, file, path, have, tell)
        except _OtherPart as error:
            path.write_bytes(b"")
            if is_anew:
                raise ModelError(
                    f"What came for {file.name} is not the part that was asked for: something between "
                    "here and the Hugging Face hub changes it; try again later or from another network."
                ) from error
            is_anew = True
            continue
        except httpx2.RequestError as error:
            lost = error
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403) and error.response.history and not is_again:
                is_again = True
            elif status < 500 and status != 429:
                raise
            lost = error
            wait_s = _wait_s(error.response)
        came = path.stat().st_size
        if came == file.size:
            return
        failures = 0 if came > have else failures + 1
        if failures > RETRIES:
            said = " ".join(str(lost or "it was closed").split())
            raise ModelError(
                f"The connection to the Hugging Face hub was lost at {megabytes(came)} of "
                f"{megabytes(file.size)} of {file.name} ({said}), and again and again; what came is "
                "kept. Check the network and run the command again."
            ) from lost
        time.sleep(max(failures, wait_s))


def _wait_s(response: httpx2.Response) -> int:
    """For how many seconds a busy hub wants to be left alone."""
    text = response.headers.get("Retry-After", "")
    return min(int(text), LONGEST_WAIT_S) if re.fullmatch("[0-9]{1,9}", text) else 0


def _stream(url: str, file: HubFile, path: Path, have: int, tell: Callable[[], None]) -> None:
    """One request for what follows the first `have` bytes, written as it comes."""
    import httpx2
    from huggingface_hub import constants, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    session = _session()  # first: making headers may ask the hub something, too
    headers = build_hf_headers(library_name="completion-ls", library_version=__version__)
    headers["Accept-Encoding"] = "identity"  # sizes and ranges are those of the file itself
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with session.stream("GET", url, headers=headers, timeout=timeout) as response:
        if response.status_code == 416:
            raise _OtherPart
        if response.is_error:
            response.read()  # what the hub says of it
        hf_raise_for_status(response)
        start, whole = _start_and_size(response)
        if start not in (0, have):
            raise _OtherPart
        if whole is not None and whole != file.size:
            raise _wrong_size(file, whole)
        have = told = start  # a proxy that knows no ranges sends it from the start
        # Closed, and so written, on whatever way out: what came counts for the next attempt.
        with path.open("ab" if have else "wb", buffering=CHUNK) as target:
            for block in response.iter_bytes():
                have += len(block)
                if have > file.size:
                    raise _wrong_size(file, have)
                target.write(block)
                if have - told >= CHUNK:
                    told = have
                    tell()


def _start_and_size(response: httpx2.Response) -> tuple[int, int | None]:
    """At which byte of the file an answer begins, and the file's size where it says one."""
    if response.status_code == 206:
        found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if not found:
            raise _OtherPart
        return int(found[1]), None if found[2] == "*" else int(found[2])
    text = response.headers.get("Content-Length", "")
    return 0, int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _wrong_size(file: HubFile, size: int) -> ModelError:
    return ModelError(
        f"The Hugging Face hub lists {file.name} with {file.size} bytes and sends {size} or more: "
        "something between here and the hub changes it, or the repository is damaged; try again "
        "later or from another network."
    )


def listed(model: HubModel) -> list[HubFile]:
    """The files that the hub listed when the model, or its tokenizer, was fetched as a whole, be they in
    order or not; none where it never was here."""
    return _marked(model, model.folder)


def has_weights(files: list[HubFile]) -> bool:
    """Whether these are of a whole model, and not of a tokenizer only."""
    return any(file.name.endswith(".safetensors") for file in files)


def _of_tokenizer(files: list[HubFile]) -> list[HubFile]:
    return [file for file in files if not file.name.endswith(OF_WEIGHTS)]


def _are_here(folder: Path, files: list[HubFile]) -> bool:
    return all(_size(folder / file.name) == file.size for file in files)


def is_right(path: Path, file: HubFile) -> bool:
    """Whether the file's content is what the hub listed. Raises OSError."""
    kind, _, wanted = file.digest.partition(":")
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(usedforsecurity=False)
    if kind == "git":
        digest.update(f"blob {file.size}\0".encode())
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest() == wanted


def _marked(model: HubModel, folder: Path) -> list[HubFile]:
    """The files that the folder's marker names; none where there is no marker, or one of another
    model."""
    try:
        values = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if (values["repository"], values["revision"]) != (model.repository, model.revision):
            return []
        files = [
            HubFile(name, int(size), str(digest))
            for name, (size, digest) in values["files"].items()
        ]
        right = all(_is_wanted(one.name) and 0 <= one.size < LARGEST for one in files)
    except (OSError, *SHAPELESS):
        return []
    return files if right else []


def _have(folder: Path, file: HubFile) -> int:
    """Bytes of the file that are here."""
    size = _size(folder / file.name)
    if size is None:
        size = _size(folder / (file.name + UNFINISHED))
    return min(size or 0, file.size)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


@contextmanager
def _sentences(model: HubModel) -> Iterator[None]:
    """What the hub or the network says, as a ModelError that says what to do."""
    import httpx2
    from huggingface_hub import errors

    log_in = "log in with a token of the hub (`hf auth login`, or HF_TOKEN)"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"The repository {model.repository} is gated: accept its terms on its page on the "
            f"Hugging Face hub, then {log_in} and try again."
        ) from error
    except errors.RevisionNotFoundError as error:
        branches = _branches(_api(), model)
        there = f"; there are: {', '.join(branches)}" if branches else ""
        raise ModelError(
            f"The repository {model.repository} on the Hugging Face hub has no revision "
            f"{model.revision!r}{there}."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hugging Face hub has no model repository {model.repository} (asked for revision "
            f"{model.revision!r}), or it is private; check the name, or {log_in}."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelError(
                f"The Hugging Face hub does not let you have {model} ({status}); {log_in} that may "
                "read it."
            ) from error
        said = " ".join((error.server_message or "").split())[:200]
        raise ModelError(
            f"The Hugging Face hub answered {status} when asked for {model}"
            f"{f' ({said})' if said else ''}; try again later."
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(
            f"{model.repository!r} cannot be the name of a repository of the Hugging Face hub: {error}"
        ) from error
    except (httpx2.HTTPError, errors.OfflineModeIsEnabled) as error:
        raise ModelError(
            f"The Hugging Face hub cannot be reached to fetch {model} ({error or 'no answer'}); check "
            "the network and its proxy settings, then run the command again. What was fetched is kept."
        ) from error
