"""A server with another vocabulary than ours, whose model has FIM tokens: llama.cpp's own, with a tiny model
of random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from completion_ls.config.settings import Settings
from completion_ls.daemon.load import Loaded, load
from completion_ls.decode.vocabulary import spelling_of
from completion_ls.engines.remote.ask import Gap
from completion_ls.engines.remote.engine import RemoteEngine
from completion_ls.prompt.build import Prompt
from completion_ls.wire.endpoint import DaemonConfig
from support.jobs import drain, job
from support.remote_llama import Llama, llama, write_fim_gguf
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.process

ABOVE = "def add(a, b):\n    return a + b\n\n\n" * 4
BELOW = "\n\nprint(add(1, 2))\n"
LINES = ["x = add(", "for val", "    ", "é = '日"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where our tokenizer is."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@contextmanager
def served(gguf: Path, folder: Path, marks: tuple[str, str, str]) -> Iterator[tuple[Llama, Loaded]]:
    write_fim_gguf(gguf, marks)
    with llama(gguf=gguf) as server:
        sections = {
            "model": {"name": str(folder)},
            "engine": {"kind": "remote"},
            "remote": {"url": server.url, "timeout_s": 60},
        }
        config = DaemonConfig.of(Settings.model_validate(sections))
        loaded = load(config, lambda text, fraction: None)
        yield server, loaded
        loaded.engine.close()


@pytest.fixture(scope="module")
def of_known_names(
    tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Iterator[tuple[Llama, Loaded]]:
    gguf = tmp_path_factory.mktemp("known") / "fim.gguf"
    with served(gguf, folder, ("<fim-prefix>", "<fim-suffix>", "<fim-middle>")) as found:
        yield found


@pytest.fixture(scope="module")
def of_other_names(
    tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Iterator[tuple[Llama, Loaded]]:
    gguf = tmp_path_factory.mktemp("other") / "fim.gguf"
    with served(gguf, folder, ("<our-p>", "<our-s>", "<our-m>")) as found:
        yield found


def prompt_of(loaded: Loaded, line: str) -> Prompt:
    text = ABOVE + line
    return loaded.prompts.build(text, BELOW, context="", budget=500, suffix_share=0.3)


def said(loaded: Loaded, prompt: Prompt, most: int = 12) -> bytes:
    """The answer, with the word that it begins with."""
    wanted = job(prompt.ids, most, unfinished=prompt.unfinished, document="a")
    loaded.engine.add(wanted)
    events = list(drain(loaded.engine, 100_000))
    spell = spelling_of(loaded.tokenizer)
    return b"".join(spell(token) for event in events for token in event.tokens)


def greedy(server: Llama, path: str, wanted: dict[str, object]) -> bytes:
    options = {"n_predict": 12, "temperature": 0, "samplers": ["temperature"]}
    return str(server.post(path, {**options, **wanted})["content"]).encode()


@pytest.mark.parametrize("line", LINES)
def test_a_server_whose_fim_tokens_are_known_is_sent_them_by_name(
    of_known_names: tuple[Llama, Loaded], line: str
) -> None:
    """So that what is typed stands last, and its cache serves."""
    server, loaded = of_known_names
    assert loaded.prompts.format_name == "santacoder"
    prompt = prompt_of(loaded, line)
    found = said(loaded, prompt)
    typed = prompt.typed.encode()
    assert found.startswith(typed)
    text = engine_of(loaded)._desk.texts.render(prompt.before).prompt
    assert isinstance(text, str) and text.startswith("<fim-prefix>") and "<fim-middle>" in text
    assert BELOW in text and (text + prompt.typed).endswith(line)
    healed = greedy(server, "/completion", {"prompt": text})
    whole = greedy(server, "/completion", {"prompt": text + prompt.typed})
    expected = healed if healed.startswith(typed) else typed + whole
    assert found[: len(typed) + 2] == expected[: len(typed) + 2]


def test_the_next_key_costs_such_a_server_little(of_known_names: tuple[Llama, Loaded]) -> None:
    _, loaded = of_known_names
    computed = []
    for length in range(1, 20):
        prompt = prompt_of(loaded, "x = add(first, second)"[:length])
        wanted = job(prompt.ids, 3, unfinished=prompt.unfinished, document="b")
        loaded.engine.add(wanted)
        computed.append(list(drain(loaded.engine, 100_000))[-1].computed)
    assert sorted(computed[1:])[len(computed) // 2] <= 8  # a token is a byte in that vocabulary


@pytest.mark.parametrize("line", LINES)
def test_a_server_whose_fim_tokens_nobody_knows_makes_the_prompt_itself(
    of_other_names: tuple[Llama, Loaded], line: str
) -> None:
    server, loaded = of_other_names
    prompt = prompt_of(loaded, line)
    found = said(loaded, prompt)
    typed = prompt.typed.encode()
    assert found.startswith(typed)
    gap = engine_of(loaded)._desk.texts.render(prompt.before).prompt
    assert isinstance(gap, Gap)
    assert gap.before + prompt.typed == ABOVE + line and gap.after == BELOW
    texts = {"input_suffix": BELOW, "input_prefix": gap.before}
    healed = greedy(server, "/infill", texts)
    whole = greedy(server, "/infill", {**texts, "input_prefix": ABOVE + line})
    expected = healed if healed.startswith(typed) else typed + whole
    assert found[: len(typed) + 2] == expected[: len(typed) + 2]


def engine_of(loaded: Loaded) -> RemoteEngine:
    assert isinstance(loaded.engine, RemoteEngine)
    return loaded.engine
