"""`completion-ls init`: choose a profile for this machine and write it into the user's settings."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from completion_ls.cli.models import named
from completion_ls.config import paths
from completion_ls.config.settings import Settings
from completion_ls.config.sources import (
    DEFAULT_PROFILE,
    PROFILE_KEY,
    profile_names,
    profiles_dir,
    resolve,
)
from completion_ls.engines.exl2 import checks
from completion_ls.models import local
from completion_ls.models.card import GraphicsCard, find_card
from completion_ls.models.store import megabytes, shown

GIB = 2**30
NEEDS: dict[str, float] = {"nvidia-24gb": 21.3, "nvidia-16gb": 12.8, "nvidia-12gb": 9.2}
"""Profiles that may be chosen, the best first, and the GiB of GPU memory each takes by the plan."""
UNKNOWN_USE = GIB // 2
"""Taken to be in use by a desktop where the driver does not say what is free."""


class InitError(Exception):
    """The settings cannot be written; the text is a sentence."""


def run(profile: str | None, *, dry_run: bool) -> int:
    """Choose (unless `profile` names one), write (unless `dry_run`), and say what comes next."""
    try:
        if profile is not None and profile not in profile_names():
            there = ", ".join(profile_names())
            raise InitError(f"There is no profile {profile!r}; there are: {there}.")
        file = paths.config_file()
        card = find_card()
        print(found(card))
        if profile is None:
            profile, why = choose(card)
            print(why)
        text = _read(file)
        new = with_profile(text, profile, file)
        line = f'profile = "{profile}"'
        if new == text:
            print(f"{shown(file)} has {line} already.")
        elif dry_run:
            print(f"{line} would be written into {shown(file)}; nothing was changed.")
        else:
            _replace(file, new)
            print(f"{line} was written into {shown(file)}.")
    except InitError as error:
        print(error, file=sys.stderr)
        return 1
    settings, problems = resolve([("the chosen profile", {PROFILE_KEY: profile})])
    for problem in problems:
        print(problem)
    print("Next:")
    for number, step in enumerate(steps(settings, profile), 1):
        print(f"{number}. {step}")
    return 0


def found(card: GraphicsCard | None) -> str:
    """What there is, as a sentence."""
    if card is None:
        return "No NVIDIA card with a working driver was found."
    free = "" if card.free_bytes is None else f", {card.free_bytes / GIB:.1f} GiB of it free"
    return f"Found {card.name} with {card.total_bytes / GIB:.1f} GiB{free}."


def choose(card: GraphicsCard | None) -> tuple[str, str]:
    """The best profile that fits, and a sentence that says why."""
    cpu = f"the profile {DEFAULT_PROFILE} is chosen, whose small model needs no card."
    if card is None:
        return DEFAULT_PROFILE, f"So {cpu}"
    if card.capability[0] < checks.AMPERE:
        return DEFAULT_PROFILE, (
            f"Its compute capability is {'.'.join(map(str, card.capability))}, and the engine for "
            f"NVIDIA cards needs {checks.AMPERE}.0 or more, so {cpu}"
        )
    free = card.total_bytes - UNKNOWN_USE if card.free_bytes is None else card.free_bytes
    for name, need in NEEDS.items():
        if need * GIB <= free:
            return name, f"The profile {name} fits: it takes about {need} GiB."
    least = min(NEEDS.values())
    return DEFAULT_PROFILE, f"The smallest profile for a card takes about {least} GiB, so {cpu}"


def with_profile(text: str, name: str, file: Path) -> str:
    """The settings file `text` with `profile = "name"`, all else as it was. Raises InitError."""
    try:
        before = tomllib.loads(text)
        document = tomlkit.parse(text)
    except (tomllib.TOMLDecodeError, TOMLKitError) as error:
        raise InitError(
            f"{file} is not TOML ({error}); it was left as it is. Mend it, then try again."
        ) from error
    if before.get(PROFILE_KEY) == name:
        return text
    if isinstance(before.get(PROFILE_KEY), dict):
        raise InitError(
            f"In {file}, {PROFILE_KEY} is a table, but it must be the name of a profile; the file was "
            "left as it is. Mend it, then try again."
        )
    if PROFILE_KEY in document:
        document[PROFILE_KEY] = name
        new = tomlkit.dumps(document)
    else:
        # Before all else: what stands behind a table's header belongs to that table.
        end = "\r\n" if "\r\n" in text else "\n"
        new = f'{PROFILE_KEY} = "{name}"{end}' + (end if text.strip() else "") + text
    # By their texts, as a number that is none is not even equal to itself.
    after = tomllib.loads(new)
    others = [
        repr({key: value for key, value in values.items() if key != PROFILE_KEY})
        for values in (before, after)
    ]
    if after.get(PROFILE_KEY) != name or others[0] != others[1]:
        raise InitError(
            f"{file} cannot be changed without changing other settings in it; it was left as it is. "
            f'Write {PROFILE_KEY} = "{name}" at its top yourself.'
        )
    return new


def steps(settings: Settings, profile: str) -> Iterator[str]:
    """What is left to do, as sentences."""
    own = _own_models(settings, profile)
    if own:
        yield f"Mind that your settings name models of their own, not the profile's: {own}."
    if settings.engine.kind == "exllamav2":
        lacking = [piece for piece in checks.pieces() if piece.found is None]
        for piece in lacking:
            yield f"{piece.name} is missing. {piece.how_to_get}"
    missing = {name: local.to_fetch(name) for name in named(settings)}
    missing = {name: size for name, size in missing.items() if size != 0}
    if missing:
        known = [size for size in missing.values() if size is not None]
        size = f" (about {megabytes(sum(known))})" if len(known) == len(missing) else ""
        yield f"`completion-ls models pull` fetches {' and '.join(missing)}{size}."
    yield "`completion-ls doctor` says whether all is there; then attach your editor."


def _own_models(settings: Settings, profile: str) -> str:
    """Models that come from elsewhere than the profile."""
    values = tomllib.loads((profiles_dir() / f"{profile}.toml").read_text(encoding="utf-8"))
    given = values.get("model", {}).get("name", settings.model.name)
    guesses = values.get("draft", {}).get("model", "")
    own = []
    if settings.model.name != given:
        own.append(f"model.name is {settings.model.name!r}")
    if settings.draft.model != guesses:
        own.append(f"draft.model is {settings.draft.model!r}")
    return ", ".join(own)


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise InitError(f"{file} is not UTF-8 text ({error}); it was left as it is.") from error


def _replace(file: Path, text: str) -> None:
    """Write the file whole or not at all; a link stays a link."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            shutil.copymode(file, new)
        else:
            new.chmod(0o644)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
