"""Jobs whose prompt ends inside a word: the output spells the word and goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Engine, Event, Job, Unfinished
from completion_ls.prompt.build import Prompt, PromptBuilder
from support.tiny_model import write_tiny_model

TEXT = "def add(a, b):\n    return a + b\n\n\nfor value in values:\n    print(val"


@dataclass(frozen=True)
class Tiny:
    folder: Path
    tokenizer: Tokenizer
    prompts: PromptBuilder

    def prompt(self, text: str) -> Prompt:
        return self.prompts.build(text, "", context="", budget=1000, suffix_share=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Tiny(folder, tokenizer, PromptBuilder(tokenizer, "plain", frozenset()))


def run(engine: Engine, job: Job) -> list[Event]:
    engine.add(job)
    events: list[Event] = []
    while not events or events[-1].finish is None:
        events += engine.step()
    return events


def job(id: int, prompt: Prompt, count: int = 12) -> Job:
    return Job(id, prompt.ids, count, unfinished=prompt.unfinished)


@pytest.mark.parametrize("length", range(10, len(TEXT) + 1))
def test_the_output_spells_the_word_and_goes_on_as_from_its_own_tokens(
    model: Tiny, load_engine: Callable[..., Engine], length: int
) -> None:
    engine = load_engine(model.folder)
    prompt = model.prompt(TEXT[:length])
    assert prompt.unfinished
    base = prompt.ids[: len(prompt.ids) - prompt.unfinished.tokens]
    events = run(engine, job(1, prompt))
    output = [token for event in events for token in event.tokens]
    vocabulary = Vocabulary(model.tokenizer)
    text = b"".join(map(vocabulary.bytes_of, output))
    assert text.startswith(prompt.unfinished.text)
    assert len(text) > len(prompt.unfinished.text)
    assert events[-1].computed >= len(base) - events[-1].reused
    # From there on it is plain greedy decoding behind the tokens it chose.
    first = next(event for event in events if event.tokens).tokens
    fresh = load_engine(model.folder)
    rest = run(fresh, Job(1, (*base, *first), len(output) - len(first)))
    assert [token for event in rest for token in event.tokens] == output[len(first) :]


def test_typing_reuses_all_but_the_word(model: Tiny, load_engine: Callable[..., Engine]) -> None:
    engine, fresh = load_engine(model.folder), load_engine(model.folder)
    for number in range(20, len(TEXT)):
        prompt = model.prompt(TEXT[:number])
        events = run(engine, job(number, prompt))
        assert prompt.unfinished
        if number > 20:
            assert events[-1].computed <= prompt.unfinished.tokens + 3
            assert events[-1].reused >= len(prompt.ids) - prompt.unfinished.tokens - 3
        alone = run(load_engine(model.folder), job(1, prompt))
        assert [e.tokens for e in events if e.tokens] == [e.tokens for e in alone if e.tokens]
    fresh.close()


def passes_until_text(engine: Engine, job: Job) -> int:
    before = engine.stats().passes
    engine.add(job)
    while not any(event.tokens for event in engine.step()):
        pass
    return engine.stats().passes - before


def test_most_keys_and_every_backspace_need_no_pass(
    model: Tiny, load_engine: Callable[..., Engine]
) -> None:
    """Whatever is typed: what matters next was computed along with the text that was generated."""
    engine = load_engine(model.folder)
    needed = []
    for number in range(20, len(TEXT)):
        needed.append(passes_until_text(engine, job(number, model.prompt(TEXT[:number]))))
        for _ in range(3):  # the user takes a moment to the next key
            engine.step()
        engine.cancel(number)
    assert needed.count(0) > len(needed) / 2
    assert max(needed[1:]) <= 3
    for number in range(len(TEXT) - 1, len(TEXT) - 15, -1):
        prompt = model.prompt(TEXT[:number])
        assert passes_until_text(engine, job(1000 + number, prompt)) == 0
        engine.cancel(1000 + number)


def test_a_word_needs_a_token_before_it(model: Tiny, load_engine: Callable[..., Engine]) -> None:
    engine = load_engine(model.folder)
    with pytest.raises(ValueError, match="unfinished"):
        engine.add(Job(1, (70,), 4, unfinished=Unfinished(b"f", 1)))


def test_a_long_prompt_in_chunks(model: Tiny, load_engine: Callable[..., Engine]) -> None:
    prompt = model.prompt(TEXT * 3)
    answers = [
        [
            event.tokens
            for event in run(load_engine(model.folder, prefill_chunk=chunk), job(1, prompt))
        ]
        for chunk in (16, 17, 18, 19, 500)
    ]
    words = [[tokens for tokens in answer if tokens] for answer in answers]
    assert all(answer == words[0] for answer in words)
