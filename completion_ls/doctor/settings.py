"""Which settings are in force, where each is from, and what was refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from completion_ls.config import paths
from completion_ls.config.sources import Problem, Source, collect, resolve
from completion_ls.doctor.lines import Notes
from completion_ls.models.store import shown

if TYPE_CHECKING:
    from completion_ls.config.settings import Settings

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings, and by key each value with where it is from."""

    settings: Settings
    origins: dict[str, dict[str, Any]]


def look(notes: Notes) -> Chosen:
    """Read every source but an editor's."""
    file = paths.config_file()
    settings, problems = resolve()
    chosen = Chosen(settings, _origins(settings, problems))
    notes.ok("file", f"{shown(file)}{'' if file.exists() else ' (there is none yet)'}")
    for problem in problems:
        notes.failed(problem.key or "source", str(problem))
    given = {key: one for key, one in chosen.origins.items() if one["source"] != DEFAULT}
    for key, one in given.items():
        notes.ok(key, f"{json.dumps(one['value'])} ({one['source']})")
    return chosen


def _origins(settings: Settings, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    settings = _without_secrets(settings)
    sources, _ = collect()
    wrong = {(problem.key, problem.source) for problem in problems}
    values = settings.model_dump(mode="json")
    return {
        f"{section}.{key}": {"value": value, "source": _source(sources, section, key, wrong)}
        for section, keys in values.items()
        for key, value in keys.items()
    }


def _without_secrets(settings: Settings) -> Settings:
    """With an address that holds no name or password, and no query, for which it is no place."""
    address, _, _ = settings.remote.url.partition("?")
    scheme, separator, rest = address.rpartition("//")
    host, slash, path = rest.partition("/")
    url = f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
    return settings.model_copy(update={"remote": settings.remote.model_copy(update={"url": url})})


def _source(sources: list[Source], section: str, key: str, wrong: set[tuple[str, str]]) -> str:
    """The strongest source whose value was taken."""
    for source in reversed(sources):
        values = source.values.get(section)
        has = isinstance(values, Mapping) and values.get(key) is not None
        if has and (f"{section}.{key}", source.name) not in wrong:
            return source.name
    return DEFAULT
