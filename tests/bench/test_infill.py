"""Infilling: problems, places, what the arms write, and the command on the real model."""

from __future__ import annotations

import gzip
import json
import queue
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.bench import infill
from completion_ls.bench.infill import (
    ARMS,
    LIKELIEST,
    PREFIX,
    RULES,
    RULES_LINE,
    RULES_UNCOVERED,
    SUFFIX,
    SUFFIX_UNCOVERED,
    WEIGHED,
    Problem,
    Writer,
    measure,
    places,
    read_problems,
    sample,
    uncovered,
)
from completion_ls.bench.infill_figures import Kind
from completion_ls.cli.main import main
from completion_ls.config.settings import Settings
from completion_ls.daemon.load import Loaded, load
from completion_ls.daemon.pieces import Piece
from completion_ls.daemon.ways import Way
from completion_ls.daemon.worker import Outgoing, Worker
from completion_ls.prompt.build import Prompt, PromptBuilder
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Chunk, Complete, Done
from support.tiny_model import write_tiny_model

ABOVE = "def total(values):\n    found = 0\n    for value in values:\n"
BELOW = "    return found\n"
TEST = "def check(candidate):\n    assert candidate([1, 2]) == 3\n"


def row(
    id: str = "Made/0/L2", line: str = "        found += value\n", **more: str
) -> dict[str, str]:
    return {
        "task_id": id,
        "entry_point": "total",
        "prompt": ABOVE,
        "suffix": BELOW,
        "canonical_solution": line,
        "test": TEST,
    } | more


def write(file: Path, *rows: dict[str, str]) -> Path:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return read_problems(write(tmp_path / "a.jsonl", row()))[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_file_is_read_packed_or_not(name: str, tmp_path: Path) -> None:
    separator = row("Made/0/L3", prompt=ABOVE + "# a\u2028b\x85\n")
    one, two = read_problems(write(tmp_path / name, row(), separator))
    assert (one.id, one.function, one.line) == ("Made/0/L2", "Made/0", "        found += value")
    assert one.above + one.line + one.below == ABOVE + "        found += value\n" + BELOW
    assert two.above.endswith("# a\u2028b\x85\n")
    program = one.program(one.line)
    assert program.endswith("\n\ncheck(total)\n")
    compile(program, "", "exec")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "has no problems"),
        (b"\n\n", "has no problems"),
        (b"{", "is no file of infilling problems"),
        (b"[1]", "is no file of infilling problems"),
        (b"{}", "task_id"),
        (b"\x1f\x8b", "is no file of infilling problems"),
        (b"\x1f\x8b\x08\x00broken and more", "is no file of infilling problems"),
        (b"\xff\xfe", "is no file of infilling problems"),
        (json.dumps(row(line="a\nb\n")).encode(), "Made/0/L2 is not one line"),
        (json.dumps(row(line="\n")).encode(), "Made/0/L2 is not one line"),
        (json.dumps(row() | {"suffix": None}).encode(), "Made/0/L2 has something else than text"),
        (json.dumps(row() | {"prompt": 3}).encode(), "Made/0/L2 has something else than text"),
    ],
)
def test_what_is_no_file_of_problems_is_named(
    data: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    assert main(["bench", "infill", str(file)]) == 1
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "infill", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err


def test_a_sample_is_drawn_by_its_seed(problem: Problem) -> None:
    many = [Problem(str(n), "", "x", "", "") for n in range(50)]
    assert sample(many, None, 0) == sample(many, 50, 1) == sample(many, 99, 1) == many
    drawn = sample(many, 10, 3)
    assert drawn == sample(many, 10, 3) != sample(many, 10, 4)
    assert len(drawn) == 10 and drawn == sorted(drawn, key=many.index)


@given(st.text(" ab_(", min_size=1).filter(str.strip), st.integers(0, 9), st.integers(0, 3))
def test_places_are_within_the_line_and_of_their_kind(line: str, cuts: int, seed: int) -> None:
    problem = Problem("x", "", line, "\n", "")
    start, *found = places(problem, cuts, seed)
    assert (start.column, start.kind) == (0, Kind.START)
    assert len(found) == min(cuts, len(line.strip()) - 1)
    assert len({place.column for place in found}) == len(found)
    for place in found:
        assert line[: place.column].strip() and line[place.column :].strip()
        around = line[place.column - 1 : place.column + 1]
        assert (place.kind is Kind.WORD) is (not set(around) & set(" ("))
    assert [start, *found] == places(problem, cuts, seed)


class Scripted:
    """A writer that gives this text for prompts with the text below, that for prompts without it, and
    another where the word is not covered."""

    def __init__(self, suffix: str, bare: str, free: str) -> None:
        self.texts = {1: suffix, 2: bare, 3: free, 4: free}
        self.settings = Settings()
        self.was_cut = False
        self.asked = list[int]()
        self.read = 0

    def prompt(self, arm: infill.Arm, before: str, after: str) -> Prompt:
        return Prompt(((1 if arm.suffix else 2) + (0 if arm.covering else 2),), None)

    def pieces(self, prompt: Prompt) -> Generator[Piece, None, None]:
        self.asked.append(prompt.ids[0])
        for character in self.texts[prompt.ids[0]]:
            self.read += 1
            yield Piece(character, 0.0)

    def ways(self, before: str, after: str) -> list[tuple[Way, str]]:
        """One line that is likely, and one that suits the text below."""
        return [
            (Way((1,), (-1.0,), 0.0, -20.0), "likely"),
            (Way((2,), (-2.0,), 0.0, -10.0), "suitable"),
        ]


def test_each_arm_takes_its_own_of_a_text(problem: Problem) -> None:
    block = "        found += value\n        print(found)\n    return found\nmore\n"
    writer = Scripted("\n" + block, "        pass\n        x\n", "free\n" * 9)
    (start,) = places(problem, 0, 0)
    found = infill.answers(writer, problem, start)  # type: ignore[arg-type]
    texts = {arm: shown.text for arm, (shown, _) in found.items()}
    assert texts == {
        PREFIX: "        pass",
        SUFFIX: "",  # the model has left the line blank, and the front takes that away
        RULES: "        found += value\n        print(found)",
        RULES_LINE: "        found += value",
        SUFFIX_UNCOVERED: "free",
        RULES_UNCOVERED: texts[RULES_UNCOVERED],
        LIKELIEST: "likely",
        WEIGHED: "suitable",
    }
    assert list(found) == list(ARMS)
    assert sorted(writer.asked) == [1, 2, 3]  # once for arms that ask the same
    assert all(below for arm, (_, below) in found.items() if arm.suffix)
    assert not found[PREFIX][1]


def test_a_text_is_read_no_further_than_is_of_use(problem: Problem) -> None:
    writer = Scripted("alue\n" + "y\n" * 99, "x\n" + "y\n" * 99, "z\n" + "y\n" * 99)
    cut = infill.Place(len("        found += v"), Kind.WORD)
    infill.answers(writer, problem, cut)  # type: ignore[arg-type]
    assert writer.read == len("alue\nx\nz\n")


@pytest.mark.process
def test_what_was_written_is_compared_and_run(problem: Problem) -> None:
    lines = {"right": "        found += value\n", "same": "        found = found + value\n"}
    writer = Scripted(lines["right"], lines["same"], "        found -= value\n")
    done = list[int]()
    measured = measure(writer, [problem, problem], 0, 0, done.append)  # type: ignore[arg-type]
    assert done == [1, 2]
    assert (measured.problems, measured.own_lines_passed) == (2, 2)
    found = {result.arm: result for result in measured.results}
    assert len(measured.results) == 2 * len(found) == 2 * len(ARMS)
    right, same, wrong = (found[arm.name] for arm in (SUFFIX, PREFIX, SUFFIX_UNCOVERED))
    assert (right.exact, right.similarity, right.passed) == (True, 1.0, True)
    assert (same.exact, same.passed) == (False, True) and 0.5 < same.similarity < 1
    assert (wrong.exact, wrong.passed) == (False, False)
    assert {result.function for result in measured.results} == {"Made/0"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> DaemonConfig:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}}
    return DaemonConfig.of(Settings.model_validate(sections))


@pytest.fixture(scope="module")
def loaded(tiny: DaemonConfig) -> Iterator[Loaded]:
    found = load(tiny, lambda text, fraction: None)
    yield found
    found.engine.close()


def from_daemon(config: DaemonConfig, requests: list[Complete]) -> list[str]:
    """The texts that a daemon's worker gives."""
    published: queue.Queue[Any] = queue.Queue()
    worker = Worker(config, published.put)
    worker.start()
    texts = []
    for request in requests:
        worker.submit("peer", request)
        text = ""
        while True:
            match published.get(timeout=60):
                case Outgoing(message=Chunk() as chunk):
                    text += chunk.text
                case Outgoing(message=Done()):
                    break
        texts.append(text)
    worker.close()
    worker.join()
    return texts


def test_the_texts_are_those_of_the_daemon(tiny: DaemonConfig, loaded: Loaded) -> None:
    settings = Settings.model_validate({"completion": {"max_tokens": 12}})
    writer = Writer(loaded, settings)
    befores = [ABOVE + "        found += value"[:column] for column in range(23)]
    ours = []
    for before in befores:
        pieces = writer.pieces(writer.prompt(RULES, before, "\n" + BELOW))
        ours.append("".join(piece.text for piece in pieces))
        next(writer.pieces(writer.prompt(PREFIX, before, "")))  # one that is left leaves no trace
    requests = [
        Complete(id=1, document="a", prefix=before, suffix="\n" + BELOW, max_tokens=12)
        for before in befores
    ]
    assert ours == from_daemon(tiny, requests)
    weighed = [request.model_copy(update={"ways": 1}) for request in requests]
    lines = [writer.ways(before, "\n" + BELOW) for before in befores]
    assert [found[0][1] for found in lines] == from_daemon(tiny, weighed)
    assert all(found == sorted(found, key=lambda one: -one[0].weight) for found in lines)
    assert loaded.engine.stats().jobs_active == 0


def check_uncovered(tokenizer: Tokenizer, prompts: PromptBuilder, text: str) -> None:
    prompt = prompts.build(text, "", context="", budget=512, suffix_share=0.25)
    found = uncovered(prompt, prompts)
    assert found.unfinished is None
    assert list(found.ids) == tokenizer.encode(text, add_special_tokens=False).ids


def test_without_covering_the_tokens_are_the_tokenizers(loaded: Loaded) -> None:
    for length in range(1, len(ABOVE)):
        check_uncovered(loaded.tokenizer, loaded.prompts, ABOVE[:length])


@pytest.mark.model
def test_so_they_are_for_the_default_model(default_model_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model_folder / "tokenizer.json"))
    prompts = PromptBuilder(tokenizer, "auto", frozenset())
    text = Path(infill.__file__).read_text()[:900] + "    é = 'naïve'  # 日本語\n\n\n"
    for length in range(1, len(text) + 1):
        check_uncovered(tokenizer, prompts, text[:length])


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--problems", "0"], "one at least"),
        (["--cuts", "-1"], "not a whole number"),
        (["--seed", "x"], "not a whole number"),
    ],
)
def test_wrong_options_are_named(
    option: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "infill", "a.jsonl", *option])
    assert sentence in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.process
def test_the_command_measures_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = write(tmp_path / "a.jsonl.gz", row(), row("Made/1/L2"), row("Made/2/L2"))
    options = [str(file), "--problems", "2", "--cuts", "6", "--seed", "1"]
    assert main(["bench", "infill", *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["problems"], report["of"], report["own_lines_passed"]) == (2, 3, 2)
    assert {one["arm"] for one in report["arms"]} == {arm.name for arm in ARMS}
    assert sum(one["places"] for one in report["arms"]) == 2 * 7 * len(ARMS)
    assert len(report["results"]) == 2 * 7 * len(ARMS)
    product = {one["place"]: one for one in report["results"] if one["arm"] == RULES_LINE.name}
    assert any(one["exact"] and one["passed"] for one in product.values())
    again = [(one["place"], one["arm"], one["text"]) for one in report["results"]]

    assert main(["bench", "infill", *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert again == [(one["place"], one["arm"], one["text"]) for one in report["results"]]
    assert main(["bench", "infill", *options]) == 0
    said = capsys.readouterr().out
    for part in ("Cursor in a word", "covering", "passed in 2 of 2", "rules, no cover"):
        assert part in said
