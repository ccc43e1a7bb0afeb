"""Where text and key go that are meant for a server: to that server and nowhere else."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.engines.remote import http
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.probe import look
from support.certificates import certificate
from support.remote import faults
from support.remote.http import serving
from support.remote.model import HashedModel
from support.remote.vllm import Vllm
from support.tokenizer_kinds import KINDS


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return KINDS["qwen2"]()


@pytest.fixture
def server(tokenizer: Tokenizer) -> Vllm:
    return Vllm(HashedModel(tokenizer), key="secret")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_API_KEY", "secret")


def context(folder: Path, name: str = "IP:127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    made, key = certificate(folder, name)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(made, key)
    return of_server, made


@pytest.fixture(params=["of this machine", "of another machine"])
def _whose(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of this machine, and the same one asked as any other would be."""
    if request.param == "of another machine":
        monkeypatch.setattr(http, "is_this_machine", lambda url: False)
        for name in ("HTTPS_PROXY", "ALL_PROXY", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_whose")
def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent(
    server: Vllm, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tls, _ = context(tmp_path)
    with serving(server, tls) as started:
        with pytest.raises(ServerError, match="certificate that is not trusted") as failure:
            look(RemoteSettings(url=started.url), tokenizer)
        assert failure.value.lasts and started.requests == []


@pytest.mark.usefixtures("_whose")
def test_the_certificate_of_another_name_is_refused(
    server: Vllm, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, made = context(tmp_path, "DNS:elsewhere.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    with serving(server, tls) as started:
        with pytest.raises(ServerError, match="certificate that is not trusted"):
            look(RemoteSettings(url=started.url), tokenizer)
        assert started.requests == []


def test_an_authority_of_ones_own_can_be_named(
    server: Vllm, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, made = context(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    with serving(server, tls) as started:
        assert look(RemoteSettings(url=started.url), tokenizer).by_tokens
        assert {one.bearer for one in started.requests} == {"secret"}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(server: Vllm, tokenizer: Tokenizer, status: int) -> None:
    elsewhere = Vllm(HashedModel(tokenizer))
    with serving(server) as started, serving(elsewhere) as other:
        started.fault = faults.Redirect(other.url + "/v1/models", status)
        with pytest.raises(ServerError, match="sends us elsewhere"):
            look(RemoteSettings(url=started.url), tokenizer)
        assert other.requests == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_what_is_for_this_machine_goes_by_no_proxy(
    server: Vllm, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with serving(Vllm(HashedModel(tokenizer))) as proxy, serving(server) as started:
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv(name.lower(), proxy.url)
        assert look(RemoteSettings(url=started.url), tokenizer).by_tokens
        assert proxy.requests == []
