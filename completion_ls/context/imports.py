"""What a file imports from the workspace: the files, found by their paths, as well as that goes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from completion_ls.config.there import is_file, is_folder
from completion_ls.context import queries, trees
from completion_ls.context.languages import family
from completion_ls.context.permitted import read_text
from completion_ls.context.words import names
from completion_ls.syntax.languages import LANGUAGES

MOST_OF_FOLDER = 12
"""Files of one package, where a package is a folder."""
MOST_GROUPS = 20
"""Braces within braces in a `use`."""
_SCRIPTS = (".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", ".mts", ".cts")
_MADE = (".js", ".jsx", ".mjs", ".cjs")
"""Endings of what is made of TypeScript, which wants a module to be named so."""
_INDEX = tuple(f"index{ending}" for ending in _SCRIPTS)
_QUOTES = "\"'`"


@dataclass(frozen=True, slots=True)
class Import:
    """A statement: what it names as its module, and the names in it."""

    module: str
    names: frozenset[str]


def imports_of(language: str, text: str) -> list[Import]:
    """The imports of a text, in their order."""
    if language not in LANGUAGES:
        return []
    found: dict[Import, None] = {}
    for match in trees.matches(queries.imports(language), trees.parse(language, text).root_node):
        [statement], [module, *_] = match["import"], match["module"]
        named = trees.text_of(module)
        rest = trees.text_of(statement).replace(named, " ", 1) if "\n" not in named else named
        own = names(rest) | names(named.rpartition(".")[2].rpartition("::")[2])
        found[Import(named.strip(_QUOTES), frozenset(own))] = None
    return list(found)


def imported_files(language: str, imports: list[Import], file: Path, folder: Path) -> list[Path]:
    """Files in `folder`, a folder of the workspace, that `file` in it imports or that are of its
    package: those that are there, each once."""
    find = {
        "cpp": _included,
        "go": _go_package,
        "java": _java_classes,
        "python": _python_modules,
        "rust": _rust_modules,
        "typescript": _scripts,
    }.get(family(language))
    found: dict[Path, None] = {}
    for path in find(imports, file, folder) if find else ():
        if path != file and path not in found and is_file(path):
            found[path] = None
    return list(found)


def is_door(file: Path) -> bool:
    """Whether a file is one of those that hand on what others define."""
    return file.name in ("__init__.py", "mod.rs", "lib.rs") or file.name in _INDEX


def _python_modules(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    above = [one for one in file.parents if one == folder or folder in one.parents]
    roots = [folder / "src", *reversed(above)]
    for one in imports:
        rest = one.module.lstrip(".")
        dots = len(one.module) - len(rest)
        parts = [part for part in rest.split(".") if part]
        for root in above[dots - 1 : dots] if dots else roots:
            module = root.joinpath(*parts)
            inner = [module / name for name in sorted(one.names)] if is_folder(module) else []
            for path in (module, *inner):
                yield _ending(path, ".py")
                yield path / "__init__.py"


def _scripts(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    for one in imports:
        if not one.module.startswith("."):
            continue
        path = _plain(file.parent / one.module)
        yield path
        for ending in _SCRIPTS:
            yield _ending(path, ending)
        if path.suffix in _MADE:
            yield path.with_suffix(path.suffix.replace("j", "t"))
            yield path.with_suffix(".ts")
            yield path.with_suffix(".tsx")
        for index in _INDEX:
            yield path / index


def _rust_modules(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    own = file.parent if file.stem in ("mod", "lib", "main") else file.parent / file.stem
    crate = next(
        (
            one
            for one in file.parents
            if folder in (one, *one.parents)
            and any(is_file(one / name) for name in ("lib.rs", "main.rs"))
        ),
        None,
    )
    for one in imports:
        for parts in _rust_paths(one.module):
            if parts[:1] == ["crate"]:
                start = crate
            elif parts[:1] == ["super"]:
                start = own.parent
            else:
                start = own
            rest = [part for part in parts if part not in ("crate", "self", "super")]
            for _ in range(max(0, parts.count("super") - 1)):
                start = start and start.parent
            yield from _rust_files(start, rest) if start else ()


def _rust_files(start: Path, parts: list[str]) -> Iterator[Path]:
    """The deepest module that a path names; behind it are names in the module."""
    deepest: Path | None = None
    if is_folder(start):
        owner = [start / "lib.rs", start / "main.rs", start / "mod.rs", _ending(start, ".rs")]
        deepest = next(filter(is_file, owner), None)
    for part in parts:
        start /= part
        inner = next(filter(is_file, (_ending(start, ".rs"), start / "mod.rs")), None)
        if inner is None:
            break
        deepest = inner
    if deepest:
        yield deepest


def _rust_paths(text: str, depth: int = 0) -> list[list[str]]:
    """The paths of a `use`: `a::{b, c::D}` are a::b and a::c::D."""
    text = re.sub(r"\s+as\s+\w+", "", text)
    head, brace, group = text.partition("{")
    before = [part.strip() for part in head.split("::") if part.strip()]
    if not brace or depth >= MOST_GROUPS:
        return [before]
    found, inside, start = [], 0, 0
    group = group.rstrip().removesuffix("}") + ","
    for at, character in enumerate(group):
        inside += (character == "{") - (character == "}")
        if character == "," and not inside:
            if group[start:at].strip():
                found += [before + rest for rest in _rust_paths(group[start:at], depth + 1)]
            start = at + 1
    return found or [before]


def _go_package(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    yield from _of_folder(file.parent, ".go")
    roots = (one for one in file.parents if folder in (one, *one.parents))
    root = next((one for one in roots if is_file(one / "go.mod")), None)
    if root is None:
        return
    # It may be a link, which is not followed when it is read.
    real = Path(os.path.realpath(root / "go.mod"))
    text = (folder in real.parents and read_text(real)) or ""
    module = re.search(r"^\s*module\s+\"?([^\s\"]+)", text, re.MULTILINE)
    for one in imports if module else ():
        assert module
        if one.module == module[1] or one.module.startswith(module[1] + "/"):
            yield from _of_folder(root / one.module[len(module[1]) + 1 :], ".go")


def _included(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    above = [one for one in file.parents if one == folder or folder in one.parents]
    for one in imports:
        for root in (file.parent, *above[1:], *(top / "include" for top in above), folder / "src"):
            path = _plain(root / one.module)
            if is_file(path):
                yield path
                break
    for ending in (".h", ".hpp", ".hh"):
        yield file.with_suffix(ending)


def _java_classes(imports: list[Import], file: Path, folder: Path) -> Iterator[Path]:
    above = [one for one in file.parents if one == folder or folder in one.parents]
    roots = [*above, folder / "src" / "main" / "java", folder / "src"]
    for one in imports:
        *package, name = one.module.split(".")
        for root in roots:
            inside = root.joinpath(*package)
            yield inside / f"{name}.java"
            yield _ending(inside, ".java")  # a static import, or an inner class
            yield from _of_folder(inside / name, ".java")  # a.b.*
    yield from _of_folder(file.parent, ".java")


def _of_folder(folder: Path, ending: str) -> Iterator[Path]:
    try:
        files = sorted(one for one in islice(folder.iterdir(), 1000) if one.suffix == ending)
    except (OSError, ValueError):
        return
    yield from [one for one in files if not one.stem.endswith("_test")][:MOST_OF_FOLDER]


def _plain(path: Path) -> Path:
    """A path without `.` and `..`."""
    return Path(os.path.normpath(path))


def _ending(path: Path, ending: str) -> Path:
    """The file beside a folder that is named like it. (`with_name` raises for some paths.)"""
    return path.parent / (path.name + ending)
