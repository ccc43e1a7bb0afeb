"""Changes the user's settings file: comments, order and all other settings stay as they are, and the file
is written whole or not at all. Imported by commands only, as a server never writes it."""

from __future__ import annotations

import codecs
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from completion_ls.config.sources import parsed

Changes = Mapping[str, Any]
"""Values by `section.key`."""


class UserFileError(Exception):
    """The settings file cannot be read or changed; the text is a sentence."""


def read(file: Path) -> str:
    """The text, without a byte order mark; empty where there is no file. Raises UserFileError."""
    try:
        if file.exists() and not file.is_file():
            raise UserFileError(
                f"{file} is a folder, a device or a pipe; name a file in COMPLETION_LS_CONFIG."
            )
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise UserFileError(f"{file} is not UTF-8 text ({error}); it was left as it is.") from error
    except OSError as error:
        raise _unusable(file, error) from error


def values(text: str, file: Path) -> dict[str, Any]:
    """What the text of `file` holds. Raises UserFileError."""
    try:
        found = parsed(text)
        tomlkit.parse(text)
    except (tomllib.TOMLDecodeError, TOMLKitError, RecursionError) as error:
        raise UserFileError(
            f"{file} is not TOML ({error}); it was left as it is. Mend it, then try again."
        ) from error
    return found


def with_settings(text: str, changes: Changes, file: Path) -> str:
    """The text of `file` with these values, all else as it was. Raises UserFileError."""
    before = values(text, file)
    document = tomlkit.parse(text)
    wanted = {name: dict(table) for name, table in before.items() if isinstance(table, dict)}
    try:
        for setting, value in changes.items():
            section, _, key = setting.partition(".")
            wanted.setdefault(section, {})[key] = value
            if section not in document:
                document[section] = tomlkit.table()
            document[section][key] = value
        new = tomlkit.dumps(document)
        if "\r\n" in text:
            new = re.sub(r"(?<!\r)\n", "\r\n", new)
        after = tomllib.loads(new)
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, KeyError, IndexError) as error:
        raise _cannot_change(file, changes) from error
    # By their texts, as a number that is none is not even equal to itself.
    if repr(_sorted(after)) != repr(_sorted(before | wanted)):
        raise _cannot_change(file, changes)
    return new


def as_toml(changes: Changes) -> str:
    """The lines that a settings file has for these values."""
    return with_settings("", changes, Path()).strip()


def replace(file: Path, text: str) -> None:
    """Write the file; a link stays a link, a byte order mark and the rights stay. Raises UserFileError."""
    try:
        _replace(file, text)
    except OSError as error:
        raise _unusable(file, error) from error


def _replace(file: Path, text: str) -> None:
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    is_there = file.exists()
    mark = is_there and file.read_bytes().startswith(codecs.BOM_UTF8)
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        new.touch(0o600 if is_there else 0o666, exist_ok=False)
        with new.open("wb") as stream:
            stream.write(text.encode("utf-8-sig" if mark else "utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        if is_there:
            shutil.copymode(file, new)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _sorted(found: object) -> object:
    if isinstance(found, dict):
        return {key: _sorted(found[key]) for key in sorted(found)}
    return [_sorted(one) for one in found] if isinstance(found, list) else found


def _unusable(file: Path, error: OSError) -> UserFileError:
    return UserFileError(
        f"{file} cannot be read or written ({error.strerror}); it was left as it is. Make it and its "
        "folder writable, or name another file in COMPLETION_LS_CONFIG."
    )


def _cannot_change(file: Path, changes: Changes) -> UserFileError:
    return UserFileError(
        f"{file} cannot be changed without changing other settings in it; it was left as it is. Set "
        f"{', '.join(changes)} yourself."
    )
