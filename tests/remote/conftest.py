"""A real server, and what asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.daemon.load import end_of_text_ids
from completion_ls.engines.remote import breaker, http
from completion_ls.engines.remote.engine import RemoteEngine, connect
from completion_ls.prompt.build import Prompt, PromptBuilder
from support.remote.http import Server
from support.remote_llama import Llama, llama


@dataclass(frozen=True)
class Reader:
    """The default model's tokenizer, and prompts for it."""

    tokenizer: Tokenizer
    prompts: PromptBuilder

    def prompt(self, text: str) -> Prompt:
        return self.prompts.build(text, "", context="", budget=2000, suffix_share=0)


@pytest.fixture(scope="session")
def reader(default_model_folder: Path) -> Reader:
    tokenizer = Tokenizer.from_file(str(default_model_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ends = end_of_text_ids(default_model_folder)
    return Reader(tokenizer, PromptBuilder(tokenizer, "auto", ends))


@pytest.fixture
def server(default_model_folder: Path) -> Iterator[Llama]:
    """One that has read nothing yet."""
    with llama() as started:
        yield started


@pytest.fixture
def connected(reader: Reader) -> Iterator[Callable[[str], RemoteEngine]]:
    """Makes the engine of a server."""
    made = []

    def make(url: str) -> RemoteEngine:
        settings = RemoteSettings(url=url, timeout_s=60)
        engine = RemoteEngine(
            *connect(settings, reader.tokenizer, lambda text: None), reader.tokenizer
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


# for servers in the test's own process; a file that uses these has a fixture `tokenizer`

Connect = Callable[..., RemoteEngine]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSE_S", 0.01)
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(breaker, "LAST_PAUSE_S", 0.1)


@pytest.fixture
def told() -> list[str]:
    """What the engine says of the server's reach."""
    return []


@pytest.fixture
def engine_of(
    tokenizer: Tokenizer, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Makes the engine of a server."""
    made = []

    def make(
        server: Server, *, key: str = "", timeout_s: float = 5, **settings: Any
    ) -> RemoteEngine:
        monkeypatch.setenv("COMPLETION_LS_API_KEY", key)
        of = RemoteSettings(url=server.url, timeout_s=timeout_s, **settings)
        engine = RemoteEngine(*connect(of, tokenizer, told.append), tokenizer)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()
