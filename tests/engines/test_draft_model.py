"""A draft model says what it would say itself, whatever it was asked before."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.bench.acceptance import truncated
from completion_ls.config.settings import EngineSettings
from completion_ls.decode.draft_length import PassCost
from completion_ls.engines.contract import Job, Sampling
from completion_ls.engines.draft_model import DraftModel
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import load_native
from completion_ls.engines.same_vocabulary import check_vocabulary
from completion_ls.engines.torch_cpu import TorchCpuEngine
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.long

MODELS = ["heads-of-16", "qwen3"]
KINDS = ["int8", "int4", "bf16"]
_ids = count(1)


def document(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(97), k=length))


@pytest.fixture(scope="module")
def read(tiny: Callable, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Llama]:
    """The model of a name and kind, made once."""
    native, made = load_native(), {}
    cache = tmp_path_factory.mktemp("cache")

    def get(name: str, kind: str) -> Llama:
        if (name, kind) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("COMPLETION_LS_CACHE_DIR", str(cache))
                made[name, kind] = Llama.read(tiny(name).folder, kind, native)
            made[name, kind].use_threads(1)
        return made[name, kind]

    return get


def as_target(model: Llama, text: tuple[int, ...], count: int, sampling: Sampling) -> list[int]:
    engine = TorchCpuEngine(model, EngineSettings(kv_memory_mb=16), 4096, None)
    engine.add(Job(next(_ids), text, count, sampling=sampling))
    tokens: list[int] = []
    while events := engine.step():
        tokens += [token for event in events for token in event.tokens]
    return tokens


asked = st.lists(
    st.tuples(
        st.integers(0, 2),  # text
        st.sampled_from([1, 2, 5, 127, 128, 129, 200, 258]),  # so much of it
        st.integers(0, 3),  # other tokens behind that
        st.sampled_from([1, 2, 7, 16]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(KINDS), asked, st.sampled_from([0.0, 0.8]))
def test_it_guesses_what_it_would_choose_as_the_target(
    read: Callable, name: str, kind: str, questions: list[tuple[int, int, int, int]], heat: float
) -> None:
    model = read(name, kind)
    draft = DraftModel(model)
    header = document(9, 60)
    for which, length, other, wanted in questions:
        text = (header + document(which, 200))[:length] + document(length, other)
        sampling = Sampling(heat, top_p=0.9, seed=which)
        while not (got := draft.propose(text, wanted, sampling)):
            pass  # it reads a long text chunk by chunk
        assert list(got) == as_target(model, text, wanted, sampling)


def test_it_goes_on_from_its_own_guesses(read: Callable) -> None:
    model = read("qwen3", "int8")
    draft, text = DraftModel(model), document(1, 40)
    sampling = Sampling(0.8, seed=3)
    whole = draft.propose(text, 20, sampling)
    for length in range(1, 20):
        rest = draft.propose((*text, *whole[:length]), 20 - length, sampling)
        assert rest == whole[length:]


def test_memory_is_bounded_and_a_text_larger_than_it_is_served(read: Callable) -> None:
    model = read("heads-of-16", "int8")
    draft = DraftModel(model, kv_bytes=2**16)
    for number in range(4):
        text = document(number, 100)
        assert list(draft.propose(text, 3, Sampling())) == as_target(model, text, 3, Sampling())
        assert draft._cache.nbytes <= 2**16


def test_a_model_cut_short_is_the_same_model_with_fewer_layers(read: Callable) -> None:
    model = read("heads-of-16", "int8")
    text = document(2, 50)
    same = truncated(model, model.shape.layers)
    assert as_target(same, text, 9, Sampling()) == as_target(model, text, 9, Sampling())
    short = truncated(model, 1)
    assert short.shape.layers == 1 and short.is_compiled == model.is_compiled
    assert len(as_target(short, text, 9, Sampling())) == 9


# vocabularies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "model")


def draft_with(folder: Path, place: Path, change: Callable[[dict[str, int]], object]) -> Path:
    """The folder of a draft whose tokens are those of the target, changed."""
    place.mkdir(exist_ok=True)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = []
    change(content["model"]["vocab"])
    (place / "tokenizer.json").write_text(json.dumps(content))
    return place


def test_the_same_vocabulary_passes(folder: Path, tmp_path: Path) -> None:
    check_vocabulary(folder, folder)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    check_vocabulary(folder, tmp_path)
    check_vocabulary(folder, draft_with(folder, tmp_path, lambda vocabulary: None))


def test_a_vocabulary_that_differs_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    def swap(vocabulary: dict[str, int]) -> None:
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    a, _ = sorted((ids["a"], ids["b"]))
    with pytest.raises(ValueError, match=rf"2 token ids differ, the first is {a} \('a' and 'b'\)"):
        check_vocabulary(folder, draft_with(folder, tmp_path, swap))
    last = max(ids.values())
    name = next(token for token, id in ids.items() if id == last)
    with pytest.raises(ValueError, match=rf"1 token ids differ, the first is {last} .* and none\)"):
        check_vocabulary(folder, draft_with(folder, tmp_path, lambda known: known.pop(name)))
    with pytest.raises(
        ValueError, match=r"Name a draft of the same family in draft\.model"
    ) as more:
        larger = draft_with(folder, tmp_path, lambda known: known.update(more=last + 1))
        check_vocabulary(folder, larger)
    assert f"first is {last + 1} (none and 'more')" in str(more.value)
    assert str(larger) in str(more.value) and str(folder) in str(more.value)


def test_two_names_of_one_id_are_refused_as_well(folder: Path, tmp_path: Path) -> None:
    larger = draft_with(folder, tmp_path, lambda known: known.update(more=known["a"]))
    for pair in ((folder, larger), (larger, folder)):
        with pytest.raises(ValueError, match="1 token ids differ"):
            check_vocabulary(*pair)


@pytest.mark.parametrize("content", [None, "", "{}", "\x00"])
def test_a_tokenizer_that_cannot_be_read_is_a_sentence(
    folder: Path, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    for pair in ((folder, tmp_path), (tmp_path, folder)):
        with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read .* draft\.model"):
            check_vocabulary(*pair)


class Failing:
    """A draft model that has no memory at some of its turns."""

    cost = 0.1

    def __init__(self, fails: list[bool]) -> None:
        self.fails = fails
        self.asked = 0

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        self.asked += 1
        if self.fails[self.asked - 1]:
            raise MemoryError
        return (7,) * count


def guess(drafts: Drafts, id: int) -> bool:
    """Whether there is a guess for an answer, of three attempts."""
    own = drafts.of(Job(id, (1, 2), 20), (1, 2))
    return sum(len(own.propose(3)) for _ in range(3)) > 0


@pytest.mark.parametrize(
    ("fails", "kept"),
    [([True, True, False] * 4, True), ([False, False, False, True, True, True], False)],
)
def test_a_draft_model_is_given_up_when_it_fails_in_three_answers_in_a_row(
    fails: list[bool], kept: bool
) -> None:
    """After one failure the answer goes on without it, so that a moment's want is one failure."""
    model = Failing([*fails, *[False] * 100])
    drafts = Drafts(PassCost(((1, 1.0), (17, 1.0))), lookup=False, model=model, most=3)
    for id in range(8):
        guess(drafts, id)
    assert guess(drafts, 9) == kept
