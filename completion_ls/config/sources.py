"""Where settings come from, in one order (a later one wins):

1. the defaults in `settings`;
2. a profile, `configs/NAME.toml`, named by `profile` in any later source (default: cpu);
3. the user's file, `config.toml` in the configuration folder;
4. environment variables, COMPLETION_LS_SECTION__KEY=value, and COMPLETION_LS_PROFILE=name, which is
   what `--profile` sets;
5. what the editor sends: `initializationOptions`, then `workspace/didChangeConfiguration`.

What an editor sends may be the settings of a project that somebody else wrote. So no editor names a server
that computes (`OF_THE_USER`), nor turns one on that the user has not named in another source.

A wrong key or value does not stop a server: it is left out (a weaker source's value counts then),
and a Problem says what is wrong, where, and what was perhaps meant. Reading the sources (`collect`)
needs no pydantic, so that the answer to `initialize` need not wait for it; `resolve` checks them.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from completion_ls.config import paths
from completion_ls.config.there import is_there

if TYPE_CHECKING:
    from completion_ls.config.settings import Settings

DEFAULT_PROFILE = "cpu"
ENVIRONMENT_PREFIX = "COMPLETION_LS_"
PROFILE_KEY = "profile"
PROFILE_VARIABLE = "COMPLETION_LS_PROFILE"
PROFILE_OPTION = "--profile"
MOST_OF_A_NAME = 80
MOST_OF_A_FILE = 1 << 20
NO_SETTINGS = ("API_KEY", "CACHE_DIR", "CONFIG", "LOG_DIR", "RUNTIME_DIR", "STATE_DIR", "TOKEN")
"""Variables with our prefix that are no settings (see `paths`, `api_key` and
`lsp/admission.py`)."""
OF_THE_USER = ("remote",)
"""Sections that no editor sets: they say where code is sent."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place that settings were read from; `name` is what an error calls it."""

    name: str
    values: Mapping[str, Any]
    of_editor: bool = False
    """What an editor has sent, or a profile that it has named."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that was not taken. `str()` is a sentence for the user."""

    key: str
    source: str
    text: str

    def __str__(self) -> str:
        where = f"Setting {_brief(self.key)} in {self.source}" if self.key else self.source
        return f"{where}: {self.text}"


_given = ""
"""The profile of `--profile`, so that its errors do not speak of a variable nobody has set."""


class SettingsError(Exception):
    """Raised where wrong settings must stop a command; the message has one sentence a line."""


def _brief(name: str) -> str:
    """A name that somebody has written, in quotes: the beginning of it, where it is no name at all."""
    return repr(name if len(name) <= MOST_OF_A_NAME else f"{name[:MOST_OF_A_NAME]}…")


def profiles_dir() -> Path:
    """The folder of profiles: inside the installed package, or the checkout's `configs/`."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def profile_names() -> list[str]:
    """Names of the profiles that can be chosen."""
    return sorted(file.stem for file in profiles_dir().glob("*.toml"))


def use_profile(name: str) -> None:
    """What `--profile` does: every part, child processes too, reads the same sources, so it goes
    where they look."""
    global _given
    os.environ[PROFILE_VARIABLE] = _given = name


def collect(
    editor: Iterable[tuple[str, object]] = (), *, profile: str | None = None
) -> tuple[list[Source], list[Problem]]:
    """Read every source, weakest first. `editor` holds (name, value) pairs as the client sent them.
    `profile` is one that the user chooses now, whatever the sources say."""
    problems: list[Problem] = []
    later = [_user_file(problems), *_environment(os.environ, problems)]
    later += [_editor(name, value, problems) for name, value in editor]
    if profile is not None:
        later.append(Source("the chosen profile", {PROFILE_KEY: profile}))
    named, namer = DEFAULT_PROFILE, Source("the default", {})
    for source in later:
        name = source.values.get(PROFILE_KEY)
        if isinstance(name, str):
            named, namer = name, source
        elif name is not None:
            problems.append(Problem(PROFILE_KEY, source.name, "it must be the name of a profile."))
    sources = [_profile(named, namer, problems), *later]
    if not lookup((one for one in sources if not one.of_editor), "remote", "url"):
        sources = [_without_server(one, problems) if one.of_editor else one for one in sources]
    return sources, problems


def lookup(sources: Iterable[Source], section: str, key: str) -> Any:
    """The unchecked value of one setting, or None where no source has it."""
    found = None
    for source in sources:
        values = source.values.get(section)
        if isinstance(values, Mapping) and key in values:
            found = values[key]
    return found


def resolve(
    editor: Iterable[tuple[str, object]] = (), *, profile: str | None = None
) -> tuple[Settings, list[Problem]]:
    """All sources (see `collect`) merged and checked: the settings in force, and what was not taken."""
    from pydantic import ValidationError

    from completion_ls.config.settings import Settings

    sources, problems = collect(editor, profile=profile)
    given: dict[
        tuple[str, str], list[tuple[str, Any]]
    ] = {}  # by key: source and value, weakest first
    for source in sources:
        for section, values in source.values.items():
            if section == PROFILE_KEY:
                continue
            if section not in Settings.model_fields:
                known_here = [*Settings.model_fields, PROFILE_KEY]
                problems.append(_unknown(section, source, known_here))
                continue
            if not isinstance(values, Mapping):
                problems.append(Problem(section, source.name, "it must be a table of settings."))
                continue
            known = Settings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
            for key, value in values.items():
                if key not in known:
                    problems.append(_unknown(f"{section}.{key}", source, known))
                elif value is not None:  # editors send null for what is not set
                    given.setdefault((section, key), []).append((source.name, value))
    while True:
        merged: dict[str, dict[str, Any]] = {}
        for (section, key), values in given.items():
            if values:
                merged.setdefault(section, {})[key] = values[-1][1]
        try:
            settings = Settings.model_validate(merged)
        except ValidationError as error:
            wrong = {(str(one["loc"][0]), str(one["loc"][1])): one for one in error.errors()}
            for (section, key), detail in wrong.items():
                name, value = given[section, key].pop()
                text = f"{_sentence(detail['msg'])} It is {repr(value)[:80]}."
                problems.append(Problem(f"{section}.{key}", name, text))
            continue
        if not (text := _wrong_fallback(settings.remote.fallback)):
            return settings, problems
        name, _ = given["remote", "fallback"].pop()
        problems.append(Problem("remote.fallback", name, text))


def resolve_strict() -> Settings:
    """The settings for a command; raises SettingsError where a server would go on without them."""
    settings, problems = resolve()
    if problems:
        raise SettingsError("\n".join(str(problem) for problem in problems))
    return settings


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _unknown(key: str, source: Source, known: Iterable[str]) -> Problem:
    section, _, last = key.rpartition(".")
    near = difflib.get_close_matches(last, list(known), n=1, cutoff=0.5)
    full = f"{section}.{near[0]}" if near and section else (near[0] if near else "")
    hint = f"Did you mean {full!r}?" if near else f"Known here: {', '.join(sorted(known))}."
    return Problem(key, source.name, f"there is no such setting. {hint}")


def parsed(text: str) -> dict[str, Any]:
    """TOML. Raises TOMLDecodeError, also where it is nested more deeply than Python can show."""
    try:
        values = tomllib.loads(text)
        repr(values)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python reads and writes no numbers of thousands of digits
        raise tomllib.TOMLDecodeError("a number in it is too long") from error
    return values


def _read_toml(file: Path, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        if stat.S_ISFIFO(file.stat().st_mode):  # reading it would wait, for ever perhaps
            text = "it is a pipe; name a file in COMPLETION_LS_CONFIG."
            problems.append(Problem("", str(file), text))
            return {}
        with file.open("rb") as stream:
            data = stream.read(MOST_OF_A_FILE + 1)  # a device may have no end
        if len(data) > MOST_OF_A_FILE:
            text = f"it is over {MOST_OF_A_FILE >> 20} MiB; name a file of settings in COMPLETION_LS_CONFIG."
            problems.append(Problem("", str(file), text))
            return {}
        # Some editors put a byte order mark in front.
        return parsed(data.decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(
            Problem("", str(file), f"the file cannot be read ({error}); make it readable.")
        )
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem("", str(file), f"the file is not TOML ({error}); mend it."))
    return {}


def _profile(name: str, named_in: Source, problems: list[Problem]) -> Source:
    if name not in profile_names():
        problems.append(Problem(PROFILE_KEY, named_in.name, _no_profile(name)))
        name = DEFAULT_PROFILE
    file = profiles_dir() / f"{name}.toml"
    values = dict(_read_toml(file, problems))
    if named_in.of_editor:
        for section in OF_THE_USER:
            values.pop(section, None)
    return Source(f"profile {file.name}", values, named_in.of_editor)


def _no_profile(name: str) -> str:
    near = difflib.get_close_matches(name, profile_names(), n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(profile_names())}."
    return f"there is no profile {_brief(name)}. {hint}"


def _wrong_fallback(name: str) -> str:
    """Why a profile cannot answer in the place of a server; empty where it can."""
    if not name:
        return ""
    if name not in profile_names():
        return _no_profile(name)
    own: list[Problem] = []
    profile = Source(name, _read_toml(profiles_dir() / f"{name}.toml", own))
    if lookup([profile], "engine", "kind") == "remote":
        return (
            f"the profile {name!r} needs a server itself; name one that computes here, such as "
            f"{DEFAULT_PROFILE!r}."
        )
    return str(own[0]) if own else ""


def _without_server(source: Source, problems: list[Problem]) -> Source:
    """A source without `engine.kind = "remote"`: it would ask a server that the user has not named."""
    if lookup([source], "engine", "kind") != "remote":
        return source
    text = f"it needs a server, and you have named none: {_where('remote.url')}."
    problems.append(Problem("engine.kind", source.name, text))
    engine = {key: value for key, value in source.values["engine"].items() if key != "kind"}
    return Source(source.name, {**source.values, "engine": engine}, source.of_editor)


def _where(key: str) -> str:
    """Where the user sets what an editor cannot."""
    variable = ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
    return f"set {key} in {paths.config_file()} or as {variable}"


def _user_file(problems: list[Problem]) -> Source:
    file = paths.config_file()
    if os.environ.get("COMPLETION_LS_CONFIG") and not is_there(file):
        problems.append(Problem("", "COMPLETION_LS_CONFIG", f"there is no file {file}."))
    return Source(str(file), _read_toml(file, problems))


def _environment(environment: Mapping[str, str], problems: list[Problem]) -> list[Source]:
    found = []
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, separator, key = name.lower().partition("__")
        if name.lower() == PROFILE_KEY:
            by_option = variable == PROFILE_VARIABLE and text == _given != ""
            found.append(Source(PROFILE_OPTION if by_option else variable, {PROFILE_KEY: text}))
        elif separator:
            # Written as in TOML where it is TOML (numbers, booleans, lists), plain text otherwise.
            try:
                value = parsed(f"value = {text}")["value"]
            except tomllib.TOMLDecodeError:
                value = text
            found.append(Source(variable, {section: {key: value}}))
        elif name not in NO_SETTINGS:
            hint = "A setting is written COMPLETION_LS_SECTION__KEY, with two underscores between."
            problems.append(Problem("", variable, f"there is no such variable. {hint}"))
    return found


def _editor(name: str, value: object, problems: list[Problem]) -> Source:
    """The client's settings, plain or under our own name; null and unset values count as absent."""
    if isinstance(value, Mapping):
        for wrapper in ("completion-ls", "completionLs", "completion_ls"):
            if set(value) == {wrapper} and isinstance(value[wrapper], Mapping | None):
                value = value[wrapper] or {}
                break
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        problems.append(Problem("", name, "it must be an object of settings; it is ignored."))
        value = {}
    values = {key: item for key, item in value.items() if item is not None}
    for section in OF_THE_USER:
        for key in _keys(section, values.pop(section, None)):
            text = (
                "it says where your code is sent, so it is not taken from an editor, which may have it "
                f"from a project; {_where(key)}."
            )
            problems.append(Problem(key, name, text))
    return Source(name, values, of_editor=True)


def _keys(section: str, values: object) -> list[str]:
    """What is set of a section, whatever an editor sends for it."""
    if isinstance(values, Mapping):
        return [f"{section}.{key}" for key, value in values.items() if value is not None]
    return [] if values is None else [section]
