"""Infilling: the model writes a line that was taken out of a function, or the rest of one.

A file of problems has one JSON object a line, perhaps gzipped, in the shape of HumanEval's single-line
infilling: `task_id`, `prompt` (the text above), `canonical_solution` (the line), `suffix` (the text
below), `test` and `entry_point`. The engine is loaded as the daemon loads it, into this process, and is
asked greedily with the prompt that the daemon would build; what is offered is what the front would make
of the text. What was written is put in the line's place and run with the problem's tests.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from completion_ls.bench import sandbox
from completion_ls.bench.infill_figures import Kind, Result, edit_similarity
from completion_ls.config.settings import Lines, Settings
from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.daemon.load import Loaded
from completion_ls.daemon.pieces import Piece, pieces
from completion_ls.daemon.ways import Way
from completion_ls.daemon.weighing import weigh
from completion_ls.engines.contract import Finish, Job
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.prompt.build import Prompt, PromptBuilder
from completion_ls.wire.messages import Complete

FIELDS = ("task_id", "prompt", "canonical_solution", "suffix", "test", "entry_point")
WINDOW = 1 << 20
"""Characters of a document that are seen on each side: all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A line (without its end), the text around it, and the program that tells whether it is right."""

    id: str
    above: str
    line: str
    below: str
    """Begins with the line's end."""
    tests: str

    @property
    def function(self) -> str:
        """The function that the line was taken from: other problems have its other lines."""
        return self.id.rpartition("/")[0] or self.id

    def program(self, line: str, below: str | None = None) -> str:
        """The function with this in the line's place, and its tests."""
        return self.above + line + (self.below if below is None else below) + self.tests


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor behind the first `column` characters of a problem's line."""

    column: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to ask, and to take the answer."""

    name: str
    suffix: bool = True
    """Whether the model is given the text below."""
    covering: bool = True
    """Whether the unfinished word is covered; else its tokens are the tokenizer's and the model goes on
    behind them."""
    lines: Lines | None = "auto"
    """What the front offers with this setting of `completion.lines`; None is the first line of the raw
    text instead."""
    best_by: Callable[[Way], float] = lambda way: 0.0
    """Of the lines that the daemon weighs where somebody asks by hand: the one that has most of this."""


PREFIX = Arm("prefix only", suffix=False, lines=None)
SUFFIX = Arm("suffix", lines=None)
RULES = Arm("rules")
RULES_LINE = Arm("rules, one line", lines="single")
SUFFIX_UNCOVERED = Arm("suffix, no cover", covering=False, lines=None)
RULES_UNCOVERED = Arm("rules, no cover", covering=False)
LIKELIEST = Arm("likeliest", lines=None, best_by=lambda way: way.logprob)
WEIGHED = Arm("weighed", lines=None, best_by=lambda way: way.weight)
WRITTEN = (PREFIX, SUFFIX, RULES, RULES_LINE, SUFFIX_UNCOVERED, RULES_UNCOVERED)
CHOSEN = (LIKELIEST, WEIGHED)
ARMS = (*WRITTEN, *CHOSEN)
PAIRS = (
    ("suffix", SUFFIX, PREFIX),
    ("rules", RULES, SUFFIX),
    ("rules, one line", RULES_LINE, SUFFIX),
    ("covering", SUFFIX, SUFFIX_UNCOVERED),
    ("covering, rules", RULES, RULES_UNCOVERED),
    ("suffix, weighed", WEIGHED, PREFIX),
    ("weighed", WEIGHED, SUFFIX),
    ("text below alone", WEIGHED, LIKELIEST),
)
"""What is compared: its name, the arm that has it, and the one that lacks it."""


@dataclass(slots=True)
class Measured:
    """All results, and how many problems' own lines passed their tests: all, where the sandbox and its
    limits are no hindrance."""

    results: list[Result] = field(default_factory=list)
    problems: int = 0
    own_lines_passed: int = 0


def read_problems(file: Path) -> list[Problem]:
    """All problems of a file. Raises OSError, and ValueError (a sentence) where it is none."""
    data = file.read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        # Only at LF: a string in JSON may hold the other characters that end lines.
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        problems = [_problem(row) for row in rows]
    except (ValueError, TypeError, KeyError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{file} is no file of infilling problems: it needs one JSON object a line with the texts "
            f"{', '.join(FIELDS)} ({error})."
        ) from error
    if not problems:
        raise ValueError(f"{file} has no problems.")
    return problems


def sample(problems: Sequence[Problem], count: int | None, seed: int) -> list[Problem]:
    """So many problems, drawn by the seed, in the file's order; all where the file has no more."""
    if count is None or count >= len(problems):
        return list(problems)
    chosen = random.Random(seed).sample(range(len(problems)), count)
    return [problems[number] for number in sorted(chosen)]


def places(problem: Problem, cuts: int, seed: int) -> list[Place]:
    """The start of the line, and up to `cuts` places between two characters of its text. They are the
    same whichever other problems there are."""
    line = problem.line
    first = len(line) - len(line.lstrip())
    within = range(first + 1, len(line.rstrip()))
    columns = random.Random(f"{seed} {problem.id}").sample(within, min(cuts, len(within)))
    found = [Place(0, Kind.START)]
    for column in sorted(columns):
        in_word = all(one.isalnum() or one == "_" for one in line[column - 1 : column + 1])
        found.append(Place(column, Kind.WORD if in_word else Kind.LINE))
    return found


def uncovered(prompt: Prompt, prompts: PromptBuilder) -> Prompt:
    """The same text with the last word in the tokenizer's own tokens, and nothing that says that it may
    go on."""
    if prompt.unfinished is None:
        return prompt
    return Prompt((*prompt.before, *prompts.section(prompt.typed)), None)


@dataclass(slots=True)
class Writer:
    """Asks the engine of a loaded model, with the settings of the product, but greedily."""

    loaded: Loaded
    settings: Settings
    was_cut: bool = False
    """Whether the last text was ended by the limit of tokens."""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def prompt(self, arm: Arm, before: str, after: str) -> Prompt:
        """What the daemon would give to the engine."""
        wanted = self.settings.prompt
        prompts = self.loaded.prompts
        room = self.loaded.engine.max_context - self.settings.completion.max_tokens
        prompt = prompts.build(
            before,
            after if arm.suffix else "",
            context="",
            budget=min(wanted.max_tokens, room),
            suffix_share=wanted.suffix_share,
        )
        return prompt if arm.covering else uncovered(prompt, prompts)

    def ways(self, before: str, after: str) -> list[tuple[Way, str]]:
        """The lines that the daemon weighs, and their texts."""
        wanted, completion = self.settings.prompt, self.settings.completion
        loaded, engine = self.loaded, self.loaded.engine
        request = Complete(
            id=0,
            document="",
            prefix=before,
            suffix=after,
            prompt_tokens=wanted.max_tokens,
            suffix_share=wanted.suffix_share,
            max_tokens=completion.max_tokens,
        )
        budget = min(wanted.max_tokens, engine.max_context - completion.max_tokens)
        weighing = weigh(loaded.prompts, loaded.tokenizer, request, budget, self._ids.__next__)
        if weighing is None:
            return []
        engine.add(weighing.job)
        while True:
            for event in engine.step():
                if (found := weighing.advance(engine, event)) is not None:
                    return [(way, weighing.search.text(way)) for way in found]

    def pieces(self, prompt: Prompt) -> Generator[Piece, None, None]:
        """The model's text as it comes, without the unfinished word. Closing ends the job."""
        engine = self.loaded.engine
        text = Detokenizer(self.loaded.tokenizer, prompt.before, len(prompt.typed))
        job = Job(
            next(self._ids),
            prompt.ids,
            self.settings.completion.max_tokens,
            self.loaded.prompts.stop_token_ids,
            unfinished=prompt.unfinished,
        )
        engine.add(job)
        self.was_cut = False
        try:
            while True:
                for event in engine.step():
                    if event.job_id != job.id:
                        continue
                    self.was_cut = event.finish is Finish.LENGTH
                    yield from pieces(event, text)
                    if event.finish is not None:
                        return
        finally:
            engine.cancel(job.id)


def first_line(raw: str) -> str:
    """The raw text up to its first line end."""
    return raw.partition("\n")[0].rstrip()


def answers(writer: Writer, problem: Problem, place: Place) -> dict[Arm, tuple[Shown, bool]]:
    """What each arm writes at a place, and whether the text below has a part in its prompt."""
    before, after = problem.above + problem.line[: place.column], problem.below
    prompts = {arm: writer.prompt(arm, before, after) for arm in WRITTEN}
    written = {}
    for prompt in dict.fromkeys(prompts.values()):
        wanted = {arm.lines for arm in WRITTEN if prompts[arm] == prompt}
        written[prompt] = _written(writer, prompt, before, after, wanted)
    found = {}
    for arm, prompt in prompts.items():
        bare = writer.prompt(replace(arm, suffix=False), before, after)
        found[arm] = written[prompt][arm.lines], prompt != bare
    lines = writer.ways(before, after)
    for arm in CHOSEN:
        # Without anything to weigh the daemon writes as it does else.
        ranked = sorted(lines, key=lambda line: arm.best_by(line[0]), reverse=True)
        found[arm] = (Shown(ranked[0][1], 0), arm.suffix) if ranked else found[SUFFIX]
    return found


def place_between(
    before: str, after: str, uri: str, limit: int, *, language: str = ""
) -> Situation:
    """The cursor between two texts, which are all of a document; at most `limit` characters of each are
    seen."""
    line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    return Situation(uri, line, column, before[-limit:], after[:limit], limit, language=language)


def measure(
    writer: Writer,
    problems: Sequence[Problem],
    cuts: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Every arm at every place of every problem."""
    measured = Measured()
    for number, problem in enumerate(problems, 1):
        known: dict[str, bool] = {}

        def passes(program: str, known: dict[str, bool] = known) -> bool:
            if program not in known:
                known[program] = sandbox.run(program) is sandbox.Outcome.PASSED
            return known[program]

        measured.problems += 1
        measured.own_lines_passed += passes(problem.program(problem.line))
        for place in places(problem, cuts, seed):
            typed, wanted = problem.line[: place.column], problem.line[place.column :].rstrip()
            for arm, (shown, below) in answers(writer, problem, place).items():
                program = problem.program(typed + shown.text, problem.below[shown.replace_after :])
                measured.results.append(
                    Result(
                        problem.function,
                        f"{problem.id}:{place.column}",
                        place.kind,
                        arm.name,
                        shown.text,
                        shown.text == wanted,
                        edit_similarity(shown.text, wanted),
                        passes(program),
                        below,
                    )
                )
        progress(number)
    return measured


def _written(
    writer: Writer, prompt: Prompt, before: str, after: str, wanted: Collection[Lines | None]
) -> dict[Lines | None, Shown]:
    """What comes of one text of the model with these settings of `completion.lines`."""
    start = place_between(before, after, "file:///infill.py", WINDOW, language="python")
    own = writer.settings.completion
    suggestions = {
        lines: Suggestion.at(start, own.model_copy(update={"lines": lines}))
        for lines in wanted
        if lines
    }
    raw = ""
    with closing(writer.pieces(prompt)) as written:
        for piece in written:
            raw += piece.text
            for suggestion in suggestions.values():
                if not suggestion.finished:
                    suggestion.add(piece.text)
            if "\n" in raw and all(one.finished for one in suggestions.values()):
                break
    found: dict[Lines | None, Shown] = {None: Shown(first_line(raw), 0)}
    for lines, suggestion in suggestions.items():
        suggestion.cut = writer.was_cut and not suggestion.finished
        suggestion.finished = True
        found[lines] = suggestion.shown_at(start) or Shown("", 0)
    return found


def _problem(row: dict[str, Any]) -> Problem:
    id, above, canonical, below, test, name = (row[name] for name in FIELDS)
    for text in (id, above, canonical, below, test, name):
        if not isinstance(text, str):
            raise ValueError(f"{id} has something else than text")
    line = canonical.rstrip("\n")
    if not line.strip() or "\n" in line:
        raise ValueError(f"the canonical solution of {id} is not one line")
    return Problem(id, above, line, canonical[len(line) :] + below, f"\n{test}\n\ncheck({name})\n")
