"""The search for the best settings: on engines with known costs, and a small one for real."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from completion_ls.bench import tune_engines
from completion_ls.bench.tune import LEAST_ROUNDS, ROUNDS, CannotRun, Search
from completion_ls.bench.tune_arms import (
    changes,
    chunk_in_use,
    coordinates,
    described,
    speculates,
    without_drafts,
)
from completion_ls.bench.tune_engines import Tuning, draft_models
from completion_ls.bench.tune_figures import COLD_SHARE, WORTH, Figures, ratio
from completion_ls.cli import tune as command
from completion_ls.cli.main import main
from completion_ls.config.settings import DraftSettings, EngineSettings, Settings
from completion_ls.models.errors import ModelError
from support.tiny_model import write_tiny_model

PRESENT = Settings(engine=EngineSettings(threads=2))
NONE = PRESENT.model_copy(update={"draft": DraftSettings(max_tokens=0)})
CARD = Settings(engine=EngineSettings(kind="exllamav2"))

Cost = Callable[[Settings, int], float]
"""Seconds per token of settings at a prompt."""


def even(settings: Settings, number: int) -> float:
    return 0.01


def unchunked(settings: Settings) -> float:
    """What makes the chunk's size no matter."""
    return 0.7 / (1 + min(1, settings.engine.prefill_chunk / 400) / 2)


@dataclass
class Engine:
    """One with known costs, and a clock that they move on."""

    cost: Cost = even
    noise: float = 0.02
    cold: Callable[[Settings], float] = unchunked
    refuses: Callable[[Settings], str] = lambda settings: ""
    now: float = 0.0
    asked: list[tuple[Settings, int]] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    async def measure(self, settings: Settings, number: int) -> Figures:
        self.asked.append((settings, number))
        if why := self.refuses(settings):
            raise CannotRun(why)
        # The machine is now fast and now slow, for all alike, and each measurement has its own noise.
        load = 1.0 + (number % 3) / 2
        first_s, token_s = (
            value * load * self.draw.uniform(1 - self.noise, 1 + self.noise)
            for value in (self.cold(settings), self.cost(settings, number))
        )
        self.now += first_s + 19 * token_s
        return Figures(
            prompt=400,
            chunk=chunk_in_use(settings.engine),
            first_s=first_s,
            tokens=20,
            rest=19,
            rest_s=19 * token_s,
            rest_passes=19,
        )


def searched(
    engine: Engine,
    present: Settings = PRESENT,
    *,
    drafts: tuple[str, ...] = (),
    seconds: float = 1e6,
    turn: int = 1,
) -> Search:
    search = Search(
        present,
        coordinates(drafts, present.engine.threads),
        engine.measure,
        seconds=seconds,
        clock=lambda: engine.now,
        turn=turn,
    )
    asyncio.run(search.run())
    return search


def winner_of(search: Search) -> dict[str, Any]:
    assert search.winner is not None
    return changes(search.present, search.winner)


def test_the_objective_is_in_seconds_per_suggestion() -> None:
    found = Figures(400, 100, first_s=0.8, tokens=20, rest=19, rest_s=1.9, rest_passes=10)
    assert found.suggestion_s == pytest.approx(2.0)
    assert found.cold_s == pytest.approx(0.8 + 0.1)
    assert found.felt_s == pytest.approx(2.0 + COLD_SHARE * 0.9)
    whole = Figures(400, 4096, first_s=0.8, tokens=20, rest=19, rest_s=1.9, rest_passes=10)
    assert whole.cold_s == pytest.approx(1.2)  # nothing comes in between


TIMES = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=ROUNDS)


@given(TIMES)
def test_a_ratio_lies_within_its_interval_and_within_those_of_the_rounds(
    times: list[tuple[float, float]],
) -> None:
    new, old = zip(*times, strict=True)
    found = ratio(new, old)
    ratios = [one / other for one, other in times]
    assert min(ratios) * 0.999 <= found.low <= found.high <= max(ratios) * 1.001
    assert found.low * 0.999 <= found.middle <= found.high * 1.001


def test_a_load_that_hits_both_sides_is_no_noise() -> None:
    load = [1.0, 9.0, 3.0, 20.0]
    found = ratio([0.9 * one for one in load], load)
    assert found.is_better and found.high == pytest.approx(0.9)
    assert not ratio([0.5, 0.5, 0.5, 5.0], [1.0, 1.0, 1.0, 1.0]).is_better
    assert not ratio([1 - WORTH / 2] * 8, [1.0] * 8).is_better


def test_the_best_length_of_drafts_is_found() -> None:
    lengths = {16: 0.010, 8: 0.009, 4: 0.007, 2: 0.008, 0: 0.012}
    engine = Engine(lambda settings, number: lengths[settings.draft.max_tokens])
    search = searched(engine)
    assert winner_of(search) == {"draft.max_tokens": 4}
    assert not search.not_tried
    numbers = {number for _, number in engine.asked}
    assert numbers <= set(range(2 * ROUNDS)) and max(numbers) >= ROUNDS + LEAST_ROUNDS - 1


def test_the_best_source_of_drafts_is_found() -> None:
    def cost(settings: Settings, number: int) -> float:
        draft = settings.draft
        return 0.01 if not draft.max_tokens else {"": 0.009, "a": 0.011, "b": 0.005}[draft.model]

    search = searched(Engine(cost), NONE, drafts=("a", "b"))
    assert winner_of(search)["draft.model"] == "b"
    assert winner_of(search)["draft.max_tokens"] == 16
    assert search.winner and search.winner.draft.lookup


@pytest.mark.parametrize("present", [PRESENT, NONE])
@pytest.mark.parametrize("with_drafts", [0.02, 0.0105])
def test_a_draft_that_does_not_pay_is_turned_off(present: Settings, with_drafts: float) -> None:
    engine = Engine(lambda settings, number: with_drafts if speculates(settings) else 0.01)
    search = searched(engine, present, drafts=("a", "b"))
    assert search.winner == NONE
    assert [one.what for one in search.comparisons].count("no drafts") == speculates(present)


def test_a_draft_that_is_just_as_fast_as_none_is_turned_off() -> None:
    search = searched(Engine(noise=0.0))
    assert search.winner == NONE
    assert search.comparisons[0].outcome == "as fast"
    assert search.final[-1].wins


def test_a_draft_that_is_faster_than_none_by_the_noise_only_stays_but_is_not_begun() -> None:
    def cost(settings: Settings, number: int) -> float:
        return 0.0098 if speculates(settings) else 0.01

    assert winner_of(searched(Engine(cost, noise=0.0))) == {}
    assert winner_of(searched(Engine(cost, noise=0.0), NONE)) == {}


@pytest.mark.parametrize("seed", range(5))
def test_the_present_stays_where_the_differences_are_noise(seed: int) -> None:
    engine = Engine(
        lambda settings, number: 0.01 if speculates(settings) else 0.03,
        noise=0.3,
        draw=random.Random(seed),
    )
    assert winner_of(searched(engine)) == {}


def test_what_was_better_by_luck_is_not_better_on_other_prompts() -> None:
    def cost(settings: Settings, number: int) -> float:
        lucky = settings.draft.max_tokens == 4 and number < ROUNDS
        return 0.005 if lucky else 0.01 if speculates(settings) else 0.02

    search = searched(Engine(cost))
    assert search.best.draft.max_tokens == 4 and winner_of(search) == {}
    assert "was not better on other prompts" in "\n".join(command.verdict(search))


def test_drafts_must_be_faster_with_the_other_settings_of_the_winner_too() -> None:
    def cost(settings: Settings, number: int) -> float:
        alone = settings.engine.threads == 1
        return (0.004 if alone else 0.02) + (0.001 if alone else -0.005) * speculates(settings)

    search = searched(Engine(cost))
    assert winner_of(search) == {"engine.threads": 1, "draft.max_tokens": 0}
    assert search.final[0].what == "no drafts" and search.final[0].wins


def test_the_chunk_is_judged_by_the_cold_prompt_and_the_wait_for_a_step() -> None:
    seconds = {64: 0.9, 128: 0.6, 256: 0.53, 512: 0.49}

    def cold(settings: Settings) -> float:
        return seconds[settings.engine.prefill_chunk]

    def cost(settings: Settings, number: int) -> float:
        return 0.01 if speculates(settings) else 0.02

    search = searched(Engine(cost, cold=cold))
    assert winner_of(search) == {}  # 0.6 s and 64/400 of it, 0.53 s and 128/400 of it
    seconds[256] = 0.4
    search = searched(Engine(cost, cold=cold))
    assert winner_of(search) == {"engine.prefill_chunk": 256}
    assert search.final[-1].by_cold


def test_nothing_is_begun_that_would_not_be_done_in_time() -> None:
    def cost(settings: Settings, number: int) -> float:
        return 0.01 if speculates(settings) else 0.02

    longest = 2 * (0.5 + 19 * 0.02) * 1.05
    everything = searched(Engine(cost))
    tried = [one.what for one in everything.comparisons]
    for seconds in (0.0, 0.1, 5.0, 20.0, 40.0, 60.0, 100.0):
        engine = Engine(cost)
        search = searched(engine, seconds=seconds)
        assert engine.now <= seconds + longest
        found = [*[one.what for one in search.comparisons], *search.not_tried]
        assert sorted(found) == sorted(tried)
        assert winner_of(search) == {}
    assert not everything.not_tried


def test_the_table_is_whole_in_eighty_columns() -> None:
    search = searched(Engine(lambda settings, number: 0.01))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(command.table(search, console.width))
    said = captured.get()
    assert "…" not in said and all(len(line) <= 80 for line in said.splitlines())
    words = said.split()
    for row in command.rows(search):
        # What was tried is folded.
        assert not [word for cell in row[1:] for word in cell.split() if word not in words]


def test_a_winner_without_time_for_other_prompts_is_none() -> None:
    def cost(settings: Settings, number: int) -> float:
        slow = 1000 if number >= ROUNDS else 1
        return slow * 0.001 * (settings.draft.max_tokens or 30)

    search = searched(Engine(cost), seconds=200)
    assert changes(PRESENT, search.best) and winner_of(search) == {}
    assert "--budget gives more" in "\n".join(command.verdict(search))


def test_settings_that_an_engine_refuses_are_an_arm_that_cannot_run() -> None:
    def refuses(settings: Settings) -> str:
        return "It has another vocabulary." if settings.draft.model == "a" else ""

    def cost(settings: Settings, number: int) -> float:
        return 0.005 if settings.draft.model == "b" else 0.01

    search = searched(Engine(cost, refuses=refuses), NONE, drafts=("a", "b"))
    assert winner_of(search)["draft.model"] == "b"
    (refused,) = [one for one in search.comparisons if one.refused]
    assert (refused.outcome, refused.refused) == ("cannot run", "It has another vocabulary.")
    assert all(len(row) == len(command.HEAD) for row in command.rows(search))


def test_present_settings_that_cannot_run_end_the_search() -> None:
    with pytest.raises(CannotRun, match="no card"):
        searched(Engine(refuses=lambda settings: "There is no card."), NONE, drafts=("a",))


async def test_what_is_known_stands_where_it_is_interrupted() -> None:
    engine = Engine(lambda settings, number: 0.01 / (1 + speculates(settings)))

    async def measure(settings: Settings, number: int) -> Figures:
        if len(engine.asked) > 40:
            await asyncio.sleep(3600)
        return await engine.measure(settings, number)

    search = Search(PRESENT, coordinates((), 2), measure, seconds=1e6, clock=lambda: engine.now)
    task = asyncio.create_task(search.run())
    while len(engine.asked) <= 40:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert search.winner is None and search.comparisons[0].is_done
    assert len(list(command.rows(search))) >= 1


def test_sides_take_turns_or_are_measured_in_one_go() -> None:
    engine = Engine()
    search = searched(engine)
    rounds = [number for _, number in engine.asked[: 2 * len(search.comparisons[0].rounds)]]
    assert rounds == [number // 2 for number in range(len(rounds))]
    engine = Engine()
    searched(engine, CARD, turn=ROUNDS)
    asked = [settings for settings, _ in engine.asked]
    assert all(len(list(group)) >= ROUNDS for _, group in itertools.groupby(asked))


# what there is to try


def test_what_is_tried_on_the_cpu() -> None:
    kinds = {one.name: one.others(PRESENT) for one in coordinates(("d",), 2)}
    assert [described(PRESENT, one) for one in kinds["draft source"]] == [
        "no drafts",
        "draft.model = d",
    ]
    lengths = [one.draft.max_tokens for one in kinds["draft.max_tokens"]]
    assert sorted(lengths) == [2, 4, 8]
    assert 2 not in [one.engine.threads for one in kinds["engine.threads"]]
    assert [one.engine.prefill_chunk for one in kinds["engine.prefill_chunk"]] == [64, 256, 512]
    assert kinds["engine.kv_cache"] == []
    assert all(one.engine.weights == "int8" for arms in kinds.values() for one in arms)


def test_what_is_tried_on_a_card() -> None:
    kinds = {one.name: one.others(CARD) for one in coordinates(("d",), 2)}
    assert [one.engine.kv_cache for one in kinds["engine.kv_cache"]] == ["fp16", "q6", "q4"]
    assert kinds["engine.threads"] == []
    # 128 is one page of 256 there.
    assert [one.engine.prefill_chunk for one in kinds["engine.prefill_chunk"]] == [512, 1024, 2048]
    assert [one.draft.model for one in kinds["draft source"]] == ["", "d"]


def test_without_drafts_there_is_no_length_of_them() -> None:
    kinds = {one.name: one.others(NONE) for one in coordinates((), 2)}
    assert kinds["draft.max_tokens"] == []
    assert [described(NONE, one) for one in kinds["draft source"]] == ["draft.max_tokens = 16"]
    nothing = NONE.model_copy(update={"draft": DraftSettings(lookup=False, max_tokens=0)})
    (arm,) = coordinates((), 2)[0].others(nothing)
    assert changes(nothing, arm) == {"draft.lookup": True, "draft.max_tokens": 16}
    assert without_drafts(nothing) == nothing


# the command


@pytest.fixture
def file(isolated: dict[str, str]) -> Path:
    return Path(isolated["COMPLETION_LS_CONFIG"])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """`tune` with a fake engine, on which drafts of four tokens are best."""
    lengths = {16: 0.010, 8: 0.009, 4: 0.007, 2: 0.008, 0: 0.012}
    engine = Engine(lambda settings, number: lengths[settings.draft.max_tokens])

    async def run(self: Tuning, say: Callable[[str], None]) -> None:
        self.model, self.prompt_tokens = "m", (300, 400)
        self.search = Search(
            self.settings,
            coordinates(self.drafts, 1),
            engine.measure,
            seconds=self.seconds,
            clock=lambda: engine.now,
            say=say,
        )
        await self.search.run()

    monkeypatch.setattr(Tuning, "run", run)
    return engine


BEFORE = """\
# My settings.
profile = "cpu"

[draft]   # guesses
lookup = true   # I like it
max_tokens = 16 # as it was

[completion]
lines = "single"
"""


def test_without_write_nothing_is_written(
    fake: Engine, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(BEFORE)
    assert main(["tune", str(tmp_path), "--budget", "10000"]) == 0
    said = capsys.readouterr().out
    assert file.read_text() == BEFORE
    assert "[draft]\nmax_tokens = 4\n" in said and "Nothing was written: " in said
    assert "Better than the present settings: draft.max_tokens = 4." in said
    assert "Not tried" not in said and "engine.weights is not searched" in said


def test_write_keeps_comments_and_other_settings(
    fake: Engine, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(BEFORE)
    assert main(["tune", str(tmp_path), "--budget", "10000", "--write"]) == 0
    assert file.read_text() == BEFORE.replace("max_tokens = 16 #", "max_tokens = 4 #")
    assert "draft.max_tokens was written into" in capsys.readouterr().out
    assert main(["tune", str(tmp_path), "--budget", "10000", "--write"]) == 0
    assert "The present settings stay" in capsys.readouterr().out


def test_a_variable_that_goes_before_the_file_is_named(
    fake: Engine,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MAX_TOKENS", "8")
    assert main(["tune", str(tmp_path), "--budget", "10000", "--write"]) == 0
    assert tomllib.loads(file.read_text()) == {"draft": {"max_tokens": 4}}
    assert "an environment variable sets draft.max_tokens, too" in capsys.readouterr().out


def test_the_figures_are_json(
    fake: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(tmp_path), "--budget", "10000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"] == {"draft.max_tokens": 4} and found["is_finished"]
    first = found["comparisons"][0]
    assert first["tried"] == {"draft.max_tokens": 0} and first["ratio"] > 1
    assert len(first["rounds"]) >= LEAST_ROUNDS and first["rounds"][0][0]["felt_s"] > 0


def test_interrupted_it_says_what_is_known_and_writes_nothing(
    fake: Engine,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = fake.measure

    async def interrupted(settings: Settings, number: int) -> Figures:
        if number >= ROUNDS:  # the end, on other prompts
            raise KeyboardInterrupt
        return await measure(settings, number)

    monkeypatch.setattr(fake, "measure", interrupted)
    assert main(["tune", str(tmp_path), "--budget", "10000", "--write"]) == 130
    written = capsys.readouterr()
    assert file.read_text() == ""
    assert "Best so far, not yet measured on other prompts: draft.max_tokens = 4" in written.out
    assert "nothing was written" in written.err


def test_on_a_busy_machine_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def busy() -> float:
        return 1.7

    monkeypatch.setattr(tune_engines, "busy_processors", busy)
    assert main(["tune", str(tmp_path)]) == 1
    written = capsys.readouterr()
    assert "keeps 1.7 processors busy" in written.err and "--force" in written.err
    assert written.out == ""


def test_what_is_refused_before_anything_is_measured(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(tmp_path / "none")]) == 1
    assert "There is no folder" in capsys.readouterr().err
    file.write_text("[draft\n")
    assert main(["tune", str(tmp_path), "--write"]) == 1
    assert "is not TOML" in capsys.readouterr().err
    for wrong in ("0", "x", "-1", "nan"):
        with pytest.raises(SystemExit):
            main(["tune", "--budget", wrong])


# for real


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny")


def other_vocabulary(model: Path, folder: Path) -> Path:
    """A copy whose first token is another one."""
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<|endoftext|>", "<|other|>"))
    return folder


def test_drafts_are_smaller_models_of_the_same_vocabulary_that_are_here(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, stranger, large = tmp_path / "small", tmp_path / "stranger", tmp_path / "large"
    for folder in (small, large):
        shutil.copytree(tiny, folder)
    for folder, files in ((tiny, 1), (large, 2)):
        for number in range(files):
            shutil.copy(small / "model.safetensors", folder / f"more{number}.safetensors")
    other_vocabulary(small, stranger)
    here = {"small": small, "stranger": stranger, "large": large, "itself": tiny}
    monkeypatch.setattr(tune_engines.local, "pulled", lambda: here)
    monkeypatch.setattr(tune_engines.catalogue, "ENTRIES", ())
    settings = Settings.model_validate({"model": {"name": str(tiny)}, "draft": {"model": "own"}})
    assert draft_models(settings, [str(small)]) == ["own", str(small), "small"]
    with pytest.raises(ModelError, match="no model"):
        draft_models(settings, ["none"])


@pytest.mark.process
def test_a_small_search_for_real(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stranger = other_vocabulary(tiny, tmp_path / "stranger")
    code = tmp_path / "code"
    code.mkdir()
    text = "def add(a, b):\n    total = a + b\n    return total\n\n"
    for number in range(4):
        (code / f"m{number}.py").write_text(text.replace("total", f"total_{number}") * 10)
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(tiny))
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__MAX_TOKENS", "12")
    options = ["--force", "--json", "--budget", "1000", "--draft", str(stranger)]
    sources = coordinates(("x",), 1)[0].name

    def only_sources(*given: Any) -> list[Any]:
        return [one for one in coordinates(*given) if one.name == sources]

    monkeypatch.setattr(tune_engines, "coordinates", only_sources)
    assert main(["tune", str(code), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts_are_from_folder"] and len(found["prompt_tokens"]) == 2 * ROUNDS
    none, other = found["comparisons"][:2]
    assert none["tried"] == {"draft.max_tokens": 0} and len(none["rounds"]) >= LEAST_ROUNDS
    assert "has another vocabulary" in other["refused"] and other["rounds"] == []
    assert found["is_finished"] and not found["not_tried"]
    assert set(found["changes"]) <= {"draft.max_tokens"}
