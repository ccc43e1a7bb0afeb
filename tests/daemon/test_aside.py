"""What the daemon does by itself between keystrokes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import EngineSettings
from completion_ls.daemon.aside import Aside
from completion_ls.daemon.audit import Output
from completion_ls.daemon.repository import repository_of
from completion_ls.engines.contract import Event, Job
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.prompt.build import ALMOST, PromptBuilder
from completion_ls.wire.messages import Complete, File
from support.tiny_model import write_tiny_model

BUDGET = 256
LINES = [f"value_{n} = add(values[{n}], {n * n})\n" for n in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def engine(folder: Path) -> TorchCpuEngine:
    return TorchCpuEngine.load(folder, EngineSettings(threads=1, prefill_chunk=64))


@pytest.fixture
def prompts(folder: Path) -> PromptBuilder:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return PromptBuilder(tokenizer, "plain", frozenset())


def request(prefix: str, *, ahead: bool = True) -> Complete:
    return Complete(id=1, document="a", prefix=prefix, suffix="", max_tokens=4, ahead=ahead)


def job(prompts: PromptBuilder, id: int, prefix: str) -> Job:
    prompt = prompts.build(prefix, "", context="", budget=BUDGET, suffix_share=0.25)
    return Job(id, prompt.ids, 4, unfinished=prompt.unfinished)


def foretold(prompts: PromptBuilder, prefix: str) -> bool:
    prompt = prompts.ahead(prefix, "", context="", budget=BUDGET, suffix_share=0.25)
    return prompt is not None


def run(engine: TorchCpuEngine, one: Job) -> Event:
    engine.add(one)
    while True:
        for event in engine.step():
            if event.job_id == one.id and event.finish:
                return event


def finish(engine: TorchCpuEngine, aside: Aside) -> tuple[int, int]:
    """Step until nothing is under way; prompt tokens reused and computed."""
    reused = computed = 0
    while aside.busy:
        for event in engine.step():
            assert aside.owns(event.job_id)
            more = aside.count(event)
            reused, computed = reused + more[0], computed + more[1]
            aside.advance(event)
    return reused, computed


@pytest.mark.long
@pytest.mark.parametrize("ahead", [True, False])
def test_the_first_key_of_a_line_costs_little_where_the_window_moves(
    engine: TorchCpuEngine, prompts: PromptBuilder, ahead: bool
) -> None:
    aside = Aside(audit_every=0)
    expensive = []
    for number in range(1, len(LINES)):
        text = "".join(LINES[:number])
        computed = run(engine, job(prompts, 3 * number, text)).computed
        if number > 1:  # the first prompt is cold
            expensive.append(computed > 64)
        # The line is typed (its last character, here), and its end is yet to come.
        typed = text + LINES[number][:-1]
        run(engine, job(prompts, 3 * number + 1, typed))
        aside.served(engine, prompts, request(typed, ahead=ahead), BUDGET, 3 * number + 2)
        finish(engine, aside)
    assert any(expensive) is not ahead


def test_it_is_not_looked_for_with_every_key(
    engine: TorchCpuEngine, prompts: PromptBuilder
) -> None:
    aside = Aside(audit_every=0)
    lines, line = next(
        (text, LINES[number])
        for number in range(1, len(LINES))
        if foretold(prompts, (text := "".join(LINES[:number])) + LINES[number][:-1])
    )
    for id, typed in enumerate([line[:-1], line[:-2], line[:-1]]):
        aside.served(engine, prompts, request(lines + typed), BUDGET, id)
        assert aside.busy is (id == 0)
        finish(engine, aside)
    # Where it is still under way and the next line is there, it has come too late.
    aside.served(engine, prompts, request("# a\n" + lines + line[:-1]), BUDGET, 10)
    assert aside.owns(10)
    aside.served(engine, prompts, request(lines + line), BUDGET, 11)
    assert not aside.owns(10)
    finish(engine, aside)
    assert engine.stats().jobs_active == 0


def test_an_audit_computes_the_same_from_nothing(
    engine: TorchCpuEngine, prompts: PromptBuilder
) -> None:
    aside = Aside(audit_every=2)
    run(engine, job(prompts, 1, "".join(LINES[:9])))
    for id in range(2, 8):
        one = job(prompts, id, "".join(LINES[:9])[: 150 + id])
        output = Output()
        engine.add(one)
        while engine.stats().jobs_active:
            for event in engine.step():
                output += event
        aside.answered(engine, one, output, 100 + id)
        assert aside.owns(100 + id) is (id % 2 == 1)
        reused, computed = finish(engine, aside)
        assert reused == 0
        assert (computed > 0) is (id % 2 == 1)
    assert aside.figures() == {"audited": 3, "audit_ties": 0, "audit_mismatches": 0}
    # And it would tell: an answer that is not the model's.
    wrong = Output(tuple((token + 1) % 300 for token in output.tokens), (-9.0,) * 9, 1)
    aside.answered(engine, one, wrong, 200)
    aside.answered(engine, one, wrong, 201)
    finish(engine, aside)
    assert aside.figures()["audit_mismatches"] == 1


def test_a_failed_job_is_forgotten(engine: TorchCpuEngine, prompts: PromptBuilder) -> None:
    aside = Aside(audit_every=1)
    aside.answered(engine, job(prompts, 1, LINES[0]), Output((5,), (-1.0,), 1), 7)
    assert aside.busy
    aside.drop(7)
    assert not aside.busy


def test_other_files_stand_in_the_prompt_that_is_computed_ahead(
    engine: TorchCpuEngine, prompts: PromptBuilder
) -> None:
    aside = Aside(audit_every=0)
    other = File(path="other.py", text="def add(one, two):\n    return one + two\n")

    def with_files(prefix: str) -> Complete:
        files = {"repository": "work", "path": "a.py", "files": [other]}
        return request(prefix).model_copy(update=files)

    def job(id: int, prefix: str) -> Job:
        repository = repository_of(with_files(prefix))
        prompt = prompts.build(
            prefix, "", context="", budget=BUDGET, suffix_share=0.25, repository=repository
        )
        alone = prompts.build(prefix, "", context="", budget=BUDGET, suffix_share=0.25)
        assert prompt.ids[:8] != alone.ids[:8]  # the file stands in front
        return Job(id, prompt.ids, 4, unfinished=prompt.unfinished)

    ahead = 0
    for number in range(20, 40):
        typed = "".join(LINES[:number]) + LINES[number][:-1]
        run(engine, job(3 * number, typed))
        aside.served(engine, prompts, with_files(typed), BUDGET, 3 * number + 1)
        ahead += aside.busy
        finish(engine, aside)
        assert run(engine, job(3 * number + 2, typed + "\n")).computed <= ALMOST
    assert ahead
