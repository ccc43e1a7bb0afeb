"""What is in the package that users install."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator

import pytest

from support.missing import require
from support.vscode import EXTENSION

PACKAGE = EXTENSION / "dist" / "completion-ls.vsix"
LARGEST = 1_000_000

pytestmark = pytest.mark.editor


@pytest.fixture(scope="module")
def package() -> Iterator[zipfile.ZipFile]:
    """The VSIX. Where it is not built the test is skipped; where CI is set, it fails."""
    if not PACKAGE.exists():
        require(f"The extension is not packed: run `npm run package` in {EXTENSION}.")
    with zipfile.ZipFile(PACKAGE) as archive:
        yield archive


def test_it_is_small(package: zipfile.ZipFile) -> None:
    assert PACKAGE.stat().st_size < LARGEST


def test_it_has_what_it_needs_and_nothing_else(package: zipfile.ZipFile) -> None:
    media = {f"extension/media/{file.name}" for file in (EXTENSION / "media").iterdir()}
    assert set(package.namelist()) == {
        "[Content_Types].xml",
        "extension.vsixmanifest",
        "extension/LICENSE.txt",
        "extension/dist/extension.js",
        "extension/package.json",
        "extension/readme.md",
        *media,
    }


def test_what_the_manifest_names_is_there(package: zipfile.ZipFile) -> None:
    manifest = json.loads(package.read("extension/package.json"))
    steps = [step for one in manifest["contributes"]["walkthroughs"] for step in one["steps"]]
    named = [manifest["main"], manifest["icon"], *(step["media"]["markdown"] for step in steps)]
    for name in named:
        assert f"extension/{name.removeprefix('./')}" in package.namelist()
    assert manifest["license"] == "Apache-2.0"
    assert b"Apache License" in package.read("extension/LICENSE.txt")
    commands = {one["command"] for one in manifest["contributes"]["commands"]}
    linked = {name for step in steps for name in re.findall(r"command:([\w.-]+)", str(step))}
    assert {name for name in linked if name.startswith("completion-ls.")} <= commands
    assert not manifest.get("dependencies")


def test_it_names_no_host_and_sends_nothing(package: zipfile.ZipFile) -> None:
    manifest = package.read("extension/package.json").decode()
    assert not re.search(r"https?://|\b[\w-]+\.(com|org|net|io|dev|co)\b", manifest)
    code = package.read("extension/dist/extension.js").decode()
    assert "sourceMappingURL" not in code
    for way in ("createTelemetryLogger", "TelemetryReporter", "fetch(", "XMLHttpRequest"):
        assert way not in code, way
    required = set(re.findall(r'require\("(?:node:)?([^"]+)"\)', code))
    assert not required & {"http", "https", "http2", "dns", "tls", "dgram", "undici"}
