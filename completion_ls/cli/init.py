"""`completion-ls init`: choose a profile for this machine and write it into the user's settings."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import tomlkit

from completion_ls.cli.models import named
from completion_ls.config import paths, user_file
from completion_ls.config.api_key import API_KEY_VARIABLE
from completion_ls.config.profiles import TAKES_GIB, of_profile, planned
from completion_ls.config.settings import Settings
from completion_ls.config.sources import (
    DEFAULT_PROFILE,
    PROFILE_KEY,
    PROFILE_OPTION,
    PROFILE_VARIABLE,
    profile_names,
    profiles_dir,
    resolve,
)
from completion_ls.config.user_file import UserFileError
from completion_ls.engines.exl2 import checks
from completion_ls.engines.exl2.gpu import GraphicsCard, find_card
from completion_ls.engines.remote.keys import user
from completion_ls.models import local
from completion_ls.models.store import megabytes, shown

GIB = 2**30
CHOICES = ("nvidia-24gb", "nvidia-16gb", "nvidia-12gb")
"""Those that are chosen unasked, the best first: all can be fetched, and know FIM."""
REMOTE = "remote"
DESKTOP = GIB // 2
"""Bytes of the card that a desktop is taken to use."""


class UnknownProfile(Exception):
    """The profile that was asked for; the text is a sentence."""


def run(profile: str | None, *, dry_run: bool) -> int:
    """Choose (unless `profile` names one), write (unless `dry_run`), and say what comes next."""
    is_named = profile is not None
    try:
        if profile is not None and profile not in profile_names():
            there = ", ".join(profile_names())
            raise UnknownProfile(
                f"{PROFILE_OPTION}: there is no profile {profile!r}; there are: {there}."
            )
        file = paths.config_file()
        text = user_file.read(file)
        old = user_file.values(text, file).get(PROFILE_KEY)
        _, before = resolve()
        before = [one for one in before if one.key != PROFILE_KEY]  # that one is chosen here
        for problem in before:
            print(problem)
        card = find_card()
        print(found(card))
        if profile is None:
            profile, why = choose(card, old)
            print(why)
        new = with_profile(text, profile, file)
        line = f'profile = "{profile}"'
        was = f'; it was "{old}"' if isinstance(old, str) and old != profile else ""
        if new == text:
            print(f"{shown(file)} has {line} already.")
        elif dry_run:
            print(f"{line} would be written into {shown(file)}{was}; nothing was changed.")
        else:
            user_file.replace(file, new)
            print(f"{line} was written into {shown(file)}{was}.")
    except (UnknownProfile, UserFileError) as error:
        print(error, file=sys.stderr)
        return 1
    if not is_named and (first := os.environ.get(PROFILE_VARIABLE)):
        print(f"Mind that {PROFILE_VARIABLE}={first} is set and goes before the file; unset it.")
    settings, problems = resolve(profile=profile)
    for problem in problems:
        if problem not in before:
            print(problem)
    print("Next:")
    for number, step in enumerate(steps(settings, profile, card), 1):
        print(f"{number}. {step}")
    if problems:
        print("Some of your settings were refused, as said above, and others count in their place.")
    return 0


def found(card: GraphicsCard | None) -> str:
    """What there is, as a sentence."""
    if card is None:
        return "No NVIDIA card with a working driver was found."
    free = "" if card.free_bytes is None else f", {card.free_bytes / GIB:.1f} GiB of it free"
    return f"Found {card.name} with {card.total_bytes / GIB:.1f} GiB{free}."


def choose(card: GraphicsCard | None, old: object = None) -> tuple[str, str]:
    """The best profile for the card, and a sentence that says why. What is in use just now does not
    count: it may be our own daemon. `old` is the profile that the settings name; one for a card is
    kept where none is seen, as a driver may be broken, and one for a server in any case."""
    if old == REMOTE:
        return REMOTE, (
            f"The profile {REMOTE} of your settings is kept, whatever this machine can do; `completion-ls "
            f"init --profile {DEFAULT_PROFILE}` takes the one that needs no server."
        )
    cpu = f"the profile {DEFAULT_PROFILE} is chosen, whose small model needs no card."
    if card is None:
        if isinstance(old, str) and old in TAKES_GIB:
            return old, (
                f"The profile {old} of your settings, which needs one, is kept all the same; "
                f"`completion-ls init --profile {DEFAULT_PROFILE}` takes the one that needs none."
            )
        return DEFAULT_PROFILE, f"So {cpu}"
    if card.capability[0] < checks.AMPERE:
        return DEFAULT_PROFILE, (
            f"Its compute capability is {'.'.join(map(str, card.capability))}, and the engine for "
            f"NVIDIA cards needs {checks.AMPERE}.0 or more, so {cpu}"
        )
    for name in CHOICES:
        if TAKES_GIB[name] * GIB <= card.total_bytes - DESKTOP:
            return name, f"The profile {name} fits: it takes about {TAKES_GIB[name]} GiB."
    least = min(TAKES_GIB[name] for name in CHOICES)
    return DEFAULT_PROFILE, f"The smallest profile for a card takes about {least} GiB, so {cpu}"


def with_profile(text: str, name: str, file: Path) -> str:
    """The settings file `text` with `profile = "name"`, all else as it was. Raises UserFileError."""
    before = user_file.values(text, file)
    if before.get(PROFILE_KEY) == name:
        return text
    if isinstance(before.get(PROFILE_KEY), dict | list):
        raise UserFileError(
            f"In {file}, {PROFILE_KEY} is a table or a list, but it must be the name of a profile; the "
            "file was left as it is. Mend it, then try again."
        )
    document = tomlkit.parse(text)
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
        raise UserFileError(
            f"{file} cannot be changed without changing other settings in it; it was left as it is. "
            f'Write {PROFILE_KEY} = "{name}" at its top yourself.'
        )
    return new


def steps(settings: Settings, profile: str, card: GraphicsCard | None) -> Iterator[str]:
    """What is left to do, as sentences."""
    own = list(_own(settings, profile))
    if own:
        yield f"Mind that your own settings go before the profile's: {', '.join(own)}."
    _, model, guesses = of_profile(profile)
    name, draft = settings.model.name, settings.draft.model
    if name != model and draft and draft == guesses:
        yield (
            f"The draft of the profile, {draft}, must be of the same family as your own model; set "
            'draft.model to another, or to "".'
        )
    if not local.is_known(name):
        file = profiles_dir() / f"{profile}.toml"
        if name == model:
            yield f"The model {name} must be made: {file} says how."
        else:
            yield f"There is no model {name}; name another one in model.name."
    if settings.engine.kind == "exllamav2":
        lacking = [piece for piece in checks.pieces() if piece.found is None]
        for piece in lacking:
            yield f"{piece.name} is missing. {piece.how_to_get}"
        if not own and card and (short := _short(profile, card)):
            yield short
    if settings.engine.kind == "remote":
        yield (
            f"The server is {user(settings.remote.url) or 'not named yet'}: remote.url in "
            f"{shown(paths.config_file())} names another. A key that it asks for goes into "
            f"{API_KEY_VARIABLE} or the keyring, and never into a settings file."
        )
    yield from _to_fetch(settings)
    yield "`completion-ls doctor` says whether all is there; then attach your editor."


def _to_fetch(settings: Settings) -> Iterator[str]:
    """What is not here yet, if anything. Of a server's model that is the tokenizer."""
    name = settings.model.name
    if settings.engine.kind == "remote" and local.hub_model(name):
        if not local.has_tokenizer(name):
            yield f"`completion-ls models pull` fetches the tokenizer of {name}."
        return
    missing = {name: local.to_fetch(name) for name in named(settings)}
    missing = {name: size for name, size in missing.items() if size != 0}
    if missing:
        known = [size for size in missing.values() if size is not None]
        size = f" (about {megabytes(sum(known))})" if len(known) == len(missing) else ""
        takes = "".join(f"; {one}" for one in planned(settings))
        yield f"`completion-ls models pull` fetches {' and '.join(missing)}{size}{takes}."


def _short(profile: str, card: GraphicsCard) -> str:
    """A sentence where the card has too little memory for the profile, or has too little free."""
    gib = TAKES_GIB.get(profile, 0.0)
    if gib * GIB > card.total_bytes:
        return f"{profile} takes {gib} GiB, and the card has {card.total_bytes / GIB:.1f}."
    if card.free_bytes is not None and gib * GIB > card.free_bytes:
        return (
            f"{profile} takes {gib} GiB and {card.free_bytes / GIB:.1f} are free now; close what uses "
            "the card, or `completion-ls daemon stop`."
        )
    return ""


def _own(settings: Settings, profile: str) -> Iterator[str]:
    """What decides which engine and models there are, and comes from elsewhere than the profile."""
    kind, name, draft = of_profile(profile)
    if settings.engine.kind != kind:
        yield f"engine.kind is {settings.engine.kind!r}, and the profile needs {kind!r}"
    if settings.model.name != name:
        yield f"model.name is {settings.model.name!r}"
    if settings.draft.model != draft:
        yield f"draft.model is {settings.draft.model!r}"
