"""What is fetched comes by HTTPS, goes only into its folder, and is used only if it is what was promised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from completion_ls.models import hub, local
from completion_ls.models.errors import ModelError
from support.fake_hub import BRANCH, COMMIT, REPOSITORY, FakeHub, serving

NAME = f"{REPOSITORY}@{BRANCH}"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(monkeypatch) as server:
        yield server


@pytest.fixture
def answering(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[httpx2.Request], httpx2.Response]], None]:
    """Have every request of the hub's library answered by a function."""

    def by(answer: Callable[[httpx2.Request], httpx2.Response]) -> None:
        client = httpx2.Client(transport=httpx2.MockTransport(answer), follow_redirects=True)
        monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)
        monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")

    return by


def test_the_hub_is_asked_by_https() -> None:
    assert constants._HF_DEFAULT_ENDPOINT.startswith("https://")


def test_the_hub_hears_what_is_wanted_and_nothing_of_this_machine(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library would tell which torch there is, and ask for a list of programs that might have started
    us, to tell which one has."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setenv("AGENT", "somebody")
    local.pull(NAME)
    told = re.compile(r"completion-ls/\S+; hf_hub/\S+; python/\S+")
    for path, program in server.heard:
        assert path.startswith((f"/api/models/{REPOSITORY}/", f"/{REPOSITORY}/", f"/{COMMIT}/")), (
            path
        )
        assert told.fullmatch(program), program
    assert server.heard


@pytest.mark.parametrize("where", ["file", "list"])
def test_what_leads_to_http_is_not_followed(
    answering: Callable[..., None], tmp_path: Path, where: str
) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        if request.url.scheme == "https":
            return httpx2.Response(302, headers={"Location": "http://evil.invalid/weights"})
        return httpx2.Response(200, content=b"evil")

    answering(answer)
    file = hub.HubFile("model.safetensors", 4, "sha256:0")
    with pytest.raises(ModelError, match=r"leads to http://evil.invalid"):
        if where == "file":
            hub._fetch("https://hub.invalid/weights", file, tmp_path / "x.part", lambda: None)
        else:
            hub.pull(hub.HubModel("owner/name"))
    assert asked
    assert not [url for url in asked if not url.startswith("https:")]


@pytest.mark.parametrize(
    "name",
    [
        "../evil.safetensors",
        "../../evil.safetensors",
        "/tmp/evil.safetensors",
        "a/../../evil.safetensors",
        "sub/evil.safetensors",
        "..\\evil.safetensors",
        "C:evil.safetensors",
        ".evil.safetensors",
        "evil.safetensors\x00.txt",
        "evil\n.safetensors",
    ],
)
def test_names_that_the_hub_lists_lead_nowhere_else(
    server: FakeHub, cache: Path, tmp_path: Path, name: str
) -> None:
    server.branches[BRANCH][name] = b"evil"
    before = {path for path in tmp_path.rglob("*") if cache not in path.parents}
    folder = local.pull(NAME).folder
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert {path for path in tmp_path.rglob("*") if cache not in path.parents} - {cache} == before
    assert all(path.parent == folder for path in folder.rglob("*"))


def test_another_content_than_was_listed_is_not_kept(server: FakeHub, cache: Path) -> None:
    server.damage = 1
    with pytest.raises(ModelError, match="its hash is wrong"):
        local.pull(NAME)
    assert local.hub.find(hub.HubModel(REPOSITORY, BRANCH)) is None


def test_nor_is_that_of_a_small_file(server: FakeHub, cache: Path) -> None:
    """Of those the hub lists hashes as git has them."""
    server.damaged = "tokenizer.json"
    with pytest.raises(ModelError, match=r"tokenizer.json of .* \(its hash is wrong\)"):
        local.pull(NAME)
    assert local.hub.find(hub.HubModel(REPOSITORY, BRANCH)) is None


def test_what_has_no_end_does_not_fill_the_disk(
    answering: Callable[..., None], tmp_path: Path
) -> None:
    """A host need not say before how much it sends."""
    sent = []

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            sent.append(1)
            yield bytes(1000)

    answering(lambda _: httpx2.Response(200, content=endless()))
    file, part = hub.HubFile("model.safetensors", 4500, "sha256:0"), tmp_path / "x.part"
    with pytest.raises(ModelError, match="with 4500 bytes and sends 5000 or more"):
        hub._fetch("https://hub.invalid/weights", file, part, lambda: None)
    assert len(sent) < 10
    assert part.stat().st_size <= file.size


def test_a_part_of_a_model_is_no_model(server: FakeHub, cache: Path) -> None:
    server.cut = 10**6
    with pytest.raises(ModelError):
        local.pull(NAME)
    with pytest.raises(ModelError, match="is not on this machine"):
        local.prepare(NAME)
