"""Whether a model fills in the middle is seen from what it makes of lines that it is given around one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from completion_ls.bench.quality import logits
from completion_ls.engines.exl2.widths import OFFERED
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import load_native
from completion_ls.models.local import prepare
from completion_ls.prompt import build, formats
from completion_ls.prompt.build import PromptBuilder
from completion_ls.prompt.fim_probe import HELD_OUT, best_format, fills_in
from support.fim import tokenizer_for

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    """A model's that has a token a byte and those of a FIM format."""
    vocabulary = {
        token: id for id, token in enumerate([*FIM, *pre_tokenizers.ByteLevel.alphabet()])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(FIM))
    return PromptBuilder(tokenizer, "qwen", frozenset())


def test_a_model_that_knows_its_format_fills_in(prompts: PromptBuilder) -> None:
    known = {
        (tuple(prompts.fim_prompt(one.before, one.after)), prompts.section(one.line))
        for one in HELD_OUT
    }
    assert len(known) == len(HELD_OUT)

    def surprise(prompt: Sequence[int], tokens: Sequence[int]) -> float:
        return 1.0 if (tuple(prompt), tuple(tokens)) in known else 9.0

    assert fills_in(prompts, surprise)


@pytest.mark.parametrize("with_fim", [5.0, 5.1])
def test_a_model_that_the_text_below_helps_as_much_without_does_not(
    prompts: PromptBuilder, with_fim: float
) -> None:
    """What it makes of the text above alone is no measure."""
    marks = {prompts.fim_prompt("", "")[place] for place in range(3)}

    def surprise(prompt: Sequence[int], tokens: Sequence[int]) -> float:
        if marks & set(prompt):
            return with_fim
        starts = (prompts.section(one.before)[:5] for one in HELD_OUT)
        return 9.0 if tuple(prompt[:5]) in starts else 5.0

    assert not fills_in(prompts, surprise)


@pytest.mark.parametrize("trained", ["starcoder", "mellum"])
def test_of_formats_with_the_same_tokens_it_is_the_one_that_the_model_knows(trained: str) -> None:
    tokenizer = tokenizer_for("mellum")
    candidates = [
        PromptBuilder(tokenizer, fim.name, frozenset()) for fim in formats.fitting(tokenizer)
    ]
    first = formats.find_format(trained, tokenizer)
    assert first is not None and len(candidates) > 1
    mark = tokenizer.token_to_id(first.suffix if first.suffix_first else first.prefix)

    def surprise(prompt: Sequence[int], tokens: Sequence[int]) -> float:
        return 1.0 if prompt[0] == mark else 2.0

    assert best_format(candidates, surprise).fim == first


@pytest.mark.model
@pytest.mark.parametrize(
    "tokens",
    [("<|im_start|>", "<file_sep>", "<|im_end|>"), ("<repo_name>", "<file_sep>", "<filename>")],
)
def test_a_real_model_without_training_for_it_does_not(
    tokens: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that it has, used as if they were those of FIM."""
    folder = prepare("smollm2-135m-instruct").folder
    made_up = formats.FimFormat("made-up", *tokens)
    monkeypatch.setattr(build, "find_format", lambda *_: made_up)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = PromptBuilder(tokenizer, "auto", frozenset())
    model = Llama.read(folder, "int8", load_native())
    model.use_threads(1)
    asked = []

    def surprise(prompt: Sequence[int], tokens: Sequence[int]) -> float:
        text = [*prompt, *tokens]
        rows = logits(model, text[:-1], len(tokens)).log_softmax(-1)
        asked.append(-float(rows.gather(1, torch.tensor(tokens)[:, None]).sum()))
        return asked[-1]

    assert not fills_in(prompts, surprise)
    # It is not lost, and the text below does help it, as it would not where the format was wrong.
    assert len(asked) == 3 * len(HELD_OUT)
    assert sum(asked[1::3]) < sum(asked[2::3]) < 200


@pytest.mark.model
def test_lines_are_short_enough_for_one_pass() -> None:
    folder = prepare("smollm2-135m-instruct").folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for one in HELD_OUT:
        assert one.line.endswith("\n")
        assert len(tokenizer.encode(one.line, add_special_tokens=False).ids) <= OFFERED
