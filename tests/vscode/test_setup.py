"""The extension where it is new: no program yet, a workspace that is not trusted, the walkthrough."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scripted_daemon import Script
from support.vscode import DEFAULT_MODEL, VERSIONS

if TYPE_CHECKING:
    from conftest import Desk

    from support.vscode import Window, Workbench

pytestmark = [
    pytest.mark.editor,
    pytest.mark.process,
    # Nothing of this depends on VS Code's version as ghost text does.
    pytest.mark.parametrize("version", VERSIONS[:1], indirect=True, scope="module"),
]

TEXT = "def area(w, h):\n    # the product\n\n# end\n"
LINES = ("    return w * h", "\n    print(w)")
"""What is said on the empty line of TEXT."""


def type_there(window: Window) -> None:
    """Type the first blanks of LINES, on an empty line."""
    window.page.click(".editor-instance .view-lines")
    window.go_to(3, 1)
    window.type("    ")


def trust_workspace(window: Window) -> None:
    """As the user does."""
    window.page.click(".statusbar-item a:has-text('Restricted Mode')")
    window.page.click(".workspace-trust-editor .workspace-trust-buttons-row a:has-text('Trust')")


def test_of_a_workspace_that_is_not_trusted(
    another: Callable[..., tuple[Workbench, Script]], tmp_path: Path
) -> None:
    workbench, script = another(
        trust=False, settings={"security.workspace.trust.startupPrompt": "never"}
    )
    other = Script.make(tmp_path / "other")
    for one in (script, other):
        one.say("", *LINES, pause_s=0.1)
    workbench.set_here(
        {
            "completion-ls.program": str(other.program),
            "completion-ls.model.name": "model-of-the-workspace",
            "completion-ls.completion.lines": "single",
        }
    )
    window = workbench.window(workbench.file("trust.py", TEXT))
    window.wait_until_ready(DEFAULT_MODEL)
    type_there(window)
    window.wait_for_ghost("return w * h")
    window.pause(1)
    assert window.ghost() == "return w * h"  # the way it completes is the workspace's
    assert [one["model"] for one in script.heard("load")] == [DEFAULT_MODEL]
    assert other.heard() == []
    # Nor are these taken when it is trusted: they are the user's alone.
    trust_workspace(window)
    window.wait_until_ready(DEFAULT_MODEL)
    window.pause(1)
    assert {one["model"] for one in script.heard("load")} == {DEFAULT_MODEL}
    assert other.heard() == []


def path_without_program(folder: Path) -> str:
    """A PATH with a Python, and all else that there is in the system's folders but our program."""
    folder.mkdir()
    python = Path(sys.base_prefix) / "bin" / "python3"
    (folder / "python3").symlink_to(python.resolve())
    found = os.pathsep.join([str(folder), "/usr/bin", "/bin"])
    assert shutil.which("completion-ls", path=found) is None
    return found


def test_the_program_of_the_active_python_environment_is_taken(
    another: Callable[..., tuple[Workbench, Script]], tmp_path: Path
) -> None:
    environment = {"PATH": path_without_program(tmp_path / "bin")}
    workbench, script = another(has_program=False, has_python=True, environment=environment)
    window = workbench.window(workbench.file("environment.py", TEXT))
    window.wait_until_ready()
    assert ["--stdio"] in [one["words"] for one in script.heard("run")]
    # Without it nothing runs on, whatever was there before.
    script.program.unlink()
    window.run("completion-ls.restart")
    window.wait_for_status("is not installed here")
    window.wait(lambda: workbench.servers() == [], "no server")


def test_of_an_untrusted_workspace_the_python_environment_is_not_taken(
    another: Callable[..., tuple[Workbench, Script]], tmp_path: Path
) -> None:
    workbench, script = another(
        has_program=False,
        has_python=True,
        trust=False,
        settings={"security.workspace.trust.startupPrompt": "never"},
        environment={"PATH": path_without_program(tmp_path / "bin")},
    )
    window = workbench.window(workbench.file("environment.py", TEXT))
    window.wait_for_status("is not installed here")
    assert script.heard() == []
    trust_workspace(window)
    window.wait_until_ready()


def wheel(folder: Path, program: Path) -> Path:
    """A package whose console script completion-ls stands for a program."""
    folder.mkdir()
    file = folder / "stand_in-1.0-py3-none-any.whl"
    about = "stand_in-1.0.dist-info"
    files = {
        "stand_in.py": f"import os, sys\ndef main():\n"
        f"    os.execv({str(program)!r}, [{str(program)!r}, *sys.argv[1:]])\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: stand-in\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\ncompletion-ls = stand_in:main\n",
    }
    record = f"{about}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file


def test_without_a_program_it_can_be_installed(
    another: Callable[..., tuple[Workbench, Script]], tmp_path: Path
) -> None:
    path = path_without_program(tmp_path / "bin")
    python = shutil.which("python3", path=path)
    assert python
    usable = [python, "-c", "import ensurepip, venv"]
    if subprocess.run(usable, capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot make environments.")
    no_network = {
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    workbench, script = another(has_program=False, environment={"PATH": path, **no_network})
    script.say("", *LINES, pause_s=0.1)
    packages = tmp_path / "packages"
    workbench.set(package=str(packages / "missing-1.0-py3-none-any.whl"))
    window = workbench.window(workbench.file("install.py", TEXT))
    window.wait_for_status("is not installed here")
    window.wait_for_message("The program completion-ls was not found")
    assert window.buttons() == ["Install into a private environment", "Name the program"]

    window.answer("Name the program")
    window.page.wait_for_selector(".settings-editor :text('Path of the program completion-ls')")
    window.press("Escape")
    assert workbench.servers() == []

    # The message comes each time: one that is not answered goes out of sight by itself.
    window.run("completion-ls.restart")
    window.wait_for_message("was not found")
    window.wait(lambda: window.notifications() == [], "no message in view", timeout_s=30)

    # pip does not find it, says why, and one may try again.
    window.run("completion-ls.restart")
    window.wait_for_message("was not found")
    window.answer("Install into a private environment")
    window.wait_for_message("could not be installed", timeout_s=90)
    window.wait_for_message("completion-ls.package")
    assert workbench.servers() == []

    workbench.set(package=str(wheel(packages, script.program)))
    window.run("completion-ls.restart")
    window.wait_for_message("was not found")
    window.answer("Install into a private environment")
    window.wait_until_ready(timeout_s=90)
    window.open(workbench.workspace / "install.py")
    type_there(window)
    window.wait_for_ghost("".join(LINES).strip())


def test_a_program_that_is_not_there_is_named(
    another: Callable[..., tuple[Workbench, Script]], tmp_path: Path
) -> None:
    workbench, script = another()
    window = workbench.window(workbench.file("named.py", TEXT))
    window.wait_until_ready()
    missing = tmp_path / "nowhere" / "completion-ls"
    workbench.set(program=str(missing))
    window.wait_for_message(f"There is no program {missing}")
    assert window.buttons() == ["Open the setting"]
    window.wait_for_status("which the setting completion-ls.program names")
    window.wait(lambda: workbench.servers() == [], "no server")
    workbench.set(program=str(script.program))
    window.wait_until_ready()


def test_the_walkthrough(desk: Desk) -> None:
    window = desk.window
    window.choose("Welcome: Open Walkthrough...", "Start with completion-ls")
    page = window.page
    steps = page.locator(".gettingStartedContainer .getting-started-step")
    steps.first.wait_for()
    steps.filter(has_text="Install the program").click()
    page.locator("a:has-text('Is it installed?'), button:has-text('Is it installed?')").last.click()
    window.wait_for_message(f"completion-ls is installed: {desk.script.program}")
    window.run_here("notifications.clearAll")  # a step that is done takes the focus from a palette
    before = desk.workbench.servers()
    for title, button, words in (
        ("Pick a profile", "Find the profile", ["init"]),
        ("Check that it fits", "Ask the doctor", ["doctor"]),
    ):
        step = steps.filter(has_text=title)
        step.click()
        step.locator(f"a:has-text('{button}'), button:has-text('{button}')").click()
        window.wait(
            lambda words=words: words in [one["words"] for one in desk.script.heard("run")],
            f"a call of the program with {words}",
        )
        window.wait(lambda: window.output() == "completion-ls", "the output in view")
    # The profile counts from the next start on.
    window.wait(
        lambda: (now := desk.workbench.servers()) and not set(now) & set(before), "another server"
    )
    steps.filter(has_text="Try it").click()
    page.locator("a:has-text('New file'), button:has-text('New file')").last.click()
    page.wait_for_selector(".tab.active[data-resource-name='Untitled-1']")
    window.choose("View: Hide Panel")
