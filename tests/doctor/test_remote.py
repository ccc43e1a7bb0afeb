"""What the doctor says of a server that computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.doctor import remote
from completion_ls.doctor.examine import examine
from completion_ls.doctor.lines import Line, Notes
from completion_ls.engines.remote import probe
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.errors import ServerError
from completion_ls.models.store import silent
from support.tiny_model import write_tiny_model

Lines = Callable[[Callable[[Notes], Any]], dict[str, Line]]

HERE = RemoteSettings(url="http://127.0.0.1:9")
SECRET = "sk-secret-123"
ALL = Abilities(
    dialect="openai",
    software="vLLM 0.11.2",
    model="owner/far",
    max_context=8192,
    slots=None,
    same_tokens=True,
    token_prompts=True,
    token_ids=True,
    logprobs=20,
    counts_reuse=True,
    reuses=True,
    fills_in="suffix",
)


@pytest.fixture
def can(
    monkeypatch: pytest.MonkeyPatch, lines: Lines, tmp_path: Path
) -> Callable[..., dict[str, Line]]:
    """The lines on a server that can what `ALL` can, but for what is given."""
    file = write_tiny_model(tmp_path / "model") / "tokenizer.json"

    def of(**but: Any) -> dict[str, Line]:
        monkeypatch.setattr(probe, "look", lambda settings, tokenizer: replace(ALL, **but))
        return lines(lambda n: remote.look(n, HERE, Tokenizer.from_file(str(file))))

    return of


def test_a_server_that_can_everything_is_no_remark(can: Callable[..., dict[str, Line]]) -> None:
    found = can()
    assert {line.verdict for line in found.values()} == {"ok"}
    assert "vLLM 0.11.2" in found["server"].text and "owner/far" in found["server"].text
    assert "8,192" in found["context"].text
    assert "slots" not in found
    assert "4 prompts" in can(slots=4)["slots"].text


@pytest.mark.parametrize(
    ("but", "name", "says"),
    [
        ({"max_context": None}, "context", "does not say how many"),
        ({"same_tokens": False}, "vocabulary", "Set model.name to the model that the server has"),
        ({"same_tokens": None}, "vocabulary", "does not say which tokens"),
        ({"token_prompts": False}, "tokens", "does not take prompts as tokens"),
        ({"token_ids": False}, "tokens", "does not tell the tokens of its answers"),
        ({"logprobs": 0}, "probabilities", "completion.show_above has no effect"),
        ({"logprobs": 0}, "unfinished words", "taken off the prompt"),
        ({"same_tokens": False}, "unfinished words", "taken off the prompt"),
        ({"reuses": False}, "prefix cache", "the whole prompt at every key"),
    ],
)
def test_what_a_server_lacks_is_a_remark_in_plain_words(
    can: Callable[..., dict[str, Line]], but: dict[str, Any], name: str, says: str
) -> None:
    line = can(**but)[name]
    assert line.verdict == "remark" and says in line.text


def test_a_server_that_does_not_count_is_no_remark(can: Callable[..., dict[str, Line]]) -> None:
    assert can(reuses=None)["prefix cache"].verdict == "ok"


def test_of_a_key_only_the_place_is_said(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none" in lines(lambda n: remote.address(n, HERE))["key"].text
    monkeypatch.setenv("COMPLETION_LS_API_KEY", SECRET)
    found = lines(lambda n: remote.address(n, HERE))
    assert "COMPLETION_LS_API_KEY" in found["key"].text
    assert SECRET not in repr(found)
    far = RemoteSettings(url="http://gpu.example.org")
    assert lines(lambda n: remote.address(n, far))["address"].verdict == "failed"


def test_code_in_clear_text_is_a_remark(lines: Lines) -> None:
    line = lines(lambda n: remote.address(n, RemoteSettings(url="http://gpu.example.org")))[
        "address"
    ]
    assert line.verdict == "remark" and "in clear text" in line.text
    safe = RemoteSettings(url="https://gpu.example.org")
    assert lines(lambda n: remote.address(n, safe))["address"].verdict == "ok"


@pytest.fixture
def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_ENGINE__KIND", "remote")
    monkeypatch.setenv("COMPLETION_LS_REMOTE__URL", "http://127.0.0.1:9")


def test_a_server_that_cannot_be_reached_fails_and_nothing_else_is_tried(
    chosen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(settings: RemoteSettings, tokenizer: Tokenizer) -> Abilities:
        raise ServerError("The server 127.0.0.1:9 cannot be reached.", lasts=True)

    monkeypatch.setattr(probe, "look", away)
    report = examine(silent)
    assert [line.text for line in report.failed] == ["The server 127.0.0.1:9 cannot be reached."]
    tried = [line.text for line in report.lines if line.group == "one keystroke"]
    assert tried == ["Not tried, as something that it needs failed above."]


def test_what_is_of_local_weights_alone_is_left_out(
    chosen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_REMOTE__FALLBACK", "cpu")
    monkeypatch.setattr(probe, "look", lambda settings, tokenizer: ALL)
    monkeypatch.setattr("completion_ls.doctor.keystroke.look", lambda *given: {})
    report = examine(silent)
    groups = {line.group for line in report.lines}
    assert "server" in groups and not groups & {"processor", "card", "memory plan"}
    names = [line.name for line in report.lines if line.group == "model files"]
    assert names == ["tokenizer of", "fallback"]


def test_without_a_tokenizer_the_server_is_not_tried(
    chosen: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", "smollm2-135m-instruct")
    monkeypatch.setattr(probe, "look", lambda *given: pytest.fail("it was asked"))
    report = examine(silent)
    assert any("needs the tokenizer of model.name" in line.text for line in report.lines)
