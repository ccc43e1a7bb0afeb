"""An engine on exllamav2 from settings and folders, on the reference kernels."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3Config

from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.daemon.load import load as load_for_daemon
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Job, Sampling, Unfinished
from completion_ls.engines.exl2 import loading
from completion_ls.engines.exl2.checks import Card, check_architecture
from completion_ls.engines.exl2.loading import load
from completion_ls.engines.exl2.widths import OFFERED, WIDTHS
from completion_ls.engines.vram import SHORTEST_CONTEXT, plan_vram
from completion_ls.engines.vram_model import _ARCHITECTURES
from completion_ls.models.errors import ModelError
from completion_ls.wire.endpoint import DaemonConfig
from support.exl2.install import install
from support.exl2.tiny import (
    VOCABULARY,
    CacheKind,
    TinyModels,
    load_model,
    load_tokenizer,
    make_cache,
    random_model,
)
from support.exl2.weights import export, read_dequantized

pytestmark = pytest.mark.exl2

SETTINGS = EngineSettings(kind="exllamav2", context=4096, prefill_chunk=512, kv_cache="fp16")
NO_DRAFTS = DraftSettings(lookup=False, max_tokens=0)
LARGE = Card("reference", 2**40)
HOT = Sampling(temperature=5.0, seed=3)

_ids = count(1)


def large() -> Card:
    return LARGE


def never() -> Card:
    raise AssertionError("the card is not to be looked at")


def run(
    engine: Any, prompt: Sequence[int], tokens: int, sampling: Sampling | None = None
) -> list[int]:
    engine.add(Job(next(_ids), tuple(prompt), tokens, sampling=sampling or Sampling()))
    found: list[int] = []
    for _ in range(2000):
        events = engine.step()
        if not events:
            return found
        found += [token for event in events for token in event.tokens]
    raise AssertionError("it never ends")


@pytest.fixture(scope="module")
def drafting(pair: TinyModels) -> Any:
    """An engine with the draft model alone."""
    draft = DraftSettings(lookup=False, max_tokens=16)
    return load(pair.target, SETTINGS, draft=draft, draft_folder=pair.draft, card=large)


@pytest.fixture
def changed(pair: TinyModels, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the target or the draft with other values in config.json; None takes one out."""

    def make(which: str = "target", **values: Any) -> Path:
        folder = tmp_path / which
        shutil.copytree(getattr(pair, which), folder)
        config = json.loads((folder / "config.json").read_text()) | values
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.mark.parametrize("cache", get_args(CacheKind))
def test_answers_are_those_of_an_engine_put_together_by_hand(
    pair: TinyModels, text: list[int], cache: CacheKind
) -> None:
    """With drafts in float16 alone: within a pass, tokens see each other's keys as they were before
    they are packed, so with fewer bits it matters a little what goes through in one pass."""
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedGenerator

    model = load_model(pair.target)
    generator = PagedGenerator(
        model,
        make_cache(model, cache, 4096),
        load_tokenizer(model),
        max_batch_size=1,
        max_q_size=32,
        max_chunk_size=512,
    )
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    plain = Exl2Engine(generator, 4096, 512, Vocabulary(tokenizer))
    settings = SETTINGS.model_copy(update={"kv_cache": cache})
    draft, small = (DraftSettings(), pair.draft) if cache == "fp16" else (NO_DRAFTS, None)
    loaded = load(pair.target, settings, draft=draft, draft_folder=small, card=large)
    assert type(loaded._generator.cache).__name__ == type(generator.cache).__name__
    for length in (40, 300, 301):
        for sampling in (Sampling(), Sampling(temperature=0.8, top_p=0.95, seed=7)):
            wanted = run(plain, text[:length], 12, sampling)
            assert run(loaded, text[:length], 12, sampling) == wanted
    assert (loaded.passes < plain.passes) == (cache == "fp16")
    assert loaded.max_context == plain.max_context


def test_sizes_are_those_that_the_memory_plan_counts_on(drafting: Any) -> None:
    generator = drafting._generator
    for model in (generator.model, generator.draft_model):
        config = model.config
        assert (config.max_seq_len, config.max_input_len, config.max_batch_size) == (4096, 512, 1)
    assert generator.cache.max_seq_len == generator.draft_cache.max_seq_len == 4096
    assert type(generator.draft_cache).__name__ == "ExLlamaV2Cache"


@pytest.mark.parametrize(
    ("asked", "chunk"), [(16, 256), (256, 256), (257, 512), (2048, 2048), (4096, 2048)]
)
def test_chunks_are_whole_pages(asked: int, chunk: int) -> None:
    assert loading.chunk(EngineSettings(prefill_chunk=asked)) == chunk


def test_the_warm_up_leaves_nothing_and_tells_how_far_it_is(pair: TinyModels) -> None:
    told: list[tuple[str, float]] = []
    engine = load(
        pair.target,
        SETTINGS,
        draft=DraftSettings(),
        draft_folder=pair.draft,
        card=large,
        progress=lambda text, fraction: told.append((text, fraction)),
    )
    assert engine.stats().sequences_cached == 0 and engine.passes == 0
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions) and fractions[0] >= 0 and fractions[-1] < 1
    assert {text for text, _ in told} == {"Loading target", "Loading draft", "Warming up"}
    assert engine._guesser is not None and engine._guesser.cost > 0


def test_the_warm_up_measures_each_width(drafting: Any) -> None:
    cost, draft_cost = loading.warm_up(drafting._generator)
    assert [width for width, _ in cost.points] == [1, 2, 4, 5, 8, 9, 16]
    assert cost(2) == cost(4) and cost(5) == cost(8) and cost(9) == cost(16)
    assert draft_cost > 0


def test_on_a_gpu_each_width_is_warmed_up_until_it_is_settled(
    drafting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that it then is: that was only read."""
    generator = drafting._generator
    widths: Counter[int] = Counter()
    look, guess = generator.look, generator.look_with_draft

    def counted_look(job: Any, offered: Sequence[int]) -> Any:
        widths[1 + len(offered)] += 1
        return look(job, offered)

    def counted_guess(job: Any, tokens: Sequence[int], start: int) -> Any:
        widths[-len(tokens)] += 1
        return guess(job, tokens, start)

    monkeypatch.setattr(generator, "look", counted_look)
    monkeypatch.setattr(generator, "look_with_draft", counted_guess)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "SETTLED", 3)
    loading.warm_up(generator)
    assert widths == dict.fromkeys([-2, -1, 1, 4, 8, 16], 3 + loading.ROUNDS)


def test_the_smallest_context_can_be_warmed_up(pair: TinyModels, text: list[int]) -> None:
    small = SETTINGS.model_copy(update={"context": 2048})
    engine = load(pair.target, small, 500, draft=NO_DRAFTS, card=large)
    assert engine.max_context == 500
    assert len(run(engine, text[:480], 20)) == 20
    with pytest.raises(ValueError, match="500"):
        engine.add(Job(next(_ids), tuple(text[:481]), 20))


def test_all_passes_have_widths_that_are_warm(
    drafting: Any, pair: TinyModels, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of other lengths and unfinished words, too, and what fills them up is never seen."""
    generator = drafting._generator
    widths: set[int] = set()
    forward = generator.model.forward_chunk

    def recorded(**asked: Any) -> Any:
        if not asked.get("preprocess_only"):
            widths.add(asked["input_ids"].shape[-1])
        return forward(**asked)

    monkeypatch.setattr(generator.model, "forward_chunk", recorded)
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    word = tokenizer.encode(" completion").ids
    assert 1 < len(word) < max(WIDTHS)
    covering = Job(
        next(_ids), (*text[:50], *word), 60, unfinished=Unfinished(b" completion", len(word))
    )
    drafting.add(covering)
    while drafting.step():
        pass
    assert run(drafting, text[:300], 60)
    assert len(widths) > 1 and widths <= set(WIDTHS)  # the tiny models have read our own sources
    job = generator.begin(text[:40], 2 * OFFERED)
    while job.position < 39:
        generator.read(job, 512)
    rows = generator.look(job, text[40:45])
    assert rows.shape == (6, VOCABULARY)
    assert torch.equal(rows[0], generator.look(job, text[40:47])[0])
    generator.end(job)


# what exllamav2 does wrong, or does not check


@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 33])
def test_as_many_tokens_as_were_asked_for(drafting: Any, text: list[int], tokens: int) -> None:
    """Its own generator takes the longest draft off `max_new_tokens`."""
    assert len(run(drafting, text[:60], tokens)) == tokens


def test_the_longest_drafts_are_looked_at_in_one_pass(drafting: Any, text: list[int]) -> None:
    """Its own generator fails where a draft has `max_q_size` tokens."""
    generator = drafting._generator
    job = generator.begin(text[:300], 2 * OFFERED)
    while job.position < 299:
        generator.read(job, 512)
    assert len(generator.look(job, [7] * OFFERED)) == 1 + OFFERED
    generator.end(job)


def test_repeated_tokens_are_not_punished(pair: TinyModels, text: list[int]) -> None:
    """Its own settings have a penalty by default."""
    engine = load(pair.target, SETTINGS, draft=NO_DRAFTS, card=large)
    prompt = text[:30] * 4
    tokens = run(engine, prompt, 30)
    with torch.inference_mode():
        model = read_dequantized(pair.target, torch.float64)
        rows = model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
    rows = rows[:, :VOCABULARY]
    behind = rows.amax(-1) - rows[range(len(tokens)), tokens]
    assert (behind < 0.03 * rows.std()).all()


def test_logits_have_room_for_one_job(drafting: Any) -> None:
    """By default it reserves for as many as fit into a chunk: a gigabyte and more."""
    generator = drafting._generator
    assert generator.logits_pinned.shape[:2] == (1, OFFERED)


def test_attention_that_is_not_causal_is_switched_off(drafting: Any) -> None:
    """It is the second choice where pages are not to be had."""
    generator = drafting._generator
    assert generator.model.config.no_sdpa and generator.draft_model.config.no_sdpa


def test_pages_are_not_moved_to_close_gaps(
    drafting: Any, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves them when the last job has ended, and the next key would wait."""
    generator = drafting._generator
    moves: list[int] = []
    monkeypatch.setattr(
        type(generator).__mro__[1], "defrag_cache", lambda _: moves.append(1), raising=True
    )
    type(generator).__mro__[1].defrag_cache(generator)
    assert moves == [1]
    for start in (0, 300, 600):
        run(drafting, text[start : start + 300], 5)
    generator.defrag_cache()
    assert moves == [1]


def test_no_token_is_of_the_padding(drafting: Any, text: list[int]) -> None:
    """The models have rows for more tokens than there are."""
    assert drafting._generator.model.config.vocab_size > VOCABULARY
    assert max(run(drafting, text[:50], 200, HOT)) < VOCABULARY


def test_no_flash_attention_is_refused(pair: TinyModels) -> None:
    """Its other attention over a prompt is not causal."""
    install(flash_attention=False)
    try:
        with pytest.raises(RuntimeError, match="flash-attn, without which"):
            load(pair.target, SETTINGS, draft=NO_DRAFTS, card=large)
    finally:
        install()


def test_flash_attention_that_is_switched_off_is_refused(
    pair: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXLLAMA_NO_FLASH_ATTN", "1")
    with pytest.raises(RuntimeError, match="unset the variable"):
        load(pair.target, SETTINGS, draft=NO_DRAFTS, card=large)


def test_an_unknown_architecture_is_refused(changed: Callable[..., Path]) -> None:
    """It would be loaded as Llama."""
    folder = changed(architectures=["Qwen9ForCausalLM"])
    with pytest.raises(ValueError, match="'Qwen9ForCausalLM' is not supported"):
        load(folder, SETTINGS, draft=NO_DRAFTS, card=never)


def test_exllamav2s_own_list_counts(exllamav2: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def taken_for(name: str) -> str:
        params = importlib.import_module("exllamav2.architecture").ExLlamaV2ArchParams
        return str(params(name, {}).arch_string)

    for name in _ARCHITECTURES:
        check_architecture(name, taken_for(name))
    with pytest.raises(ValueError, match="does not know the architecture 'Qwen9ForCausalLM'"):
        check_architecture("Qwen9ForCausalLM", taken_for("Qwen9ForCausalLM"))
    assert "Loading as LlamaForCausalLM" in capsys.readouterr().out


def test_the_head_norm_of_qwen3_is_one_of_squares(
    pair: TinyModels, text: list[int], tmp_path: Path
) -> None:
    """It takes it for a layer norm."""
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    export(random_model(config, seed=5), tmp_path, bits=6)
    shutil.copy(pair.target / "tokenizer.json", tmp_path)
    engine = load(tmp_path, SETTINGS, draft=NO_DRAFTS, card=large)
    generator = engine._generator
    job = generator.begin(text[:80], 32)
    generator.read(job, 512)
    row = generator.look(job, ())[0]
    with torch.inference_mode():
        expected = read_dequantized(tmp_path, torch.float64)(torch.tensor([text[:80]])).logits
    error = (row - expected[0, -1, :VOCABULARY].float()).abs()
    assert error.max() < 0.02 * expected.abs().max()


def test_a_draft_of_another_vocabulary_is_refused(
    pair: TinyModels, changed: Callable[..., Path]
) -> None:
    folder = changed("draft")
    file = folder / "tokenizer.json"
    known = json.loads(file.read_text())
    words = known["model"]["vocab"]
    one, other = [word for word, number in words.items() if number in (100, 101)]
    words[one], words[other] = words[other], words[one]
    file.write_text(json.dumps(known))
    with pytest.raises(ValueError, match="2 token ids differ, the first is 100"):
        load(pair.target, SETTINGS, draft=DraftSettings(), draft_folder=folder, card=large)


# what is refused before anything is loaded


def test_no_room_is_refused_with_what_would_fit(
    pair: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_load(*_: object) -> None:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(loading, "_generator", no_load)
    asked = loading.planned(pair.target, SETTINGS, None)
    need = plan_vram(asked, loading.passes(SETTINGS)).total
    with pytest.raises(ValueError, match="nearest setting that fits is a q6 KV cache") as refusal:
        load(pair.target, SETTINGS, draft=NO_DRAFTS, card=lambda: Card("small", need - 1))
    assert "target KV cache (fp16, 4,096 tokens)" in str(refusal.value)
    assert str(refusal.value).splitlines()[-1].startswith("missing")
    with pytest.raises(ValueError, match="Nothing nearer fits"):
        load(pair.target, SETTINGS, draft=NO_DRAFTS, card=lambda: Card("tiny", 2**20))
    with pytest.raises(AssertionError, match="it was loaded"):
        load(pair.target, SETTINGS, draft=NO_DRAFTS, card=lambda: Card("enough", need))


def test_a_smaller_draft_that_is_here_is_advised(
    pair: TinyModels, tiny: TinyModels, tmp_path: Path
) -> None:
    """Of the same vocabulary, and only where no shorter context would do with the draft that is
    asked for."""
    stranger = tmp_path / "stranger"
    shutil.copytree(tiny.draft, stranger)
    other = json.loads((stranger / "tokenizer.json").read_text())
    other["added_tokens"][0]["content"] = "<|other|>"
    (stranger / "tokenizer.json").write_text(json.dumps(other))
    here = {
        "other/vocabulary": stranger,
        "small/draft": tiny.draft,
        "as/large": pair.draft,
        "no/model": tmp_path,
    }
    asked = loading.planned(pair.target, SETTINGS, pair.draft)
    assert asked.context == SHORTEST_CONTEXT
    least = replace(asked, cache="q4")
    need = plan_vram(least, loading.passes(SETTINGS)).total
    for free, advice in (
        (need, r"a q4 KV cache \("),
        (need - 1, r"(a q\d KV cache and )?the draft small/draft \("),
    ):
        with pytest.raises(ValueError, match="The nearest setting that fits is " + advice):
            load(
                pair.target,
                SETTINGS,
                draft=DraftSettings(),
                draft_folder=pair.draft,
                drafts_here=here,
                card=lambda free=free: Card("small", free),
            )


def test_models_that_know_too_few_positions(pair: TinyModels, changed: Callable[..., Path]) -> None:
    short = changed("draft", max_position_embeddings=3000)
    with pytest.raises(ValueError, match=r"draft model in .* Set engine.context to 2816 or less"):
        load(pair.target, SETTINGS, draft=DraftSettings(), draft_folder=short, card=never)
    with pytest.raises(ValueError, match=r"^The model in .* knows 4,096 positions"):
        long = SETTINGS.model_copy(update={"context": 8192})
        load(pair.target, long, draft=NO_DRAFTS, card=never)


def test_a_rope_that_exllamav2_does_not_find(changed: Callable[..., Path]) -> None:
    folder = changed(rope_theta=None, rope_parameters={"rope_theta": 1000000.0})
    with pytest.raises(ValueError, match=r'Add "rope_theta": 1000000.0 there'):
        load(folder, SETTINGS, draft=NO_DRAFTS, card=never)


@pytest.fixture
def without_modules() -> Iterator[Callable[[Path], str]]:
    """What a fresh process says of a folder, and whether it had imported torch by then."""

    def say(folder: Path) -> str:
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from completion_ls.config.settings import DraftSettings, EngineSettings\n"
            "from completion_ls.engines.exl2.loading import load\n"
            "settings = EngineSettings(kind='exllamav2', context=4096)\n"
            "try:\n"
            "    load(Path(sys.argv[1]), settings, draft=DraftSettings())\n"
            "except (ValueError, RuntimeError) as error:\n"
            "    print(error)\n"
            "print({'torch', 'exllamav2'} & set(sys.modules))\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    yield say


def test_torch_is_not_imported_to_say_no(
    pair: TinyModels, changed: Callable[..., Path], without_modules: Callable[[Path], str]
) -> None:
    said = without_modules(changed(rope_theta=None))
    assert "rope_theta" in said and said.endswith("set()\n")
    said = without_modules(pair.target)
    assert "The exllamav2 engine cannot run here." in said and said.endswith("set()\n")


def test_the_daemon_takes_the_engine_of_the_settings(pair: TinyModels, text: list[int]) -> None:
    config = DaemonConfig.model_validate(
        {
            "model": {"name": str(pair.target)},
            "engine": {"kind": "exllamav2", "context": 4096},
            "draft": {},
            "daemon": {},
            "log_level": "warning",
        }
    )
    with pytest.raises(RuntimeError, match="The exllamav2 engine cannot run here"):
        load_for_daemon(config, loading.silent)
    gguf = config.model_copy(
        update={"model": config.model.model_copy(update={"name": "smollm2-135m-instruct"})}
    )
    with pytest.raises(ModelError, match="reads folders of EXL2 models only"):
        load_for_daemon(gguf, loading.silent)


@pytest.mark.parametrize(
    ("verdict", "format_name", "fim", "says"),
    [
        (True, "auto", "qwen", "target is loaded"),
        (False, "auto", None, "target is loaded"),
        (False, "qwen", "qwen", "target is loaded; it does better without FIM"),
        (False, "plain", None, "target is loaded"),
        (ValueError("no such tokens"), "auto", None, "target is loaded"),
        (torch.cuda.OutOfMemoryError("short"), "auto", "qwen", "target is loaded"),
    ],
)
def test_fim_is_used_where_it_works(
    pair: TinyModels,
    monkeypatch: pytest.MonkeyPatch,
    verdict: bool | Exception,
    format_name: str,
    fim: str | None,
    says: str,
) -> None:
    """Whoever names the format gets it, and is told."""
    asked: list[float] = []

    def judge(prompts: Any, surprise: Callable[..., float]) -> bool:
        asked.append(surprise(prompts.fim_prompt("a", "b"), prompts.section("c")))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    monkeypatch.setattr("completion_ls.daemon.load.fills_in", judge)
    monkeypatch.setattr(
        loading.load, "__kwdefaults__", loading.load.__kwdefaults__ | {"card": large}
    )
    config = DaemonConfig.model_validate(
        {
            "model": {"name": str(pair.target), "format": format_name},
            "engine": {"kind": "exllamav2", "context": 4096},
            "draft": {},
            "daemon": {},
            "log_level": "warning",
        }
    )
    told: list[str] = []
    loaded = load_for_daemon(config, lambda text, fraction: told.append(text))
    assert (loaded.prompts.fim.name if loaded.prompts.fim else None) == fim
    assert told[-1].startswith(says) and (";" in says) == (";" in told[-1])
    assert all(value > 0 for value in asked) and len(asked) == (format_name != "plain")
