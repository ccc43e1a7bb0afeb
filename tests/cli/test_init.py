"""`completion-ls init`."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.cli import init
from completion_ls.cli.main import main
from completion_ls.config.paths import config_file
from completion_ls.config.profiles import of_profile
from completion_ls.config.sources import profile_names, profiles_dir, resolve
from completion_ls.engines.exl2 import checks, gpu
from completion_ls.engines.exl2.checks import Piece
from completion_ls.engines.exl2.gpu import GraphicsCard, driver_version, find_card

GIB = 2**30

DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return FAILS; }
int cuDeviceGetCount(int *count) { *count = CARDS; return 0; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    if (device != 40) return 1;
    strncpy(name, "NVIDIA Some Card", size);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)24 << 30; return device != 40; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 9 : -1;
    return 0;
}
int cuDeviceGetPCIBusId(char *bus, int size, int device) {
    strncpy(bus, "0000:01:00.0", size);
    return 0;
}
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    strncpy(text, "570.211.01", size);
    return size != 80;
}
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    *handle = (void *)7;
    return strcmp(bus, "0000:01:00.0") != 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 24ULL << 30;
    memory[1] = 23ULL << 30;
    memory[2] = 1ULL << 30;
    return handle != (void *)7;
}
"""


def use_driver(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, cards: int = 1, fails: int = 0
) -> None:
    """A driver that tells of one card, as a library that is really loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    (folder / "driver.c").write_text(DRIVER)
    library = folder / f"driver-{cards}-{fails}.so"
    command = [compiler, "-shared", "-fPIC", f"-DCARDS={cards}", f"-DFAILS={fails}"]
    subprocess.run([*command, "-o", str(library), str(folder / "driver.c")], check=True)
    monkeypatch.setattr(gpu, "DRIVER", str(library))
    monkeypatch.setattr(gpu, "MANAGEMENT", str(library))


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one, unless a test has its own."""
    monkeypatch.setattr(gpu, "DRIVER", "libthere-is-none.so")


@pytest.fixture
def file(isolated: dict[str, str]) -> Path:
    return Path(isolated["COMPLETION_LS_CONFIG"])


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_driver(monkeypatch, tmp_path)
    assert find_card() == GraphicsCard("NVIDIA Some Card", 24 * GIB, 23 * GIB, (8, 9))
    assert driver_version() == "570.211.01, CUDA up to 12.8"
    monkeypatch.setattr(gpu, "MANAGEMENT", "libthere-is-none.so")
    assert find_card() == GraphicsCard("NVIDIA Some Card", 24 * GIB, None, (8, 9))
    assert driver_version() == "CUDA up to 12.8"


@pytest.mark.parametrize(("cards", "fails"), [(0, 0), (1, 100)])
def test_no_usable_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cards: int, fails: int
) -> None:
    use_driver(monkeypatch, tmp_path, cards=cards, fails=fails)
    assert find_card() is None


def test_no_driver_and_one_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_card() is None and driver_version() is None
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setattr(gpu, "DRIVER", str(tmp_path / "text.so"))
    assert find_card() is None


@pytest.mark.parametrize(
    ("total", "free", "capability", "profile"),
    [
        (24, 23.0, (8, 6), "nvidia-24gb"),
        (24, None, (8, 9), "nvidia-24gb"),
        (24, 0.5, (9, 0), "nvidia-24gb"),  # our own daemon may hold it
        (21.9, 21.9, (8, 6), "nvidia-24gb"),
        (21.7, 21.7, (8, 6), "nvidia-16gb"),
        (16, 15.0, (12, 0), "nvidia-16gb"),
        (12, 11.0, (8, 6), "nvidia-12gb"),
        (9.6, 9.6, (8, 6), "cpu"),
        (8, 7.5, (8, 6), "cpu"),
        (24, 23.0, (7, 5), "cpu"),
    ],
)
def test_the_best_profile_for_the_card_is_chosen(
    total: float, free: float | None, capability: tuple[int, int], profile: str
) -> None:
    free_bytes = None if free is None else int(free * GIB)
    chosen, why = init.choose(GraphicsCard("c", int(total * GIB), free_bytes, capability))
    assert chosen == profile and profile in why
    assert profile in profile_names()


def test_no_card_is_the_cpu(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.choose(None)[0] == "cpu"
    assert main(["init"]) == 0
    assert tomllib.loads(file.read_text()) == {"profile": "cpu"}
    said = capsys.readouterr().out
    assert "No NVIDIA card" in said and f'profile = "cpu" was written into {file}' in said
    assert "completion-ls doctor" in said and "nvidia" not in said


def test_a_card(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    use_driver(monkeypatch, tmp_path)
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path / "cache"))
    found = [Piece("one", "1", "Get one."), Piece("two", None, "Get two.")]
    monkeypatch.setattr(checks, "pieces", lambda: found)
    assert main(["init"]) == 0
    assert tomllib.loads(file.read_text()) == {"profile": "nvidia-24gb"}
    said = capsys.readouterr().out
    assert "Found NVIDIA Some Card with 24.0 GiB, 23.0 GiB of it free." in said
    assert "1. two is missing. Get two." in said and "Get one" not in said
    assert "2. `completion-ls models pull` fetches qwen2.5-coder-32b-4.0bpw and" in said
    assert "(about 19.8 GB); as the profile nvidia-24gb sets them up, they take 21.3 GiB" in said
    assert "free now" not in said and "it was" not in said


def test_a_card_in_use(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "find_card", lambda: GraphicsCard("c", 24 * GIB, 2 * GIB, (8, 6)))
    file.write_text('profile = "nvidia-24gb-moe"\n')
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert tomllib.loads(file.read_text()) == {"profile": "nvidia-24gb"}
    assert 'it was "nvidia-24gb-moe".' in said
    assert "nvidia-24gb takes 21.3 GiB and 2.0 are free now; close" in said
    monkeypatch.setattr(init, "find_card", lambda: GraphicsCard("c", 12 * GIB, None, (8, 6)))
    assert init.run("nvidia-16gb", dry_run=True) == 0
    assert "nvidia-16gb takes 12.8 GiB, and the card has 12.0." in capsys.readouterr().out


def test_a_profile_for_a_card_that_is_not_seen_is_kept(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('profile = "nvidia-24gb"\n')
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert tomllib.loads(file.read_text()) == {"profile": "nvidia-24gb"}
    assert "is kept" in said and "`completion-ls init --profile cpu`" in said
    assert init.run("cpu", dry_run=False) == 0
    assert tomllib.loads(file.read_text()) == {"profile": "cpu"}


def test_a_server_that_was_chosen_is_kept(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "--profile", "remote"]) == 0
    said = capsys.readouterr().out
    assert "The server is 127.0.0.1:8080" in said and "COMPLETION_LS_API_KEY" in said
    assert "refused" not in said
    monkeypatch.setattr(init, "find_card", lambda: GraphicsCard("c", 24 * GIB, 24 * GIB, (8, 6)))
    assert main(["init"]) == 0
    assert tomllib.loads(file.read_text()) == {"profile": "remote"}
    assert "is kept" in capsys.readouterr().out


def test_the_profile_of_a_server_falls_back_to_one_of_this_machine(file: Path) -> None:
    settings, problems = resolve(profile="remote")
    assert problems == []
    assert settings.engine.kind == "remote"
    assert of_profile(settings.remote.fallback)[0] == "torch_cpu"


def test_a_variable_that_goes_before_the_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-12gb")
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert tomllib.loads(file.read_text()) == {"profile": "cpu"}
    assert "COMPLETION_LS_PROFILE=nvidia-12gb is set and goes before the file" in said


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("[engine]\nkind = 'torch_cpu'\n", "engine.kind is 'torch_cpu', and the profile needs"),
        ("[model]\nname = '/no/such'\n", "There is no model /no/such; name another one"),
        ("[model]\nname = 'a/b'\n", "qwen2.5-coder-0.5b-8.0bpw, must be of the same family"),
        ("[model]\nnam = 'a/b'\n", "Some of your settings were refused"),
    ],
)
def test_own_settings_that_matter(
    file: Path, capsys: pytest.CaptureFixture[str], own: str, says: str
) -> None:
    assert init.run("nvidia-12gb", dry_run=True) == 0
    assert says not in capsys.readouterr().out
    file.write_text(own)
    assert init.run("nvidia-12gb", dry_run=True) == 0
    assert says in capsys.readouterr().out


def test_a_setting_that_is_refused_is_said_first_and_once(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("profile = 'no-such'\n[model]\nnam = 'a/b'\n")
    assert init.run(None, dry_run=True) == 0
    said = capsys.readouterr().out
    assert said.startswith("Setting 'model.nam' in ") and said.count("'model.nam'") == 1
    assert "there is no profile" not in said  # it is chosen now


def test_a_model_that_must_be_made(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert init.run("nvidia-24gb-moe", dry_run=True) == 0
    said = capsys.readouterr().out
    assert f"must be made: {profiles_dir() / 'nvidia-24gb-moe.toml'} says how" in said
    assert "models pull" not in said


def test_dry_run_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.unlink()
    assert main(["init", "--dry-run"]) == 0
    assert not file.exists()
    assert 'profile = "cpu" would be written' in capsys.readouterr().out


def test_a_profile_that_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPLETION_LS_PROFILE", raising=False)
    with monkeypatch.context() as patch:
        patch.setenv("COMPLETION_LS_PROFILE", "x")  # `--profile` sets it; this takes it back
        assert main(["--profile", "nvidia-16gb", "init"]) == 0
    assert tomllib.loads(file.read_text()) == {"profile": "nvidia-16gb"}
    with monkeypatch.context() as patch:
        patch.setenv("COMPLETION_LS_PROFILE", "x")
        assert main(["init", "--profile", "nvidia-17gb"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("--profile: there is no profile") and "nvidia-16gb" in said
    assert tomllib.loads(file.read_text()) == {"profile": "nvidia-16gb"}


BEFORE = """\
# My settings.

[completion]  # what is offered
lines = "single"   # one

[model]
name = "other"
"""


def test_what_the_file_holds_is_kept(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BEFORE)
    file.chmod(0o640)
    assert main(["init"]) == 0
    assert file.read_text() == f'profile = "cpu"\n\n{BEFORE}'
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]
    assert "model.name is 'other'" in capsys.readouterr().out
    assert main(["init"]) == 0
    assert "already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('a = 1\nprofile = "x" # mine\n[b]\n', 'a = 1\nprofile = "cpu" # mine\n[b]\n'),
        ("'profile'   =   'x'\r\n# end", "'profile'   =   \"cpu\"\r\n# end"),
        ("profile = 3\n", 'profile = "cpu"\n'),
        ("a = 1\r\n", 'profile = "cpu"\r\n\r\na = 1\r\n'),
        ("[a]\nprofile = 'x'\n", "profile = \"cpu\"\n\n[a]\nprofile = 'x'\n"),
        ("[[a]]\n[[a]]\nb = nan\n", 'profile = "cpu"\n\n[[a]]\n[[a]]\nb = nan\n'),
        ("", 'profile = "cpu"\n'),
    ],
)
def test_only_the_profile_changes(before: str, after: str) -> None:
    assert init.with_profile(before, "cpu", Path("f")) == after
    assert init.with_profile(after, "cpu", Path("f")) == after


VALUES = st.sampled_from(
    ["1", "'x'", '"é#"', "[1, 2, # c\n 3]", "{ a = 1, b = 'c' }", "1979-05-27"]
)
LINES = st.one_of(
    st.just(""),
    st.just("  # profile = 'no'"),
    st.builds("k{{}} = {}".format, VALUES),
    st.builds("a.k{{}} = {} # c".format, VALUES),
    st.just("[t{}.u]"),
    st.just("[[l{}]]"),
)


@given(st.lists(LINES, max_size=12), st.sampled_from(["", "profile = 'old'", '"profile"="old" #c']))
def test_any_file_keeps_what_it_holds(lines: list[str], own: str) -> None:
    numbered = [line.replace("{}", str(number)) for number, line in enumerate(lines)]
    text = "\n".join([*([own] if own else []), *numbered])
    before = tomllib.loads(text)
    after = init.with_profile(text, "nvidia-24gb", Path("f"))
    assert tomllib.loads(after) == before | {"profile": "nvidia-24gb"}
    for line in numbered:
        assert line in after


@pytest.mark.parametrize(
    "content",
    [b"profile = ", b"[a\n", b"a = 1\na = 2\n", b"\xff\xfe", b"[profile]\nname = 'x'\n",
     b"[[profile]]\nname = 'x'\n", b"a = " + b"[" * 5000 + b"]" * 5000, b"a" + b".a" * 5000 + b" = 1"],
)  # fmt: skip
def test_a_file_that_cannot_be_changed_is_left(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file.write_bytes(content)
    assert main(["init"]) == 1
    assert file.read_bytes() == content
    said = capsys.readouterr().err
    assert str(file) in said and "left as it" in said


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = Path(os.devnull) if kind == "device" else tmp_path / "config.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    monkeypatch.setenv("COMPLETION_LS_CONFIG", str(path))
    # A trial only: should this fail, and for root, the machine is to keep its devices.
    assert main(["init", "--dry-run"]) == 1
    assert f"{path} is a folder, a device or a pipe; name a file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["loop", "below a file", "long", "longer", "closed"])
def test_a_file_that_cannot_be_read_or_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "config.toml"
    if kind == "loop":
        path.symlink_to(path)
    elif kind == "below a file":
        path.touch()
        path /= "config.toml"
    elif kind in ("long", "longer"):
        path = folder / ("n" * (250 if kind == "long" else 300))
    else:
        folder.chmod(0o555)
        if os.access(folder, os.W_OK):
            pytest.skip("whoever runs this may write everywhere")
    monkeypatch.setenv("COMPLETION_LS_CONFIG", str(path))
    before = list(folder.iterdir())
    assert main(["init"]) == 1
    assert list(folder.iterdir()) == before
    said = capsys.readouterr().err
    assert said.startswith(f"{path} cannot be read or written (") and said.count("\n") == 1


def test_an_empty_name_of_the_file_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for all who read the settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPLETION_LS_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--dry-run"]) == 0
    file = config_file()
    assert file.is_relative_to(tmp_path) and not file.exists()
    assert resolve()[1] == []  # a file that is not named need not be there
    assert main(["init"]) == 0
    assert file.read_text() == 'profile = "cpu"\n'
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [file]


def test_a_byte_order_mark_stays(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf# mine\r\n")
    assert main(["init"]) == 0
    assert file.read_bytes() == b'\xef\xbb\xbfprofile = "cpu"\r\n\r\n# mine\r\n'
    assert main(["init"]) == 0
    assert file.read_bytes().startswith(b"\xef\xbb\xbfprofile")


def test_a_new_file_has_the_rights_of_new_files(file: Path) -> None:
    file.unlink()
    before = os.umask(0o027)
    try:
        assert main(["init"]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("# mine\n")
    file.unlink()
    file.symlink_to(real)
    assert main(["init"]) == 0
    assert file.is_symlink()
    assert real.read_text() == 'profile = "cpu"\n\n# mine\n'


def test_a_folder_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPLETION_LS_CONFIG", str(tmp_path / "a" / "b" / "config.toml"))
    assert main(["init"]) == 0
    assert (tmp_path / "a" / "b" / "config.toml").read_text() == 'profile = "cpu"\n'
