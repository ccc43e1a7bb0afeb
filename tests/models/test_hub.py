"""Models of the Hugging Face hub, from one on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.cli import models
from completion_ls.cli.main import main
from completion_ls.config import sources
from completion_ls.config.settings import Settings
from completion_ls.models import catalogue, hub, local, store
from completion_ls.models.catalogue import HubEntry
from completion_ls.models.errors import ModelError
from completion_ls.models.hub import HubModel
from completion_ls.wire.endpoint import DaemonConfig
from support.fake_hub import BRANCH, NEEDED, REPOSITORY, FakeHub, safetensors, serving

NAME = f"{REPOSITORY}@{BRANCH}"
MODEL = HubModel(REPOSITORY, BRANCH)
LARGE = "output-00001-of-00002.safetensors"

PULL = """
import sys
from completion_ls.models import local

print(local.pull(sys.argv[1], progress=lambda text, done: print(text, flush=True)).folder)
"""


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(monkeypatch) as server:
        yield server


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> HubEntry:
    """The repository under a name of the catalogue."""
    made = HubEntry("tiny-exl2", REPOSITORY, BRANCH, 3_300_000, "Apache-2.0", "bytes")
    monkeypatch.setattr(catalogue, "HUB_ENTRIES", (made,))
    return made


def starts(server: FakeHub, name: str = LARGE) -> list[int]:
    """From which byte on the file was asked for, each time."""
    return [asked.start for asked in server.asked if asked.name == name]


def test_what_is_needed_comes_and_nothing_else(server, cache, listing):
    seen: list[tuple[str, float]] = []
    model = local.pull(NAME, progress=lambda *one: seen.append(one))
    assert model == local.LocalModel(NAME, cache / "hub" / f"someone--Tiny-exl2@{BRANCH}")
    assert listing(model.folder) == NEEDED | {"completion-ls.json"}
    for name in NEEDED:
        assert (model.folder / name).read_bytes() == server.branches[BRANCH][name]
    assert {asked.name for asked in server.asked} == NEEDED
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions) and fractions[0] == 0
    assert any(0.1 < fraction < 0.9 for fraction in fractions)  # bytes count, not files
    assert "file 1 of 6, 3 MB in all" in seen[0][0]


def test_what_is_here_needs_no_hub(server, cache):
    folder = local.pull(NAME).folder
    server.status = 500
    assert local.pull(NAME).folder == folder
    assert local.prepare(NAME, offline=True).folder == folder
    assert local.to_fetch(NAME) == 0


def test_the_main_branch_needs_no_name(server, cache):
    server.branches["main"] = server.branches[BRANCH]
    folder = local.pull(REPOSITORY).folder
    assert folder.name == "someone--Tiny-exl2@main"
    assert local.prepare(f"{REPOSITORY}@main").folder == folder


def test_a_name_of_the_catalogue(server, cache, entry, capsys):
    assert local.to_fetch(entry.name) == local.to_fetch(NAME) == entry.size
    with pytest.raises(ModelError, match=r"not on this machine.*pull tiny-exl2` .*about 3 MB"):
        local.prepare(entry.name)
    assert server.asked == []
    assert main(["models", "pull", entry.name]) == 0
    model = local.prepare(entry.name)
    assert model.name == entry.name and model.folder == MODEL.folder
    assert "tiny-exl2 is ready" in capsys.readouterr().err
    assert main(["models", "path", entry.name]) == 0
    assert capsys.readouterr().out == f"{model.folder}\n"


def test_progress_looks_at_each_file_a_few_times(server, cache, monkeypatch):
    looked = []
    real = hub._size
    monkeypatch.setattr(hub, "_size", lambda path: looked.append(path) or real(path))
    more = {f"more-{number}.safetensors": safetensors(9) for number in range(25)}
    server.branches[BRANCH] = {**server.branches[BRANCH], **more}
    local.pull(NAME)
    assert len(looked) < 15 * (len(NEEDED) + len(more))


def test_nothing_is_fetched_unasked(server, cache):
    for offline in (True, False):
        with pytest.raises(ModelError, match=f"not on this machine; .*models pull {NAME}` fetches"):
            local.prepare(NAME, offline=offline)
    assert server.asked == [] and not cache.exists()


def test_the_list(server, cache, entry, capsys, monkeypatch):
    assert models.list_models() == 0
    assert "not fetched" in capsys.readouterr().out
    server.cut = 1000
    assert models.pull(entry.name) == 1
    capsys.readouterr()
    models.list_models()
    assert "3 MB of 3 MB" in " ".join(capsys.readouterr().out.split())
    server.cut = 0
    models.pull(entry.name)
    monkeypatch.setattr(catalogue, "HUB_ENTRIES", ())  # now it is only on the disk
    capsys.readouterr()
    models.list_models()
    said = capsys.readouterr().out
    assert f"{NAME}: " in said and str(MODEL.folder.name) in said and "ready" in said


def test_a_connection_that_breaks_off_is_made_again(server, cache):
    server.cut = 3
    local.pull(NAME)
    first, second, third, *_ = starts(server)
    assert first == 0 < second < third
    assert server.cut == 0


def test_one_that_always_breaks_off_is_an_error_and_what_came_is_kept(server, cache, monkeypatch):
    monkeypatch.setattr(hub, "RETRIES", 0)
    server.cut = 1
    real = hub._stream

    def lost(*arguments):
        if server.cut == 0:
            raise httpx2.ConnectError("gone")
        return real(*arguments)

    monkeypatch.setattr(hub, "_stream", lost)
    server.branches[BRANCH] = {
        name: data
        for name, data in server.branches[BRANCH].items()
        if name != "output-00002-of-00002.safetensors"
    }
    with pytest.raises(ModelError, match=r"was lost at 2 MB of 3 MB of output.*gone.*is kept"):
        local.pull(NAME)
    with pytest.raises(ModelError, match=r"\(2 MB of 3 MB are here\)"):
        local.prepare(NAME)
    assert hub.find(MODEL) is None
    monkeypatch.setattr(hub, "_stream", real)
    local.pull(NAME)
    assert starts(server)[-1] > 1_400_000


def test_a_hub_that_knows_no_ranges(server, cache):
    server.ignore_ranges = True
    server.cut = 1
    folder = local.pull(NAME).folder
    assert (folder / LARGE).read_bytes() == server.branches[BRANCH][LARGE]
    assert starts(server) == [0, 0]


def test_a_hub_that_refuses_ranges(server, cache):
    server.refuse_ranges = True
    server.cut = 1
    folder = local.pull(NAME).folder
    assert (folder / LARGE).read_bytes() == server.branches[BRANCH][LARGE]
    assert starts(server) == [0, 1_500_040, 0]


@pytest.mark.parametrize(
    "said", ["bytes 9-3000079/3000080", "bytes 0-1/" + "9" * 5000, "bytes ²-³/³", "none"]
)
def test_another_part_than_was_asked_for(server, cache, said):
    server.content_range = said
    for _ in range(2):
        with pytest.raises(ModelError, match=rf"for {LARGE} is not the part that was asked for"):
            local.pull(NAME)
    assert starts(server) == [0, 0, 0, 0]
    server.content_range = ""
    local.pull(NAME)


def test_a_part_that_begins_elsewhere_is_fetched_anew(server, cache, monkeypatch):
    server.cut = 1
    real = hub._stream

    def stream(url, file, path, have, tell):
        server.content_range = f"bytes {have - 5}-3000079/3000080" if have else ""
        real(url, file, path, have, tell)

    monkeypatch.setattr(hub, "_stream", stream)
    folder = local.pull(NAME).folder
    assert (folder / LARGE).read_bytes() == server.branches[BRANCH][LARGE]
    assert starts(server) == [0, 1_500_040, 0]


def test_an_address_that_ran_out_is_asked_for_once_more(server, cache):
    server.expired = 2
    with pytest.raises(ModelError, match=r"\(403\)"):
        local.pull(NAME)
    server.expired = 1
    local.pull(NAME)
    assert server.expired == 0


def test_a_server_that_fails_for_a_while(server, cache, monkeypatch):
    real = hub._stream

    def mended(*arguments):
        monkeypatch.setattr(hub, "_stream", real)
        server.status = 503
        try:
            real(*arguments)
        finally:
            server.status = 0

    monkeypatch.setattr(hub, "_stream", mended)
    assert local.pull(NAME).folder == hub.find(MODEL)


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), ("100000", 120), ("", 1), ("soon", 1), ("-3", 1)]
)
def test_a_busy_hub_says_how_long_to_wait(server, cache, monkeypatch, said, seconds):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        server.status = 0

    monkeypatch.setattr(hub.time, "sleep", sleep)
    real = hub._stream

    def busy(*arguments):
        if not waited:
            server.status, server.retry_after = 429, said
        real(*arguments)

    monkeypatch.setattr(hub, "_stream", busy)
    assert local.pull(NAME).folder == hub.find(MODEL)
    assert waited == [seconds]


@pytest.mark.parametrize(
    "page",
    [b"<html>Log in</html>", b"[]", b"{}", b'{"siblings": [{}]}', b"[" * 100_000,
     b'{"id": "a/b", "siblings": [{"rfilename": 5}]}', b'{"id": "a/b", "sha": 5}',
     b'{"id": "a/b", "sha": "\\ud800", "siblings": []}'],
)  # fmt: skip
def test_a_network_that_wants_a_login_first(server, cache, page):
    server.page = page
    with pytest.raises(ModelError, match=r"is no answer of the Hugging Face hub.*log in"):
        local.pull(NAME)


@pytest.mark.parametrize("size", [-5, "12", 2.5, float("nan"), float("inf"), 10**400, None])
def test_sizes_that_are_none(server, cache, size):
    for name in ("config.json", LARGE):
        server.lie = {name: size}
        with pytest.raises(ModelError, match=f"does not say how large {name} is"):
            local.pull(NAME)
    assert server.asked == []


@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"[]", b"{}", b"[" * 100_000])
def test_branches_that_cannot_be_had(server, cache, page):
    server.refs_page = page
    with pytest.raises(ModelError, match=r"has no revision '5.0'\."):
        local.pull(f"{REPOSITORY}@5.0")
    with pytest.raises(ModelError, match="name another repository"):
        local.pull(REPOSITORY)


@pytest.mark.parametrize(
    "name",
    ["n" * 250 + ".safetensors", "\ud800.safetensors", "a?b.safetensors",
     r"C:\x.safetensors", "c:x.safetensors", "../x.safetensors", "a\0.safetensors",
     ".x.safetensors", "-x.safetensors", r"a\b.safetensors", "é.safetensors", "x.safetensors\n"],
)  # fmt: skip
def test_names_of_files_that_are_not_taken(server, cache, listing, name):
    assert not hub._is_wanted(name)
    server.branches[BRANCH][name] = safetensors(10)
    assert listing(local.pull(NAME).folder) == NEEDED | {"completion-ls.json"}


def test_a_folder_of_another_model_is_none(server, cache):
    folder = local.pull(NAME).folder
    folder.rename(HubModel(REPOSITORY, "other").folder)
    assert hub.find(HubModel(REPOSITORY, "other")) is None
    assert hub.known() == []


@pytest.mark.parametrize("place", [MODEL.folder.name, MODEL.unfinished.name])
@pytest.mark.parametrize(
    "kind", ["link", "link to an empty folder", "dangling link", "file", "folder", "model"]
)
def test_what_others_put_in_the_place_of_the_folder_is_left(
    server, cache, tmp_path, listing, place, kind
):
    own = tmp_path / "own"
    own.mkdir()
    path = cache / "hub" / place
    path.parent.mkdir(parents=True)
    if kind == "link":
        (own / "notes.txt").touch()
        path.symlink_to(own)
    elif kind == "link to an empty folder":
        path.symlink_to(own)
    elif kind == "dangling link":
        path.symlink_to(own / "nothing")
    elif kind == "file":
        path.touch()
    else:
        path.mkdir()
        (path / ("config.json" if kind == "model" else "notes.txt")).touch()
    before = listing(tmp_path)
    with pytest.raises(ModelError, match=rf"hub/{place} is in the way: .*Move it away, or delete"):
        local.pull(NAME)
    assert listing(tmp_path) - before == {f"{cache.name}/hub/{MODEL.folder.name}.lock"}


def test_a_folder_beside_an_unfinished_one_is_left(server, cache):
    MODEL.folder.mkdir(parents=True)
    MODEL.unfinished.mkdir()
    with pytest.raises(ModelError, match=f"{BRANCH} is in the way"):
        local.pull(NAME)
    MODEL.folder.rmdir()
    local.pull(NAME)


@pytest.mark.parametrize("name", ["tokenizer.json", LARGE, LARGE + ".part", hub.MARKER + ".part"])
@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_folder_in_the_place_of_a_file_is_left(server, cache, tmp_path, name, kind):
    path = local.pull(NAME).folder / name
    path.unlink(missing_ok=True)
    own = tmp_path / "own"
    own.write_bytes(b"mine")
    path.symlink_to(own) if kind == "link" else path.mkdir()
    (MODEL.folder / "config.json").unlink()  # so that there is something to fetch
    with pytest.raises(ModelError, match=rf"{name} is in the way"):
        local.pull(NAME)
    assert own.read_bytes() == b"mine"
    path.unlink() if kind == "link" else path.rmdir()
    local.pull(NAME)


def test_what_the_user_has_in_our_folder_is_kept(server, cache):
    """But it is not taken for a file of the hub."""
    folder = local.pull(NAME).folder
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "more").mkdir()
    (folder / "link").symlink_to(folder)
    (folder / "config.json").unlink()
    local.pull(NAME)
    assert (folder / "notes.txt").exists() and (folder / "more").exists()
    server.branches[BRANCH]["merges.txt"] = b"theirs"
    (folder / "merges.txt").write_bytes(b"mine, ")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"merges.txt is in the way"):
        local.pull(NAME)
    assert (folder / "merges.txt").read_bytes() == b"mine, "


FILES = ['{"a": 1}', '{"config.json": [1e999, "x"]}', '{"config.json": [-1, "x"]}',
         '{"\\u0000": [1, "x"]}', '{"../../own": [1, "x"]}', '{"config.json": [[], "x"]}',
         '{"' + "n" * 300 + '.safetensors": [1, "x"]}', "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize(
    "marker",
    ["[]", "{}", "[" * 100_000, '{"repository": "\\ud800/b", "revision": "\\u0000"}',
     *(json.dumps({"repository": REPOSITORY, "revision": BRANCH})[:-1] + f', "files": {files}}}'
       for files in FILES)],
)  # fmt: skip
def test_a_marker_that_is_none(server, cache, marker):
    own = cache / "own"
    for folder in (MODEL.folder, MODEL.unfinished):
        folder.mkdir(parents=True)
        own.touch()
        (folder / hub.MARKER).write_text(marker)
        assert hub.find(MODEL) is None and hub.progress_of(MODEL) is None
        assert local.pulled() == {} and local.to_fetch(NAME) is None
        assert models.list_models() == 0
        assert local.pull(NAME).folder == MODEL.folder
        assert own.exists()
        shutil.rmtree(MODEL.folder)


@pytest.mark.process
def test_a_killed_pull_is_gone_on_with(
    server: FakeHub, cache: Path, start_python: Callable[..., Popen[str]]
) -> None:
    server.stalled = threading.Event()
    process = start_python(PULL, NAME)
    unfinished = MODEL.unfinished / (LARGE + ".part")
    deadline = time.monotonic() + 60
    while not (unfinished.exists() and unfinished.stat().st_size > 1_000_000):
        assert time.monotonic() < deadline and process.poll() is None
        threading.Event().wait(0.02)  # `time.sleep` is patched
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    size = unfinished.stat().st_size
    assert hub.find(MODEL) is None
    server.stalled.set()
    server.stalled = None
    server.asked.clear()
    folder = local.pull(NAME).folder
    assert (folder / LARGE).read_bytes() == server.branches[BRANCH][LARGE]
    assert starts(server) == [size]
    assert "config.json" not in {asked.name for asked in server.asked}  # it was whole


@pytest.mark.process
def test_of_two_at_once_one_fetches_and_one_waits(
    server: FakeHub, cache: Path, start_python: Callable[..., Popen[str]]
) -> None:
    server.stalled = threading.Event()
    first = start_python(PULL, NAME)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("fetching")
    second = start_python(PULL, NAME)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("another process")
    server.stalled.set()
    said_first, errors_first = first.communicate(timeout=60)
    said_second, errors_second = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), errors_first + errors_second
    assert said_first.splitlines()[-1] == said_second.strip() == str(MODEL.folder)
    assert starts(server) == [0]


def test_a_wrong_size_is_seen(server, cache):
    for lie in (2_000_000, 5_000_000):
        server.lie[LARGE] = lie
        with pytest.raises(ModelError, match=rf"lists {LARGE} with {lie} bytes and sends 3000"):
            local.pull(NAME)
    assert hub.find(MODEL) is None
    server.lie.clear()
    assert local.pull(NAME)


def test_damaged_bytes_are_seen(server, cache):
    server.damage = 1
    with pytest.raises(ModelError, match=rf"{LARGE} of {NAME} was damaged .*again"):
        local.pull(NAME)
    assert not (MODEL.unfinished / LARGE).exists()
    local.pull(NAME)
    assert starts(server) == [0, 0]


@pytest.mark.parametrize("name", ["config.json", LARGE])
def test_a_file_that_is_lost_later_is_fetched_again(server, cache, name):
    folder = local.pull(NAME).folder
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(ModelError, match="not on this machine"):
        local.prepare(NAME)
    (folder / name).unlink()
    server.asked.clear()
    local.pull(NAME)
    assert (folder / name).read_bytes() == content
    assert [asked.name for asked in server.asked] == [name]


def test_a_branch_that_moved_on(server, cache, monkeypatch):
    """What is the same is kept, what is not is fetched again."""
    real_fetch = hub._fetch

    def only_small(url, file, path, tell):
        if file.name == "tokenizer.json":
            raise ModelError("the power is gone")
        real_fetch(url, file, path, tell)

    monkeypatch.setattr(hub, "_fetch", only_small)
    with pytest.raises(ModelError, match="power"):
        local.pull(NAME)
    monkeypatch.setattr(hub, "_fetch", real_fetch)
    server.branches[BRANCH]["output-00002-of-00002.safetensors"] = safetensors(300_000, 9)
    del server.branches[BRANCH]["generation_config.json"]
    server.asked.clear()
    folder = local.pull(NAME).folder
    names = {asked.name for asked in server.asked}
    assert "output-00002-of-00002.safetensors" in names and LARGE not in names
    assert not (folder / "generation_config.json").exists()


def test_no_such_repository(server, cache, listing):
    with pytest.raises(ModelError, match=r"no model repository no/such \(asked for .*'4_0'"):
        local.pull("no/such@4_0")
    assert not any("part" in name for name in listing(cache))


def test_no_such_revision(server, cache):
    with pytest.raises(
        ModelError, match=f"{REPOSITORY} .* no revision '5.0'; there are: 4.0bpw, m"
    ):
        local.pull(f"{REPOSITORY}@5.0")


def test_a_branch_without_a_model_names_the_others(server, cache):
    with pytest.raises(ModelError, match=r"no config.json and no .*safetensors.*: 4.0bpw; name"):
        local.pull(REPOSITORY)
    assert server.asked == []


def test_a_gated_repository(server, cache):
    server.gated = True
    with pytest.raises(ModelError, match=r"is gated: accept its terms.*HF_TOKEN"):
        local.pull(NAME)


def test_a_private_repository(server, cache):
    server.private = True
    with pytest.raises(ModelError, match=r"or it is private.*HF_TOKEN"):
        local.pull(NAME)


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "HF_TOKEN|private"), (403, r"\(403\).*HF_TOKEN"), (500, "answered 500")],
)
def test_other_answers(server, cache, status, said):
    server.status = status
    with pytest.raises(ModelError, match=said) as error:
        local.pull(NAME)
    assert "\n" not in str(error.value)


def test_the_token_of_the_hub_is_used(server, cache, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    local.pull(NAME)
    tokens = {asked.name: asked.token for asked in server.asked}
    assert tokens.pop(LARGE) is None  # it lies on another host, which must not see it
    assert tokens.pop("output-00002-of-00002.safetensors") is None
    assert set(tokens.values()) == {"Bearer hf_secret"}


def test_no_network(server, cache):
    server.shutdown()
    server.socket.close()
    with pytest.raises(ModelError, match=r"cannot be reached.*check the network"):
        local.pull(NAME)


@pytest.mark.process
def test_offline_is_a_sentence(server, cache, start_python, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    process = start_python("import sys; from completion_ls.cli.main import main\n"
                           f"sys.exit(main(['models', 'pull', {NAME!r}]))")  # fmt: skip
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("HF_HUB_OFFLINE") and said.count("\n") == 1


def test_a_disk_without_room_is_seen_before_the_download(server, cache, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"37 MB are needed .* 1 MB are free"):
        local.pull(NAME)
    assert server.asked == []


def test_a_disk_that_runs_full(server, cache, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(hub, "_stream", full)
    with pytest.raises(ModelError, match=r"37 MB are needed .*COMPLETION_LS_CACHE_DIR"):
        local.pull(NAME)


def test_the_models_of_the_settings_are_pulled(server, cache, monkeypatch, capsys):
    server.branches["draft"] = server.branches[BRANCH]
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", NAME)
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MODEL", f"{REPOSITORY}@draft")
    assert main(["models", "pull"]) == 1  # the engine of the settings could not read them
    assert "(EXL2), and engine.kind is torch_cpu" in capsys.readouterr().err
    assert server.asked == []
    monkeypatch.setenv("COMPLETION_LS_ENGINE__KIND", "exllamav2")
    assert main(["models", "pull"]) == 0
    assert hub.known() == [MODEL, HubModel(REPOSITORY, "draft")]
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out == f"{MODEL.folder}\n"
    monkeypatch.setenv("COMPLETION_LS_DRAFT__MAX_TOKENS", "many")
    assert main(["models", "pull"]) == 1
    assert "draft.max_tokens" in capsys.readouterr().err


def test_the_models_of_a_profile_are_pulled(server, cache, monkeypatch, capsys, tmp_path):
    """The option may stand behind the command."""
    monkeypatch.setattr(sources, "profiles_dir", lambda: tmp_path)
    (tmp_path / "own.toml").write_text(f"model.name = '{NAME}'\nengine.kind = 'exllamav2'")
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "")  # taken back at the end
    assert main(["models", "pull", "--profile", "own"]) == 0
    assert hub.known() == [MODEL]


def test_a_folder_of_that_name_is_meant_first(server, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / NAME
    folder.mkdir(parents=True)
    for name in NEEDED:
        (folder / name).write_bytes(server.branches[BRANCH][name])
    assert local.pull(NAME).folder == folder
    assert server.asked == []


def test_the_daemon_is_given_the_name(tmp_path, monkeypatch):
    """Paths are made absolute for it, and this is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "x").mkdir(parents=True)
    for name, meant in (
        (NAME, NAME),
        # One that stands in anybody's workspace must not take the place of what was pulled.
        ("models/x", "models/x"),
        ("./models/x", str(tmp_path / "models" / "x")),
        ("my/own/model", str(tmp_path / "my" / "own" / "model")),
        ("./models/y", str(tmp_path / "models" / "y")),
        ("models/y.gguf", str(tmp_path / "models" / "y.gguf")),
    ):
        settings = Settings.model_validate({"model": {"name": name}, "draft": {"model": name}})
        config = DaemonConfig.of(settings)
        assert (config.model.name, config.draft.model) == (meant, meant)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a/b", HubModel("a/b")),
        ("a/b@4_0", HubModel("a/b", "4_0")),
        ("Some-One/x.y_z@refs/pr/1", HubModel("Some-One/x.y_z", "refs/pr/1")),
        ("a/b@main", HubModel("a/b", "main")),
        *(
            (name, None)
            for name in ("a", "a/b/c", "/a/b", "./a", "~/a", "a/b@", "a/b@../c", "a/..")
        ),
        *(
            (name, None)
            for name in ("../a", "a--b/c", "a/b c", "a/é", "a/b@-x", "a/" + "b" * 96, "")
        ),
        *((name, None) for name in ("a/b@c--d", "a/b@c.part", "a/b@c.lock", "a/b.part")),
    ],
)
def test_names_of_repositories(name, model):
    assert hub.parse(name) == model


@given(st.from_regex(hub.NAME, fullmatch=True))
def test_any_name_gives_a_folder_in_its_place(name: str) -> None:
    model = hub.parse(name)
    if model:
        assert model.folder.parent.name == "hub"
        assert ".." not in model.folder.parts and "/" not in model.folder.name
        assert len(model.folder.name.encode()) < 240


def test_the_catalogue_names_what_can_be_parsed():
    names = [entry.name for entry in (*catalogue.ENTRIES, *catalogue.HUB_ENTRIES)]
    assert len(set(names)) == len(names)
    for entry in catalogue.HUB_ENTRIES:
        assert hub.parse(f"{entry.repository}@{entry.revision}")
