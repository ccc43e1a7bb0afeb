"""What the status bar says, and what its menu does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.vscode import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Desk

    from support.scripted_daemon import Script
    from support.vscode import Window, Workbench

pytestmark = [
    pytest.mark.editor,
    pytest.mark.process,
    # Nothing of this depends on VS Code's version as ghost text does.
    pytest.mark.parametrize("version", VERSIONS[:1], indirect=True, scope="module"),
]

TEXT = "def area(w, h):\n    # the product\n\n# end\n"


def begin(desk: Desk, name: str) -> Window:
    """A file in which "    ret" is about to be typed, and is gone on with."""
    desk.script.say("    ret", "urn w", " * h", " * 2", pause_s=0.3)
    desk.open(name, TEXT)
    desk.window.go_to(3, 1)
    return desk.window


def nothing_comes(window: Window) -> None:
    """Neither now nor in a while."""
    window.pause(1.5)
    assert window.ghost() == ""


def by_hand(window: Window) -> None:
    """Asked by hand, all of it comes, however it is streamed."""
    window.run_here("editor.action.inlineSuggest.trigger")
    window.wait_for_ghost("urn w * h * 2")
    window.pause(0.5)
    assert window.ghost() == "urn w * h * 2"
    window.press("Escape")
    window.wait_for_ghost("")


def test_loading_then_ready_then_the_figures(desk: Desk) -> None:
    window = begin(desk, "figures.py")
    desk.script.loads_for(4)
    desk.workbench.set(model__name="figures-model")
    for part in ("20 %", "60 %"):
        window.wait_for_status(part)
    window.wait_until_ready("figures-model")
    assert " %" not in window.status()
    assert "First token" not in window.status()
    window.type("    ret")
    window.wait_for_ghost("urn w * h * 2")
    window.wait_for_status("First token: 1 ms")
    window.wait_for_status("Tokens per second: 50")


def test_an_engine_that_cannot_load(desk: Desk) -> None:
    window = begin(desk, "broken.py")
    desk.script.cannot_load("The card has too little memory.")
    desk.workbench.set(model__name="broken-model")
    window.wait_for_status("The card has too little memory.")
    item = window.page.locator(".statusbar-item[id^='completion-ls.']")
    assert item.locator(".codicon-error").count() == 1
    assert "error-kind" in (item.get_attribute("class") or "")
    window.type("    ret")
    nothing_comes(window)
    desk.script.cannot_load("")
    desk.workbench.set(model__name="mended-model")
    window.wait_until_ready("mended-model")
    by_hand(window)


def test_off_for_a_language_and_on_again(desk: Desk) -> None:
    window = begin(desk, "off.py")
    window.choose_in_menu("Turn off for python")
    window.wait_for_status("off for python")
    window.go_to(3, 1)
    window.type("    ret")
    nothing_comes(window)
    by_hand(window)
    window.choose_in_menu("Turn on for python")
    window.wait_until_ready()
    window.go_to(3, 8)
    window.type("u")
    window.wait_for_ghost("rn w * h * 2")


def test_on_again_for_a_language_that_the_workspace_has_off(desk: Desk) -> None:
    window = begin(desk, "own.py")
    desk.workbench.set(server__disabled_languages=["go"])
    desk.workbench.set_here({"completion-ls.server.disabled_languages": ["python"]})
    window.wait_for_status("off for python")
    window.choose_in_menu("Turn on for python")
    window.wait_until_ready()


def test_off_in_this_workspace(desk: Desk) -> None:
    window = begin(desk, "workspace.py")
    window.choose_in_menu("Turn off in this workspace")
    window.wait_for_status("off in this workspace")
    window.go_to(3, 1)
    window.type("    ret")
    nothing_comes(window)
    by_hand(window)
    window.choose_in_menu("Turn on in this workspace")
    window.wait_until_ready()
    window.go_to(3, 8)
    window.type("u")
    window.wait_for_ghost("rn w * h * 2")


@pytest.mark.parametrize(
    ("here", "menu"),
    [
        ({"completion-ls.server.disabled_languages": ["python"]}, "Turn on for python"),
        ({"completion-ls.enabled": False}, "Turn on in this workspace"),
        ({"[python]": {"completion-ls.enabled": False}}, "Turn on in this workspace"),
    ],
)
def test_what_the_workspace_turns_off_is_turned_on(
    desk: Desk, here: dict[str, object], menu: str
) -> None:
    window = begin(desk, "here.py")
    desk.workbench.set_here(here)
    window.wait_for_status("completion-ls off")
    window.choose_in_menu(menu)
    window.wait_until_ready()
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h * 2")


def test_settings_of_the_wrong_type(another: Callable[..., tuple[Workbench, Script]]) -> None:
    wrong = {"server.disabled_languages": 5, "enabled": None, "program": ["x"], "package": 5}
    workbench, script = another(
        has_program=False,
        settings={f"completion-ls.{name}": value for name, value in wrong.items()},
    )
    script.say("    ret", "urn w", pause_s=0.1)
    window = workbench.window(workbench.file("wrong.py", TEXT))
    window.wait_for_status("completion-ls")
    workbench.set(server__disabled_languages={"python": True}, program=str(script.program))
    window.wait_until_ready()
    window.page.click(".editor-instance .view-lines")
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w")


def test_a_program_that_ends_at_once(another: Callable[..., tuple[Workbench, Script]]) -> None:
    workbench, script = another(has_program=False)
    count = workbench.folder / "count"
    broken = workbench.folder / "broken"
    broken.write_text(f"#!/bin/sh\necho >>{count}\nexit 3\n")
    broken.chmod(0o755)
    workbench.set(program=str(broken))
    window = workbench.window(workbench.file("ends.py", TEXT))
    window.wait_for_status("could not be started")
    window.wait(lambda: len(count.read_text()) >= 3, "a third start")
    assert window.notifications() == []  # the status bar says it, and again and again it is no news
    workbench.set(program=str(script.program))
    window.wait_until_ready()


def test_restart_from_the_menu(desk: Desk) -> None:
    window, workbench = begin(desk, "again.py"), desk.workbench
    before = workbench.servers()
    window.choose_in_menu("Restart the server")
    window.wait(
        lambda: (now := workbench.servers()) and not set(now) & set(before), "another server"
    )
    window.wait_until_ready()
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h * 2")


@pytest.mark.parametrize(
    ("label", "words"),
    [("Doctor", ["doctor"]), ("Status of the engine", ["status"]), ("Log", None)],
)
def test_the_output_is_shown(desk: Desk, label: str, words: list[str] | None) -> None:
    # What is in it comes to the screen by a library that scripts/editors/vscode leaves out.
    window = begin(desk, "output.py")
    window.choose_in_menu(label)
    window.wait(lambda: window.output() == "completion-ls", "the output in view")
    if words:
        called = window.wait(lambda: desk.script.heard("run"), "a call of the program")
        assert [one["words"] for one in called] == [words]
    else:  # it takes the focus, a moment later
        window.page.wait_for_selector(".part.panel .monaco-editor.focused")
    window.choose("View: Hide Panel")
    window.wait(lambda: window.output() == "", "no output in view")


def test_the_settings_from_the_menu(desk: Desk) -> None:
    window = begin(desk, "settings.py")
    window.choose_in_menu("Settings")
    window.page.wait_for_selector(".settings-editor :text('Offer suggestions while you type')")
    window.press("Escape")
