"""Prompts of the user's own kind: places in the files of a folder, and what the daemon would ask there.

What stands at the place is taken out, as if it were still to be written: the rest of a line, or the lines
up to the next blank one. A suggestion is measured with as many tokens as that has: a model that is
made to go on behind the end of what it has to say repeats itself, and drafts would seem to be better
than they are.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

import completion_ls
from completion_ls.config.settings import Settings
from completion_ls.context.permitted import Permitted, read_text
from completion_ls.daemon.load import end_of_text_ids
from completion_ls.prompt.build import PromptBuilder

FEWEST_TOKENS = 8
"""Of a suggestion: the time of fewer says little."""
MOST_FILES = 2000
"""So many files are looked at, ..."""
USED_FILES = 64
"""... and of so many, drawn among them, places are chosen."""
MOST_TRIES = 50
"""Places that are looked at for each that is wanted."""
LONGEST_LINE = 400
"""Characters; longer lines are mostly made by a program."""
FEWEST_LINES = 8
NOT_CODE = frozenset(
    (
        *(".adoc", ".bib", ".cfg", ".conf", ".csv", ".diff", ".geojson", ".html", ".ini"),
        *(".ipynb", ".json", ".json5", ".jsonl", ".lock", ".log", ".map", ".md", ".mdx"),
        *(".org", ".patch", ".po", ".pot", ".properties", ".rst", ".rtf", ".sum", ".svg"),
        *(".tex", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml"),
    )
)
"""Endings of texts that are prose, data or settings."""


@dataclass(frozen=True, slots=True)
class TunePrompt:
    """Token ids, and how many tokens of a suggestion are measured behind them."""

    ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: the text above, it itself, and the text below."""

    before: str
    written: str
    after: str


def prompts(
    folder: Path, model: Path, settings: Settings, *, count: int, most: int, seed: int = 0
) -> tuple[list[TunePrompt], bool]:
    """So many, of at most `most` tokens each, for the model in `model`; and whether they are from `folder`,
    which has perhaps no code: then they are from this package. The same for the same files and seed.
    Raises BadPattern where `context.exclude` cannot be read."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    builder = PromptBuilder(tokenizer, settings.model.format, end_of_text_ids(model))
    limit = settings.completion.max_tokens
    draw = random.Random(seed)

    def made(texts: Sequence[str]) -> list[TunePrompt]:
        found = []
        for place in islice(places(texts, draw), count):
            prompt = builder.build(
                place.before,
                place.after,
                context="",
                budget=most,
                suffix_share=settings.prompt.suffix_share,
            )
            written = len(tokenizer.encode(place.written, add_special_tokens=False).ids)
            tokens = max(2, min(limit, max(FEWEST_TOKENS, written)))
            found.append(TunePrompt(prompt.ids, tokens))
        return found

    own = made(texts_of(folder, settings.context.exclude, draw))
    if len(own) == count:
        return own, True
    package = Path(completion_ls.__file__).parent
    return made(_read(sorted(package.rglob("*.py")), draw)), False


def texts_of(folder: Path, exclude: Sequence[str], draw: random.Random) -> list[str]:
    """Texts of files of code below a folder that may be read. Raises BadPattern."""
    top = folder.resolve()
    return _read(list(islice(_files(top, Permitted([top], exclude)), MOST_FILES)), draw)


def places(texts: Sequence[str], draw: random.Random) -> Iterator[Place]:
    """Places in these texts, in lines and behind lines in turns, until none is found any more."""
    seen = set()
    number = tries = 0
    while texts and tries < MOST_TRIES:
        text = texts[draw.randrange(len(texts))]
        place = (_behind_a_line if number % 2 else _in_a_line)(text, draw)
        tries += 1
        if place and (key := (text, len(place.before))) not in seen:
            seen.add(key)
            yield place
            number, tries = number + 1, 0


def _in_a_line(text: str, draw: random.Random) -> Place | None:
    """A place at the beginning of a word within a line, and the rest of that line."""
    lines = text.split("\n")
    number = draw.randrange(len(lines))
    line = lines[number]
    starts = [word.start() for word in re.finditer(r"\b\w", line.rstrip()) if word.start() > 0]
    starts = [start for start in starts if line[:start].strip()]
    if not starts:
        return None
    column = draw.choice(starts)
    above = "\n".join([*lines[:number], line[:column]])
    return Place(above, line[column:], "\n" + "\n".join(lines[number + 1 :]))


def _behind_a_line(text: str, draw: random.Random) -> Place | None:
    """A place at the beginning of a line, behind its indentation, and the lines up to a blank one."""
    lines = text.split("\n")
    number = draw.randrange(1, len(lines)) if len(lines) > 1 else 0
    if not number or not lines[number - 1].strip() or not lines[number].strip():
        return None
    end = next((n for n in range(number, len(lines)) if not lines[n].strip()), len(lines))
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    written = "\n".join(lines[number:end]).removeprefix(indent)
    return Place("\n".join([*lines[:number], indent]), written, "\n" + "\n".join(lines[end:]))


def _files(folder: Path, permitted: Permitted) -> Iterator[Path]:
    """Files of code that may be read, always in the same order; links to folders are not followed."""
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(name for name in folders if permitted.enters(here / name))
        for name in sorted(names):
            suffix = Path(name).suffix.lower()
            if suffix and suffix not in NOT_CODE and permitted.allows(here / name):
                yield here / name


def _read(files: Sequence[Path], draw: random.Random) -> list[str]:
    """Texts of some of the files."""
    found: list[str] = []
    for file in draw.sample(files, len(files)):
        text = read_text(file)
        if text is None:
            continue
        lines = text.split("\n")
        if len(lines) >= FEWEST_LINES and max(map(len, lines)) <= LONGEST_LINE:
            found.append(text)
        if len(found) == USED_FILES:
            break
    return found
