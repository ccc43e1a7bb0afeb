"""What a user of the extension sees and gets, in a real VS Code."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.vscode import DEFAULT_MODEL, VERSIONS, Frame, Workbench

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = [pytest.mark.editor, pytest.mark.process]

AREA = "def area(w, h):\n    # the product\n\n# end\n"
BODY = ("    return", " w", " * h", "\n    print(w)", "\n    print(h)")
"""What is said on the empty line of AREA, after a letter of it was typed."""
TEXT = "".join(BODY)
BLINK_MS = 100.0


def seen(frames: Sequence[Frame], version: str) -> list[Frame]:
    """The views that count. In VS Code before 1.106 ghost text can only be replaced by taking it
    away first, and for a frame or two it is gone, or some of it: what was there for less than
    BLINK_MS does not count."""
    if version == VERSIONS[0]:
        return list(frames)
    ends = [frame.ms for frame in frames[1:]] + [float("inf")]
    kept = [frame for frame, end in zip(frames, ends, strict=True) if end - frame.ms > BLINK_MS]
    different = zip([None, *kept], kept, strict=False)
    return [frame for before, frame in different if not before or before.ghost != frame.ghost]


def test_ghost_text_grows_and_only_grows(desk: Desk, version: str) -> None:
    window = desk.window
    desk.script.say("", *BODY, pause_s=0.4)
    desk.open("grows.py", AREA)
    window.go_to(3, 1)
    window.type("    ")
    with window.recording() as frames:
        window.wait_for_ghost(TEXT.strip())
        window.pause(0.5)
    texts = [frame.ghost for frame in seen(frames, version) if frame.ghost]
    assert len(texts) >= len(BODY) - 1
    for before, after in pairwise(texts):
        assert after.startswith(before)
    assert texts[-1] == TEXT.strip()
    assert frames[-1].ghost == TEXT.strip()


def counts(desk: Desk) -> Counter[str]:
    """What was accepted so far, as the file says it, a while later."""
    file = Path(desk.workbench.environment["COMPLETION_LS_STATE_DIR"], "counts.json")
    models = json.loads(file.read_text())["models"] if file.exists() else {}
    found = models.get(DEFAULT_MODEL, {})
    return Counter({name: found[name] for name in found if "accepted" in name})


def test_tab_accepts_all_and_undo_takes_it_back(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", "", pause_s=0.1)
    file = desk.open("tab.py", AREA)
    window.go_to(3, 1)
    before = counts(desk)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", "\n    return w * h\n").encode()
    wanted = before + Counter(accepted=1, characters_accepted=len("urn w * h"))
    window.wait(lambda: wanted <= counts(desk), "the count")
    window.press("Control+z")
    assert window.save(file) == AREA.replace("\n\n", "\n    ret\n").encode()


def test_tab_amid_the_stream_accepts_what_is_shown(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", " * 2", pause_s=1.5)
    file = desk.open("amid.py", AREA)
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w")
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", "\n    return w\n").encode()
    window.wait_for_ghost(" * h * 2")


def test_a_word_is_accepted(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn width", " * height", pause_s=0.1)
    file = desk.open("word.py", AREA)
    before = counts(desk)
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn width * height")
    window.press("Control+ArrowRight")
    window.wait_for_ghost(" width * height")
    window.press("Control+ArrowRight")  # the blank
    window.wait_for_ghost("width * height")
    window.press("Control+ArrowRight")
    window.wait_for_ghost(" * height")
    assert window.save(file) == AREA.replace("\n\n", "\n    return width\n").encode()
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", "\n    return width * height\n").encode()
    # The blank alone may have been typed.
    wanted = before + Counter(accepted_words=2, characters_accepted=len("urnwidth * height"))
    window.wait(lambda: wanted <= counts(desk), "the count")


def test_a_line_is_accepted(desk: Desk) -> None:
    window = desk.window
    desk.script.say("", *BODY, pause_s=0.05)
    file = desk.open("line.py", AREA)
    window.go_to(3, 1)
    window.type("    ")
    window.wait_for_ghost(TEXT.strip())
    window.run_here("editor.action.inlineSuggest.acceptNextLine")
    window.wait_for_ghost("    print(w)\n    print(h)")
    assert window.save(file) == AREA.replace("\n\n", "\n    return w * h\n\n").encode()
    window.press("Tab")  # VS Code has it indent first
    window.wait_for_ghost("print(w)\n    print(h)")
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", f"\n{TEXT}\n").encode()


OTHERS = ("urn h * w", "urn 2 * w", "urn h * w")
"""What is drawn for the end of "    ret"; one comes twice."""


def cycle(desk: Desk, first: str) -> list[str]:
    """The texts that there are to choose from, by going on until the first one comes again."""
    window, found = desk.window, [first]
    while True:
        window.run_here("editor.action.inlineSuggest.showNext")
        window.wait(
            lambda: window.ghost() not in ("", found[-1]), "another suggestion than the last"
        )
        ghost = window.ghost()
        if ghost == first:
            return found
        found.append(ghost)
        assert len(found) < 10, found


@pytest.mark.parametrize("when", ["at once", "after an automatic one", "amid one"])
def test_asked_by_hand_there_are_several(desk: Desk, version: str, when: str) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", pause_s=0.5, others=OTHERS)
    if when == "at once":
        desk.workbench.set_others({"editor.inlineSuggest.enabled": False})
    file = desk.open("hand.py", AREA)
    window.go_to(3, 1)
    window.type("    ret")
    if when == "at once":
        window.pause(1)
        assert window.ghost() == ""
    elif when == "amid one":
        window.wait_for_ghost("urn w")
    else:
        window.wait_for_ghost("urn w * h")
        if version != VERSIONS[0]:
            # There growing text counts as asked for by hand already: the same is not asked twice.
            window.press("Escape")
            window.wait_for_ghost("")
    assert not any(one["draw"] for one in desk.script.heard("complete"))
    window.run_here("editor.action.inlineSuggest.trigger")
    window.wait_for_ghost("urn w * h")
    window.wait(
        lambda: len([one for one in desk.script.heard("complete") if one["draw"]]) == 3, "draws"
    )
    window.pause(1)
    assert cycle(desk, "urn w * h") == ["urn w * h", "urn h * w", "urn 2 * w"]
    window.run_here("editor.action.inlineSuggest.showNext")
    window.wait_for_ghost("urn h * w")
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", "\n    return h * w\n").encode()


@pytest.mark.parametrize("preview", [False, True])
def test_the_selected_item_of_the_suggest_widget_is_gone_on_from(desk: Desk, preview: bool) -> None:
    window = desk.window
    desk.script.say("    return wid", "er", pause_s=0.1)
    desk.script.say("    return width_of_all", " * height", " * 2", pause_s=0.3)
    desk.workbench.set_others(
        {"editor.suggest.preview": preview, "editor.wordBasedSuggestions": "currentDocument"}
    )
    file = desk.open("selected.py", AREA.replace("the product", "width_of_all"))
    window.go_to(3, 1)
    window.type("    return wid")
    window.wait_for_ghost("er")
    window.press("Control+Space")
    window.page.wait_for_selector(".suggest-widget .monaco-list-row.focused", state="visible")
    window.wait_for_ghost("th_of_all * height * 2")
    window.press("Enter")  # takes the item
    window.wait_for_ghost(" * height * 2")
    window.press("Tab")
    wanted = "    return width_of_all * height * 2"
    assert wanted in window.save(file).decode().split("\n")


def test_escape_ends_the_stream_for_good(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", " * 2", " * 3", pause_s=0.6)
    desk.open("escape.py", AREA)
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    window.press("Escape")
    window.wait_for_ghost("")
    with window.recording() as frames:
        window.pause(2)
    assert [frame.ghost for frame in frames] == [""]
    assert desk.script.heard("cancel")
    window.type("u")
    window.wait_for_ghost("rn w * h * 2 * 3")


def test_escape_closes_the_suggest_widget_first(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", pause_s=3)
    desk.script.say("    returned", " + 1", " + 2", pause_s=3)
    desk.workbench.set_others({"editor.wordBasedSuggestions": "currentDocument"})
    desk.open("widget.py", AREA.replace("the product", "returned"))
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w")
    window.press("Control+Space")
    window.page.wait_for_selector(".suggest-widget .monaco-list-row.focused", state="visible")
    window.wait_for_ghost("urned + 1")
    window.press("Escape")
    window.page.wait_for_selector(".suggest-widget", state="hidden")
    window.wait_for_ghost("urn w")
    window.press("Escape")
    window.wait_for_ghost("")


def test_typing_along_keeps_the_text(desk: Desk, version: str) -> None:
    window = desk.window
    line = "    return width * height"
    desk.script.say("    r", "eturn", " width", " *", " height", pause_s=0.4)
    file = desk.open("along.py", AREA)
    window.go_to(3, 1)
    window.type("    r")
    window.wait_for_ghost("eturn")
    with window.recording() as frames:
        window.type("eturn wid", delay_ms=120)
        window.wait_for_ghost("th * height")
    drawn = [frame.line for frame in seen(frames, version)]
    for before, after in pairwise(drawn):
        assert after.startswith(before), drawn
    assert drawn[-1] == line
    # One generation served all of it.
    assert [one["line"] for one in desk.script.heard("complete") if one["lane"] == "key"][-1] == (
        "    r"
    )
    window.press("Tab")
    assert window.save(file) == AREA.replace("\n\n", f"\n{line}\n").encode()


def test_typing_something_else_takes_the_text_away(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    r", "eturn", " w", " * h", pause_s=0.5)
    desk.script.say("    rai", "se ValueError", pause_s=0.1)
    desk.open("else.py", AREA)
    window.go_to(3, 1)
    window.type("    r")
    window.wait_for_ghost("eturn")
    with window.recording() as frames:
        window.type("ai")
        window.wait_for_ghost("se ValueError")
        window.pause(1.5)
    allowed = ("    return w * h", "    raise ValueError")
    assert all(any(text.startswith(frame.line) for text in allowed) for frame in frames), frames
    assert frames[-1].line == "    raise ValueError"


def test_windows_line_ends_and_emoji(desk: Desk) -> None:
    window = desk.window
    desk.script.say('s = "😀é"; t = ', '"𝄞"', " + s\n", "u = t", pause_s=0.2)
    file = desk.open("crlf.py", 'a = "😀"\r\n\r\ns = "😀é"; t\r\nb = "é"\r\n')
    window.go_to(3, len('s = "😀é"; t'.encode("utf-16-le")) // 2 + 1)
    window.type(" = ")
    window.wait_for_ghost('"𝄞" + s')
    window.press("Tab")
    wanted = 'a = "😀"\r\n\r\ns = "😀é"; t = "𝄞" + s\r\nb = "é"\r\n'
    assert window.save(file) == wanted.encode()


def test_several_lines_into_windows_line_ends(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ", *BODY[:2], " # 😀", *BODY[3:], pause_s=0.2)
    desk.script.say("", *BODY[:2], " # 😀", *BODY[3:], pause_s=0.2)
    file = desk.open("lines.py", AREA.replace("\n", "\r\n"))
    window.go_to(3, 1)
    window.type("    ")
    window.wait_for_ghost("return w # 😀\n    print(w)\n    print(h)")
    window.press("Tab")
    body = "\n    return w # 😀\n    print(w)\n    print(h)\n"
    assert window.save(file) == AREA.replace("\n\n", body).replace("\n", "\r\n").encode()


def test_closers_right_of_the_cursor_are_not_doubled(desk: Desk) -> None:
    window = desk.window
    desk.script.say("print(", "area(1, 2)", ", 3)", pause_s=0.2)
    file = desk.open("closers.py", "# shows\nprint)\n# end\n")
    window.go_to(2, 6)
    window.type("(")
    window.wait(lambda: window.line() == "print(area(1, 2), 3)", "the whole text")
    window.press("Tab")
    assert window.save(file) == b"# shows\nprint(area(1, 2), 3)\n# end\n"


def test_a_killed_daemon_is_replaced(desk: Desk) -> None:
    window, workbench = desk.window, desk.workbench
    desk.script.say("    ret", "urn w", " * h", pause_s=0.3)
    desk.open("daemon.py", AREA)
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    window.press("Escape")
    killed = workbench.daemons()
    workbench.kill(killed)
    window.wait(lambda: set(workbench.daemons()) - set(killed), "another daemon")
    window.wait_until_ready()
    window.type("u")
    window.wait_for_ghost("rn w * h")


def test_a_killed_server_is_replaced(desk: Desk) -> None:
    window, workbench = desk.window, desk.workbench
    desk.script.say("    ret", "urn w", " * h", pause_s=0.3)
    desk.open("server.py", AREA)
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    window.press("Escape")
    killed = workbench.servers()
    workbench.kill(killed)
    window.wait(lambda: set(workbench.servers()) - set(killed), "another server")
    window.wait_until_ready()
    window.type("u")
    window.wait_for_ghost("rn w * h")
    assert len(workbench.daemons()) == 1


def test_restart(desk: Desk) -> None:
    window, workbench = desk.window, desk.workbench
    desk.script.say("    ret", "urn w", " * h", pause_s=0.1)
    desk.open("restart.py", AREA)
    before = workbench.servers()
    window.run("completion-ls.restart")
    window.wait(
        lambda: (now := workbench.servers()) and not set(now) & set(before), "another server"
    )
    window.wait_until_ready()
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")


def test_two_windows_share_a_daemon(desk: Desk) -> None:
    first, workbench = desk.window, desk.workbench
    desk.script.say("    ret", "urn w", " * h", pause_s=0.1)
    desk.open("one.py", AREA)
    second = workbench.window(workbench.file("two.py", AREA))
    second.wait_until_ready()
    for window in (second, first):
        window.page.click(".editor-instance .view-lines")
        window.go_to(3, 1)
        window.type("    ret")
        window.wait_for_ghost("urn w * h")
    assert len(workbench.servers()) == 2
    assert len(workbench.daemons()) == 1


def test_a_notebook_cell(desk: Desk) -> None:
    window = desk.window
    desk.script.say("print(fo", "ur", " + 1)", pause_s=0.3)
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": [source],
        }
        for source in ("four = 4  # the number", "# shows it")
    ]
    metadata = {"language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    file = desk.workbench.file("cells.ipynb", json.dumps(content))
    window.show(file)
    window.page.locator(".notebook-editor .code-cell-row .view-line").nth(1).click()
    window.press("Control+End", "Enter")
    window.type("print(fo")
    window.wait_for_ghost("ur + 1)")
    window.press("Tab")
    saved = json.loads(window.save(file))
    assert "".join(saved["cells"][1]["source"]) == "# shows it\nprint(four + 1)"


def test_a_setting_takes_effect(desk: Desk) -> None:
    window = desk.window
    desk.script.say("", *BODY, pause_s=0.05)
    desk.open("setting.py", AREA)
    window.go_to(3, 1)
    window.type("    ")
    window.wait_for_ghost(TEXT.strip())
    window.press("Escape", "Shift+Home", "Delete")
    desk.workbench.set(completion__lines="single")
    # When it has arrived cannot be seen but by asking.
    deadline = time.monotonic() + 15
    while True:
        window.type("    ")
        ghost = window.wait_for_any_ghost()
        if "\n" not in ghost:
            window.pause(0.5)
            ghost = window.ghost()
        if ghost == "return w * h":
            break
        assert time.monotonic() < deadline, ghost
        window.press("Escape", "Shift+Home", "Delete")
        window.pause(0.5)


def test_a_setting_that_is_taken_back_needs_no_other_server(desk: Desk) -> None:
    window, workbench = desk.window, desk.workbench
    desk.script.say("    ret", "urn w", " * h", pause_s=0.1)
    desk.open("back.py", AREA)
    workbench.set(server__disabled_languages=["python"])
    window.wait_for_status("off for python")
    before = workbench.servers()
    window.run("completion-ls.restart")  # the new one begins with the setting
    servers = window.wait(
        lambda: (now := workbench.servers()) and not set(now) & set(before) and now,
        "another server",
    )
    workbench.set(server__disabled_languages=None)
    window.wait_until_ready()
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    assert workbench.servers() == servers


def test_another_model_is_loaded_when_the_settings_name_it(desk: Desk) -> None:
    window = desk.window
    desk.script.say("    ret", "urn w", " * h", pause_s=0.1)
    desk.script.loads_for(2)
    desk.open("model.py", AREA)
    desk.workbench.set(model__name="another-model")
    window.wait_for_status("loading")
    window.wait_until_ready("another-model")
    window.go_to(3, 1)
    window.type("    ret")
    window.wait_for_ghost("urn w * h")
    assert desk.script.heard("load")[-1]["model"] == "another-model"


@pytest.mark.model
def test_the_real_model(real: Callable[..., Workbench], version: str) -> None:
    if version != VERSIONS[0]:
        pytest.skip("Once is enough: here VS Code's version makes no difference.")
    workbench = real()
    text = "def area(width, height):\n    \n\n\nprint(area(2, 3))\n"
    file = workbench.file("real.py", text)
    window = workbench.window(file)
    window.wait_until_ready(timeout_s=90)
    window.page.click(".editor-instance .view-lines")
    window.go_to(2, 5)
    window.type("return wi")
    window.wait(lambda: window.line().startswith("    return width"), "the word goes on")
    window.pause(1)
    line = window.line()
    window.press("Tab")
    saved = window.save(file).decode()
    assert saved.startswith(f"def area(width, height):\n{line.rstrip()}")
    assert saved.endswith("\n\n\nprint(area(2, 3))\n")
