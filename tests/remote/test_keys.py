"""The key of a server: where it is found, where it may go, and where it must not stand."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from completion_ls.config import api_key as environment
from completion_ls.config.settings import RemoteSettings, Settings
from completion_ls.doctor import settings as doctor_settings
from completion_ls.doctor.lines import Notes
from completion_ls.engines.remote import keys
from completion_ls.engines.remote.errors import ServerError
from completion_ls.wire import attach
from completion_ls.wire.endpoint import DaemonConfig, Endpoint

URL = "https://gpu.example.org:8443/team"
SECRET = "sk-secret-123"


@pytest.fixture(autouse=True)
def nothing_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_key", "")
    monkeypatch.setitem(sys.modules, "keyring", None)  # as if it were not installed


class Ring(ModuleType):
    """The package `keyring` with these passwords, or an error for whoever asks."""

    def __init__(
        self, passwords: dict[tuple[str, str], str], error: Exception | None = None
    ) -> None:
        super().__init__("keyring")
        self.passwords, self.error = passwords, error

    def get_password(self, service: str, name: str) -> str | None:
        if self.error:
            raise self.error
        return self.passwords.get((service, name))


def test_without_a_key_anywhere_there_is_none() -> None:
    assert keys.api_key(URL) is None


def test_the_environment_goes_before_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring({("completion-ls", "gpu.example.org:8443"): SECRET})
    monkeypatch.setitem(sys.modules, "keyring", ring)
    assert keys.find(URL) == keys.Key(SECRET, "the keyring")
    assert keys.api_key("https://other.example.org") is None
    monkeypatch.setenv("COMPLETION_LS_API_KEY", " of-the-environment\n")
    assert keys.find(URL) == keys.Key("of-the-environment", "COMPLETION_LS_API_KEY")


def test_a_keyring_that_fails_is_no_key_and_a_line_without_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", Ring({}, RuntimeError(f"locked: {SECRET}")))
    with caplog.at_level(logging.DEBUG):
        assert keys.api_key(URL) is None
    assert "keyring" in caplog.text and "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("odd", ["a\nb", "a\x00b", "schlüssel", "two words", "a\x7f"])
def test_what_no_header_can_carry_is_refused_without_saying_it(
    monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.setitem(
        sys.modules, "keyring", Ring({("completion-ls", "gpu.example.org:8443"): odd})
    )
    with pytest.raises(ServerError, match="put it there again") as refusal:
        keys.api_key(URL)
    assert refusal.value.lasts and odd not in str(refusal.value)


def test_a_key_is_not_shown_with_what_holds_it() -> None:
    assert SECRET not in repr(keys.Key(SECRET, "here"))


HERE = ["http://127.0.0.1:8080", "http://localhost:8080/", "http://[::1]:8080", "http://127.9.9.9"]
ELSEWHERE = [
    "http://192.168.0.7:8080",
    "http://gpu.example.org",
    "http://0.0.0.0:1",
    "http://[::2]",
    "http://notlocalhost:8080",
    "http://localhost.example.org",
    "http://127.0.0.1.example.org",
]


@pytest.mark.parametrize("url", [*HERE, "https://gpu.example.org", "HTTPS://192.0.2.1/v1"])
def test_a_key_may_go_to_this_machine_and_anywhere_by_https(url: str) -> None:
    keys.check(url, SECRET)
    assert keys.is_this_machine(url) is (url in HERE)


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_key_does_not_go_elsewhere_by_plain_http(url: str) -> None:
    keys.check(url, None)
    with pytest.raises(ServerError, match="everybody to read") as refusal:
        keys.check(url, SECRET)
    assert refusal.value.lasts and SECRET not in str(refusal.value)
    assert not keys.is_this_machine(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "names no server"),
        ("gpu.example.org:8080", "does not begin with http"),
        ("ftp://gpu.example.org", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("http://", "names no host"),
        ("http://:8080", "names no host"),
        ("http://[::1", "cannot be read"),
        ("http://gpu:99999", "cannot be read"),
        (f"https://me:{SECRET}@gpu.example.org", "a name or a password"),
        (f"https://{SECRET}@gpu.example.org", "a name or a password"),
        (f"https://gpu.example.org/?key={SECRET}", "a query"),
        ("https://gpu.example.org?", "a query"),
        ("https://gpu.example.org/#x", "a query or a fragment"),
        ("https://gpu.example.org\n.evil", "control characters"),
        ("https://gpü.example.org", "beyond ASCII"),
    ],
)
def test_an_address_is_one_and_nothing_else(url: str, said: str) -> None:
    with pytest.raises(ServerError, match=said) as refusal:
        keys.check(url, None)
    assert refusal.value.lasts and SECRET not in str(refusal.value)


def configured(url: str = URL) -> Settings:
    return Settings.model_validate({"engine": {"kind": "remote"}, "remote": {"url": url}})


def test_a_daemon_has_the_same_name_whatever_the_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    without = DaemonConfig.of(configured()).identity
    monkeypatch.setenv("COMPLETION_LS_API_KEY", SECRET)
    again = DaemonConfig.of(configured())
    assert again.identity == without and SECRET not in again.model_dump_json()


@pytest.mark.parametrize("kind", ["torch_cpu", "remote"])
def test_only_a_daemon_that_needs_the_key_is_given_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    printed = tmp_path / "printed"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nenv > {printed}.new\nmv {printed}.new {printed}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("COMPLETION_LS_API_KEY", SECRET)
    environment.set_aside()
    assert "COMPLETION_LS_API_KEY" not in os.environ and keys.api_key(URL) == SECRET
    chosen = Settings.model_validate({"engine": {"kind": kind}, "remote": {"url": URL}})
    config = DaemonConfig.of(chosen)
    attach._spawn(config, tmp_path, None).wait(60)
    assert (SECRET in printed.read_text()) is (kind == "remote")


@pytest.mark.process
def test_what_a_command_starts_does_not_get_the_key(
    monkeypatch: pytest.MonkeyPatch, isolated: dict[str, str]
) -> None:
    """`doctor` starts the editors on the PATH, and `pull` pip: by then the variable is gone."""
    code = (
        "import os, sys; from completion_ls.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print('COMPLETION_LS_API_KEY' in os.environ)"
    )
    monkeypatch.setenv("COMPLETION_LS_API_KEY", SECRET)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_doctor_does_not_print_what_an_address_should_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for url in (f"https://me:{SECRET}@gpu.example.org", f"https://gpu.example.org?key={SECRET}"):
        monkeypatch.setenv("COMPLETION_LS_REMOTE__URL", url)
        notes = Notes("settings")
        chosen = doctor_settings.look(notes)
        assert chosen.settings.remote == RemoteSettings(url=url)
        assert SECRET not in json.dumps(chosen.origins) + repr(notes.lines)
        assert "gpu.example.org" in repr(notes.lines)


def test_a_name_of_a_socket_does_not_hold_an_address() -> None:
    assert "example" not in Endpoint.of(DaemonConfig.of(configured())).name
