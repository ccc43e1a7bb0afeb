"""Looks around in the workspace for a place in a document. For one thread, which may take its time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from completion_ls.context.choice import Choice, choose
from completion_ls.context.chunks import Chunk, chunks_of
from completion_ls.context.imports import Import, imported_files, imports_of, is_door
from completion_ls.context.languages import family, language_of
from completion_ls.context.permitted import Permitted, Place, is_code, read_text
from completion_ls.context.ranking import Source, rank
from completion_ls.context.scope import scope_of
from completion_ls.context.surroundings import NOTHING, Opened, Query, Surroundings

MOST_FILES = 48
"""Files that are looked at for one place."""
MOST_TEXT = 1_000_000
"""Characters of them together."""
MOST_KEPT = 200
"""Files whose chunks are remembered."""
MOST_CHARACTERS = 200_000
"""Of what is chosen, so that every message fits a frame."""


@dataclass(frozen=True, slots=True)
class _Read:
    size: int
    """In characters."""
    language: str
    chunks: list[Chunk]
    imports: list[Import]


class Library:
    """The files of one workspace, as far as they may be read."""

    def __init__(self, folders: Sequence[Path], exclude: Sequence[str]) -> None:
        """Raises BadPattern where a pattern of `exclude` cannot be read."""
        self._permitted = Permitted(folders, exclude)
        self._known: OrderedDict[Path, tuple[object, _Read | None]] = OrderedDict()

    def look(self, query: Query, held: Surroundings) -> Surroundings:
        """The chunks of other files for a place; `held` are those that are there already."""
        here = self._permitted.place(query.file)
        if here is None:
            return NOTHING
        imports = imports_of(query.language, query.text)
        scope = scope_of(query.language, query.text, query.line, imports)
        sources = self._sources(query, here, imports)
        texts = {source.place for source in sources}
        still = tuple(one for one in held.choice if one.place in texts)
        ranked = rank(query.language, scope, sources)
        choice = choose(ranked, min(query.budget, MOST_CHARACTERS), still)
        if choice == held.choice:
            return held
        return self._surroundings(here, choice)

    def permits(self, held: Surroundings) -> bool:
        """Whether all files of what was chosen may still be read."""
        places = {one.place for one in held.choice}
        return all(self._permitted.allows(self._permitted.path(place)) for place in places)

    def _sources(self, query: Query, here: Place, imports: list[Import]) -> list[Source]:
        """The files to look at: documents first, then what is imported, and what that hands on."""
        found: dict[Place, Source] = {}
        left = MOST_TEXT
        folder = self._permitted.folder(here)
        imported = self._imported(query.language, imports, self._permitted.path(here), folder)
        marked = {self._permitted.place(file) for file in imported}
        listed = [*query.others, *(Opened(file, "", None) for file in imported)]
        for age, opened in enumerate(listed):
            if len(found) >= MOST_FILES or left <= 0:
                break
            place = self._permitted.place(opened.file)
            if place is None or place == here or place in found:
                continue
            read = self._read(opened)
            if read is None:
                continue
            left -= read.size
            found[place] = Source(place, read.language, read.chunks, place in marked, age)
        return list(found.values())

    def _imported(
        self, language: str, imports: list[Import], file: Path, folder: Path
    ) -> list[Path]:
        direct = imported_files(language, imports, file, folder)
        found = dict.fromkeys(direct)
        for door in filter(is_door, direct):
            read = self._read(Opened(door, "", None))
            if read and family(read.language) == family(language):
                wanted = {name for one in imports for name in one.names}
                handed = [one for one in read.imports if one.names & wanted]
                found |= dict.fromkeys(imported_files(language, handed, door, folder))
        return list(found)

    def _read(self, opened: Opened) -> _Read | None:
        """The chunks of a file, if it may be read."""
        real = self._permitted.allowed(opened.file)
        if real is None:
            return None
        stamp: object = opened.text
        if opened.text is None:
            try:
                now = opened.file.stat()
            except OSError:
                return None
            stamp = now.st_mtime_ns, now.st_size, now.st_ino
        known = self._known.get(opened.file)
        if known is None or known[0] != stamp:
            known = self._known[opened.file] = stamp, _read(opened, real)
        self._known.move_to_end(opened.file)
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return known[1]

    def _surroundings(self, here: Place, choice: Choice) -> Surroundings:
        texts: dict[Place, list[str]] = {}
        behind: dict[Place, int] = {}
        for one in choice:
            parts = texts.setdefault(one.place, [])
            if parts and behind[one.place] != one.chunk.line:
                parts[-1] = parts[-1].rstrip("\n") + "\n\n"
            parts.append(one.chunk.text)
            behind[one.place] = one.chunk.line + one.chunk.text.count("\n")
        files = tuple(
            (self._name(place, here), "".join(parts).strip("\n") + "\n")
            for place, parts in texts.items()
        )
        repository = self._permitted.folder(here).name
        return Surroundings(repository, here.path, files, choice) if choice else NOTHING

    def _name(self, place: Place, here: Place) -> str:
        """The path of a file, as it is told the model."""
        if place.folder == here.folder:
            return place.path
        return f"{self._permitted.folder(place).name}/{place.path}"


def _read(opened: Opened, real: Path) -> _Read | None:
    text = opened.text
    if text is None:
        text = read_text(real)
    if text is None or not is_code(text):
        return None
    language = opened.language or language_of(opened.file)
    return _Read(len(text), language, chunks_of(language, text), imports_of(language, text))
