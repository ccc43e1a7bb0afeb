"""A server that makes the FIM prompt itself: llama.cpp's own, of a tiny model that has FIM tokens and
another vocabulary than ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import Settings
from completion_ls.daemon.load import Loaded, load
from completion_ls.engines.contract import Job
from completion_ls.wire.endpoint import DaemonConfig
from support.jobs import drain
from support.remote_llama import Llama, llama, write_fim_gguf
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.process

ABOVE = "def add(a, b):\n    return a + b\n\n\n" * 4
BELOW = "\n\nprint(add(1, 2))\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    gguf = tmp_path_factory.mktemp("fim") / "fim.gguf"
    write_fim_gguf(gguf)
    with llama(gguf=gguf) as started:
        yield started


@pytest.fixture(scope="module")
def loaded(server: Llama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    sections = {
        "model": {"name": str(folder)},
        "engine": {"kind": "remote"},
        "remote": {"url": server.url, "timeout_s": 60},
    }
    config = DaemonConfig.of(Settings.model_validate(sections))
    found = load(config, lambda text, fraction: None)
    yield found
    found.engine.close()


@pytest.mark.parametrize("line", ["x = add(", "for val", "    ", "é = '日"])
def test_the_server_is_given_what_stands_before_and_behind_the_gap(
    server: Llama, loaded: Loaded, line: str
) -> None:
    assert loaded.prompts.format_name == "qwen"  # whose tokens ours has not, but for the marks
    prompt = loaded.prompts.build(
        ABOVE + line, BELOW, context="", budget=500, suffix_share=0.3, repository=None
    )
    loaded.engine.add(Job(1, prompt.ids, 12, unfinished=prompt.unfinished, document="a"))
    events = list(drain(loaded.engine, 100_000))
    spell = loaded_spelling(loaded.tokenizer)
    said = b"".join(spell(token) for event in events for token in event.tokens)
    typed = prompt.unfinished.text if prompt.unfinished else b""
    assert said.startswith(typed)
    # Typed lines from the anchor on stand behind the middle mark, and so the prefix stays as it is.
    texts = {"input_prefix": ABOVE, "input_suffix": BELOW, "n_predict": 12, "temperature": 0}
    samplers = {"samplers": ["temperature"]}
    whole = server.post("/infill", {**texts, **samplers, "prompt": line})["content"].encode()
    before = line.encode()[: len(line.encode()) - len(typed)].decode()
    healed = server.post("/infill", {**texts, **samplers, "prompt": before})["content"].encode()
    expected = healed if healed.startswith(typed) else typed + whole
    assert said[:8] == expected[:8]


def loaded_spelling(tokenizer: Tokenizer):  # type: ignore[no-untyped-def]
    from completion_ls.decode.vocabulary import spelling_of

    return spelling_of(tokenizer)


def test_the_next_key_costs_the_server_little(loaded: Loaded) -> None:
    computed = []
    for length in range(1, 20):
        text = ABOVE + "x = add(first, second)"[:length]
        prompt = loaded.prompts.build(text, BELOW, context="", budget=500, suffix_share=0.3)
        wanted = Job(100 + length, prompt.ids, 3, unfinished=prompt.unfinished, document="b")
        loaded.engine.add(wanted)
        computed.append(list(drain(loaded.engine, 100_000))[-1].computed)
    assert sorted(computed[1:])[len(computed) // 2] <= 8  # a token is a byte in that vocabulary


def test_the_parts_of_a_prompt_are_found(loaded: Loaded, tmp_path: Path) -> None:
    from completion_ls.engines.remote.ask import Gap
    from completion_ls.engines.remote.engine import RemoteEngine

    engine = loaded.engine
    assert isinstance(engine, RemoteEngine)
    prompt = loaded.prompts.build(
        ABOVE + "x = 1\ny = ", BELOW, context="", budget=500, suffix_share=0.3
    )
    gap = engine._desk.texts.render(prompt.ids).prompt
    assert isinstance(gap, Gap)
    assert gap.before + gap.typed == ABOVE + "x = 1\ny = "
    assert gap.after == BELOW and gap.typed
