"""The sweep: the formula, figures from made-up timings, what is measured of which engine, its tables,
and a small run of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench import sweep, sweep_plan
from completion_ls.bench.acceptance import OTHER_NOISE
from completion_ls.bench.child import Json
from completion_ls.bench.sweep import Report, Sweep, Texts
from completion_ls.bench.sweep_child import start
from completion_ls.bench.sweep_drafts import ArmDrafts
from completion_ls.bench.sweep_figures import (
    Arm,
    Question,
    Row,
    Run,
    fastest,
    joined,
    predicted,
    tokens_of_pass,
)
from completion_ls.bench.sweep_plan import Facts, Planned
from completion_ls.cli.bench_sweep import HEAD, head, left_out, markdown, notes, plot, rows, table
from completion_ls.cli.main import main
from completion_ls.config.settings import EngineSettings
from completion_ls.decode.draft_length import PassCost
from completion_ls.engines.contract import Job, Sampling
from support.tiny_model import write_tiny_model

PASS_S = 0.01
TORCH = Facts("torch_cpu", 8192, 2, 16, layers=30, weights="int8", has_room=True)
CARD = Facts(
    *("exllamav2", 16384, 1, 15),
    has_model=True,
    kv_cache="q8",
    kv_caches=("q8", "q6", "q4"),
    has_streams=True,
)
TEXTS = Texts(prose=tuple(range(512)), code=tuple(range(1000, 21_000)))


def made_up(arm: Arm, *, speed: float = 1.0, passes: int = 10_000) -> Run:
    """A round of an engine of known costs: a draft token costs 0.05 if it is drawn, each position beside
    the first 0.02 of a pass, and 80 of 100 draft tokens are right that are of a model, and else 50."""
    drawn = arm.source in ("model", "layers")
    k = arm.length or 3 * (arm.source != "none")
    rate = 0.8 if drawn else 0.5
    accepted = passes * (tokens_of_pass(rate, k) - 1)
    draft_s = passes * k * 0.05 * drawn * PASS_S
    width = 1 + k if arm.split else 1 + 0.02 * k
    return Run(
        rest=round(passes + accepted),
        seconds=(passes * width * PASS_S + draft_s) / speed,
        passes=passes,
        first_s=0.1,
        draft_s=draft_s / speed,
        checked=round(accepted / rate),
        accepted=round(accepted),
        lengths={k: passes} if k else {},
        texts=((1, 2, 3),),
    )


def row(arm: Arm, speeds: Sequence[float] = (1.0, 1.0, 1.0), name: str = "") -> Row:
    """Rounds of a machine that is so fast in each."""
    runs = tuple(made_up(arm, speed=speed) for speed in speeds)
    base = tuple(made_up(arm.plain, speed=speed) for speed in speeds)
    return Row(name or arm.source, arm, arm.plain, runs, base)


class MadeUpEngine:
    """Answers as `sweep_child` does."""

    def __init__(self) -> None:
        self.asked: list[Json] = []

    async def __call__(self, question: Json) -> Json:
        self.asked.append(question)
        values = asdict(made_up(Arm(**question["arm"])))
        return dict(json.loads(json.dumps(values)))


async def swept(facts: Facts, ladder: bool = False) -> tuple[list[Question], MadeUpEngine]:
    engine = MadeUpEngine()
    whole = Sweep(engine, facts, TEXTS, 3, lambda text: None)
    return await whole.questions(ladder=ladder), engine


def report(questions: Sequence[Question], facts: Facts = TORCH, **more: Any) -> Report:
    values: dict[str, Any] = {
        "busy": (0.0, 0.0),
        "load_averages": (0.1, None),
        "forced": False,
        **more,
    }
    return Report("m", {"kind": facts.kind}, {}, facts, 3, tuple(questions), **values)


@given(st.floats(0, 1), st.integers(0, 64))
def test_a_pass_gives_one_token_and_each_draft_token_that_all_before_it_let_through(
    acceptance: float, length: int
) -> None:
    one_by_one = sum(acceptance**count for count in range(length + 1))
    assert tokens_of_pass(acceptance, length) == pytest.approx(one_by_one)


@given(st.floats(0, 0.99), st.integers(1, 64), st.floats(0, 2), st.integers(1, 500))
def test_with_one_length_the_prediction_is_the_formula(
    acceptance: float, length: int, cost: float, passes: int
) -> None:
    formula = (1 - acceptance ** (length + 1)) / ((1 - acceptance) * (cost * length + 1))
    assert predicted(acceptance, {length: passes}, cost) == pytest.approx(formula)


def test_passes_without_a_draft_pull_the_prediction_to_one() -> None:
    assert predicted(0.5, {0: 10}, 0.3) == 1.0
    half = predicted(0.5, {0: 50, 4: 50}, 0.0)
    assert half == pytest.approx((1 + tokens_of_pass(0.5, 4)) / 2)


@pytest.mark.parametrize("arm", [Arm("model", 4), Arm("lookup", 8), Arm("model", 4, split=True)])
def test_from_timings_come_the_costs_that_they_were_made_with(arm: Arm) -> None:
    found = row(arm)
    rate, cost = (0.8, 0.05) if arm.source == "model" else (0.5, 0.0)
    assert found.acceptance == pytest.approx(rate, abs=0.01)
    assert found.draft_cost == pytest.approx(cost)
    width = 1 + arm.length if arm.split else 1 + 0.02 * arm.length
    assert found.pass_cost == pytest.approx(width)
    assert found.predicted == pytest.approx(
        tokens_of_pass(rate, arm.length) / (cost * arm.length + 1), rel=0.01
    )
    # With the pass as it is, the prediction is what was measured.
    assert found.predicted_with_pass == pytest.approx(found.speed_up, rel=0.01)


def test_a_slow_round_is_in_the_spread_and_not_in_the_ratios() -> None:
    quiet, loaded = row(Arm("model", 4)), row(Arm("model", 4), (1.0, 0.3, 0.9))
    low, high = loaded.spread
    assert high / low == pytest.approx(1 / 0.3)
    assert loaded.tokens_per_s == pytest.approx(0.9 * quiet.tokens_per_s)
    for name in ("speed_up", "draft_cost", "pass_cost", "acceptance"):
        assert getattr(loaded, name) == pytest.approx(getattr(quiet, name))


def test_without_drafts_nothing_is_accepted_or_predicted() -> None:
    plain = row(Arm())
    assert plain.speed_up == 1.0
    assert plain.acceptance is plain.accepted_per_pass is plain.draft_cost is None
    assert plain.predicted is plain.predicted_with_pass is plain.same_text is None


def test_against_something_else_than_the_same_without_drafts_nothing_is_predicted() -> None:
    arm, first = Arm("model", 4), Arm(weights="float32")
    slow = (made_up(first, speed=0.25),)
    found = Row("", arm, first, (made_up(arm),), slow)
    assert found.speed_up > 4 and found.predicted is None and found.same_text is None


def test_another_text_than_without_drafts_is_seen() -> None:
    same = row(Arm("lookup", 2))
    other = replace(same, runs=(replace(same.runs[0], texts=((1, 2, 4),)), *same.runs[1:]))
    assert same.same_text is True and other.same_text is False
    said = "\n".join(notes(report([Question("Drafts", (row(Arm()), other))])))
    assert "The text was not that without drafts: Drafts: lookup" in said


def test_the_runs_of_two_texts_count_as_one() -> None:
    one = replace(made_up(Arm("model", 2)), lengths={2: 60, 1: 40})
    both = joined([one, made_up(Arm("model", 2))])
    assert both.rest == one.rest + made_up(Arm("model", 2)).rest and both.passes == 20_000
    assert both.lengths == {1: 40, 2: 10_060} and len(both.texts) == 2


def test_the_fastest_is_one_with_drafts_even_where_none_is_faster() -> None:
    slow = row(Arm("model", 4, split=True))
    assert slow.speed_up < 1
    assert fastest([row(Arm()), slow]) == slow
    assert fastest([row(Arm())]) is None


async def test_the_best_source_at_its_best_length_is_what_the_rest_is_about() -> None:
    questions, _ = await swept(CARD)
    tables = {question.title.partition(" (")[0]: question for question in questions}
    assert questions[1].title == "Draft length (draft.model)"
    by_length = tables["Draft length"]
    best = fastest(by_length.rows)
    assert best and best.arm == Arm("model", 8)
    assert [one.arm for one in tables["Verifying"].rows] == [
        Arm(),
        Arm("model", 8, split=True),
        Arm("model", 8),
    ]
    assert {one.arm.length for one in tables["Context"].rows} == {0, 8}


async def test_in_each_round_every_arm_has_one_turn_and_another_is_the_first() -> None:
    _, engine = await swept(TORCH)
    rounds: list[list[str]] = [[], [], []]
    for one in engine.asked:
        if one["tokens"] == sweep.TOKENS and len(one["prompt"]) == 512:
            rounds[one["seed"]].append(json.dumps(one["arm"]))
    arms = len(sweep_plan.sources(TORCH).rows)
    first = [asked[: 2 * arms] for asked in rounds]  # there are two texts
    for asked in first:
        assert set(Counter(asked).values()) == {2}
        assert sorted(asked) == sorted(first[0])
    assert len({asked[0] for asked in first}) == 3


async def test_what_an_earlier_run_left_is_overwritten_with_another_text_each_time() -> None:
    _, engine = await swept(TORCH, ladder=True)
    seen = defaultdict[str, list[tuple[int, ...]]](list)
    for one in engine.asked:
        seen[json.dumps(one["prompt"])].append(tuple(one["other"]))
    for others in seen.values():
        assert len(set(others)) == len(others)
        assert {len(other) for other in others} == {sweep.OTHER}
        assert 1 not in {other[0] for other in others[1:]}  # each continuation begins with it


def planned(facts: Facts) -> dict[str, Planned]:
    best = Arm("lookup", 4)
    every = [
        sweep_plan.sources(facts),
        sweep_plan.lengths(facts, best),
        sweep_plan.sampling(facts, None),
        sweep_plan.graphs(facts),
        sweep_plan.streams(facts, facts.max_context - 100),
        sweep_plan.caches(facts, best, facts.max_context - 100),
        sweep_plan.contexts(facts, best, facts.max_context - 100),
        sweep_plan.ladder(facts, best, None, facts.max_context - 100),
    ]
    return {one.title.partition(" (")[0]: one for one in every}


def test_on_the_cpu_what_needs_a_card_is_left_out_with_the_reason() -> None:
    found = planned(TORCH)
    for title in ("CUDA graphs", "Prefill stream", "KV cache", "Sampling"):
        assert not found[title].rows and found[title].left_out[0][1].endswith("."), title
    names = [name for name, _, _ in found["Drafts"].rows]
    assert "first 15 of 30 layers, 4" in names and "first 28 of 30 layers, 4" in names
    assert dict(found["Drafts"].left_out)["draft.model"] == "The settings name none."
    assert [arm.length for _, arm, _ in found["Draft length"].rows] == [0, 1, 2, 4, 8, 16, 0]
    assert [name for name, _ in found["Draft length"].left_out] == ["32", "64"]
    assert "checks 16 draft tokens at most" in found["Draft length"].left_out[0][1]
    assert found["Stages"].rows[0][1] == Arm(weights="float32")
    assert found["Stages"].rows[1][0] == "int8 weights"


def test_on_a_card_streams_and_caches_are_measured_and_layers_are_not() -> None:
    found = planned(CARD)
    assert [name for name, _, _ in found["Prefill stream"].rows] == ["off", "on"]
    assert found["Prefill stream"].of_prompts
    caches = found["KV cache"]
    assert {arm.kv_cache for _, arm, _ in caches.rows} == {"", "q6", "q4"}  # "" is q8, as set
    assert [name for name, _ in caches.left_out] == ["fp16"]
    assert "first layers of the model" in dict(found["Drafts"].left_out)
    assert [arm.length for _, arm, _ in found["Draft length"].rows] == [0, 1, 2, 4, 8, 15, 0]
    assert "weights that spill" in dict(found["Stages"].left_out)


@pytest.mark.parametrize(
    ("room", "there", "left"),
    [
        (8092, [512, 2048, 8092], []),
        (1852, [512, 1852], ["8,192 tokens"]),
        (400, [400], ["2,048 tokens", "8,192 tokens"]),
    ],
)
def test_contexts_are_as_long_as_the_model_allows(
    room: int, there: list[int], left: list[str]
) -> None:
    found = sweep_plan.contexts(TORCH, Arm("lookup"), room)
    assert [arm.context for _, arm, _ in found.rows] == [one for one in there for _ in "ab"]
    assert [name for name, _ in found.left_out] == left


async def test_the_tables_have_their_columns_and_all_that_is_left_out(tmp_path: Path) -> None:
    for facts in (TORCH, CARD):
        questions, _ = await swept(facts, ladder=True)
        found = report(questions, facts)
        for question in questions:
            width = len(head(question, is_meaningful=True))
            assert question.rows or question.left_out
            assert {len(cells) for cells in rows(question)} <= {width}
            shown = table(question, is_meaningful=True)
            assert len({len(cells) for cells in shown}) == 1
            if question.title == "Stages" and facts is TORCH:  # nothing is predicted there
                assert shown[0] == (*HEAD[:6], "speed-up")
        written = "\n".join(markdown(found))
        assert written.count("**Stages**") == 1 and "not meaningful" not in written
        values = json.loads(json.dumps(found.as_dict()))
        assert [one["title"] for one in values["questions"]] == [one.title for one in questions]
        plot(tmp_path / "a.png", found)
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_columns_of_time_are_marked_where_they_mean_nothing() -> None:
    question = Question("Drafts", (row(Arm()),))
    marked = head(question, is_meaningful=False)
    assert marked[:2] == ("", "tokens/s *")
    assert [name for name in marked if "*" not in name] == ["", "accepted", "a pass"]
    written = "\n".join(markdown(report([question], replace(TORCH, is_meaningful=False))))
    assert "**Drafts; * not meaningful**" in written
    assert "* not meaningful: reference kernels" in written


def test_what_is_left_out_for_one_reason_stands_together() -> None:
    question = Question("", (), (("32", "Too long."), ("on", "None here."), ("64", "Too long.")))
    assert list(left_out(question)) == ["Left out: 32, 64. Too long.", "Left out: on. None here."]


def test_where_no_draft_pays_it_is_said() -> None:
    slow = row(Arm("model", 4, split=True))
    said = "No draft of these is faster than none"
    assert said in "\n".join(notes(report([Question("Drafts", (row(Arm()), slow))])))
    fast = row(Arm("model", 4))
    assert said not in "\n".join(notes(report([Question("Drafts", (row(Arm()), slow, fast))])))


class Guessing:
    """Guesses 7, and notes what it was told."""

    cost = 0.1

    def __init__(self) -> None:
        self.told: list[Sampling] = []

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        self.told.append(sampling)
        return (7,) * count


def drafts_of(job: Job, **more: Any) -> tuple[ArmDrafts, Guessing]:
    guessing = Guessing()
    # No draft pays with such passes.
    cost = PassCost.of([(1, 1.0), (2, 100.0)])
    return ArmDrafts(cost, model=guessing, **more), guessing


def test_a_fixed_length_is_kept_even_where_it_does_not_pay() -> None:
    job = Job(1, (1, 2), 20)
    drafts, _ = drafts_of(job, length=4)
    learnt, _ = drafts_of(job)
    one = drafts.of(job, job.prompt)
    assert one.propose(9) == (7,) * 4 and one.propose(3) == (7,) * 3
    assert drafts.lengths == {4: 1, 3: 1}
    assert learnt.of(job, job.prompt).propose(9) == () and not learnt.lengths


def test_what_became_of_drafts_is_counted_from_the_beginning_of_a_run() -> None:
    job = Job(1, (1, 2), 20)
    drafts, _ = drafts_of(job, length=4)
    for _ in range(2):
        drafts.begin()
        one = drafts.of(job, job.prompt)
        one.propose(9)
        one.produced((7, 7, 5))
        assert (drafts.checked, drafts.accepted, drafts.lengths) == (3, 2, {4: 1})


@pytest.mark.parametrize("own_noise", [False, True])
def test_a_draft_draws_with_other_noise_where_it_is_to(own_noise: bool) -> None:
    job = Job(1, (1, 2), 20, sampling=Sampling(0.6, 0.9, 0, 3))
    drafts, guessing = drafts_of(job, length=4, own_noise=own_noise)
    drafts.of(job, job.prompt).propose(4)
    seed = 3 + OTHER_NOISE * own_noise
    assert guessing.told == [Sampling(0.6, 0.9, 0, seed)]


def test_no_answer_of_an_earlier_round_is_looked_up() -> None:
    job = Job(1, (1, 2, 3), 20, document="d")
    drafts = ArmDrafts(PassCost.of([(1, 1.0)]), lookup=True, length=4)
    first = drafts.of(job, job.prompt)
    first.produced((9, 8, 7))
    assert drafts.of(job, job.prompt).propose(4) == ()


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Json]:
    """The answers of a tiny model that has itself as its draft model."""
    folder = str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))
    settings = EngineSettings(weights="float32", threads=1).model_dump()
    facts, ask = start({"engine": settings, "folder": folder, "draft_folder": folder})
    assert facts["has_model"] and facts["weights"] == "float32"
    prompts = {number: [number, 7, 8, 9] * 8 for number in (1, 2)}
    others = (list(range(start, start + sweep.OTHER)) for start in cycle((20, 60, 100)))

    def asked(arm: Arm, number: int = 1) -> Json:
        question = {"arm": asdict(arm), "tokens": 40, "seed": 5}
        return ask(question | {"prompt": prompts[number], "other": next(others)})

    return asked


def test_a_draft_that_is_the_model_itself_is_always_right_with_the_same_noise(
    answer: Callable[..., Json],
) -> None:
    aligned = Arm("model", 4, sampled=True)
    same, other = answer(aligned), answer(replace(aligned, own_noise=True))
    assert same["accepted"] == same["checked"] > 0
    assert other["accepted"] < other["checked"]
    assert same["texts"] == other["texts"] == answer(aligned.plain)["texts"]


@pytest.mark.parametrize(
    "arm",
    [
        Arm("lookup"),
        Arm("lookup", 4),
        Arm("model", 4),
        Arm("model", 4, split=True),
        Arm("lookup", 4, split=True),
        Arm("layers", 4, layers=1),
    ],
)
def test_no_arm_changes_the_text(answer: Callable[..., Json], arm: Arm) -> None:
    found, plain = answer(arm), answer(arm.plain)
    assert found["texts"] == plain["texts"]
    assert found["checked"] > 0 and sum(found["lengths"].values()) <= found["passes"]


def test_nothing_of_an_earlier_run_is_found_again(answer: Callable[..., Json]) -> None:
    for number in (1, 2, 1, 2, 1):
        done = answer(Arm(), number)
        assert done["passes"] == done["rest"] == 39
        assert done["accepted"] == done["checked"] == done["draft_s"] == 0


@pytest.mark.model
@pytest.mark.process
def test_a_small_run_on_the_default_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "TOKENS", 8)
    monkeypatch.setattr(sweep_plan, "LENGTHS", (1, 3, 32))
    monkeypatch.setattr(sweep_plan, "CONTEXTS", (64, 600))
    assert main(["bench", "sweep", "--force", "--json", "--rounds", "1"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["model"] == "smollm2-135m-instruct" and values["facts"]["layers"] == 30
    tables = {one["title"].partition(" (")[0]: one for one in values["questions"]}
    lengths = [row["arm"]["length"] for row in tables["Draft length"]["rows"]]
    assert lengths == [0, 1, 3, 16, 0]
    assert [row["name"][:3] for row in tables["Context"]["rows"]] == ["64 ", "64 ", "600", "600"]
    for one_table in tables.values():
        for one in one_table["rows"]:
            assert one["tokens_per_s"] > 0 and one["speed_up"] > 0
            assert one["same_text"] is not False  # one by one, too
            if one["arm"]["source"] == "none":
                (run,) = one["rounds"]
                assert run["passes"] == run["rest"]  # nothing was found again
