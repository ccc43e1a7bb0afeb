"""Ghost text: where it is drawn, how it grows, and when it goes."""

from __future__ import annotations

import pytest

from support.nvim import Neovim, until
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"


def open_ready(editor: Neovim, name: str, content: str | bytes, **options: object) -> None:
    """Edit a file, and wait for the engine."""
    editor.open(name, content, **options)
    editor.wait_until_ready()


def test_it_grows_and_only_grows(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3", " * radius", " ** 2\n", "", pause_s=0.3)
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    seen: list[str] = []

    def is_whole() -> bool:
        ghost = editor.ghost
        if ghost != (seen[-1] if seen else ""):
            seen.append(ghost)
        return ghost == "urn 3 * radius ** 2"

    until(is_whole, f"it is not whole: {seen}")
    assert seen == ["urn 3", "urn 3 * radius", "urn 3 * radius ** 2"]
    editor.wait_for_screen("def area(radius):", "    return 3 * radius ** 2")


def test_typing_along_keeps_it(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3 * ra", "dius\n", pause_s=1)
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3 * ra")
    for typed in range(1, 7):
        editor.keys("urn 3 "[typed - 1].replace(" ", "<Space>"))
        assert editor.ghost.startswith("urn 3 * ra"[typed:])  # without a moment's absence
    editor.wait_for_ghost("* radius")
    keys = [one for one in script.heard("complete") if one["lane"] == "key"]
    assert [one["line"] for one in keys] == ["    ret"]


def test_what_disagrees_ends_it(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    editor.keys("x")
    assert editor.ghost == ""
    editor.keys("<BS>")
    editor.wait_for_ghost("urn 3")


@pytest.mark.parametrize(
    "keys", ["<Esc>", "<C-]>", "<Up>", "<C-o>:new<CR>", "<C-o>:buffer #<CR>", "<C-o>gg"]
)
def test_what_makes_it_go(editor: Neovim, script: Script, keys: str) -> None:
    script.say("    ret", "urn 3", " * radius\n", pause_s=1)
    editor.open("other.py", "pass\n")
    open_ready(editor, "area.py", DEF)
    buffer = editor.nvim.current.buffer
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    editor.keys(keys)
    until(lambda: script.heard("cancel") and not editor.ghost, "it goes on")
    namespace = editor.lua("return require('completion_ls.ghost').namespace")
    assert editor.nvim.api.buf_get_extmarks(buffer, namespace, 0, -1, {}) == []


def test_a_change_elsewhere_ends_it(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    script.clear()
    # As a formatter does that answers late.
    editor.nvim.current.buffer[0] = "def volume(radius):"
    editor.keys("<Ignore>")
    until(lambda: not editor.ghost, "it stays")


def test_more_lines_than_one(editor: Neovim, script: Script) -> None:
    script.say("", "    side = 2 * radius\n    return side * side\n\n")
    open_ready(editor, "area.py", DEF + "# the end\n")
    editor.keys("o")
    editor.wait_for_ghost("    side = 2 * radius\n    return side * side")
    editor.wait_for_screen(
        "def area(radius):", "    side = 2 * radius", "    return side * side", "# the end"
    )
    editor.keys("<Space><Space>")
    editor.wait_for_ghost("  side = 2 * radius\n    return side * side")
    editor.keys("<Tab>")
    editor.wait_for_lines(
        "def area(radius):", "    side = 2 * radius", "    return side * side", "# the end"
    )


def test_tabs_and_wide_characters(editor: Neovim, script: Script) -> None:
    script.say("", '\tmsg := "火🥸" // é\n\tx(msg)\n')
    open_ready(editor, "main.go", "package main\n\nfunc main() {\n", expandtab=False, tabstop=4)
    editor.keys("Go")
    editor.wait_for_screen("func main() {", '    msg := "火🥸" // é', "    x(msg)", at=2)
    editor.keys('<C-v><Tab>msg := "火🥸')
    editor.wait_for_ghost('" // é\n    x(msg)')
    editor.wait_for_screen("func main() {", '    msg := "火🥸" // é', "    x(msg)", at=2)
    editor.keys("<Tab>")
    editor.wait_for_lines("package main", "", "func main() {", '\tmsg := "火🥸" // é', "\tx(msg)")


def test_a_tab_inside_of_it_ends_where_a_real_one_would(editor: Neovim, script: Script) -> None:
    script.say("name", "\t= 1\n")
    open_ready(editor, "notes.txt", "some text here\n", expandtab=False, tabstop=8)
    editor.keys("oname")
    editor.wait_for_ghost("    = 1")
    before = editor.screen()[1]
    editor.keys("<Tab>")
    editor.wait_for_lines("some text here", "name\t= 1")
    assert editor.screen()[1] == before == "name    = 1"


def test_lines_that_wrap(editor: Neovim, script: Script) -> None:
    digits = "".join(map(str, range(10, 105)))  # what repeats itself ends early
    first, second = digits[:90], digits[90:190]
    script.say("", f"{first}\n{second}\nz\n")
    open_ready(editor, "notes.txt", "some text here:\n\n", wrap=True)
    editor.keys("o")
    rows = [first[:80], first[80:], second[:80], second[80:]]
    editor.wait_for_screen("some text here:", *rows, "z", "")


def test_virtual_text_of_others_and_folds(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", "def area(radius):\n    a\n    b\n    c\n", foldmethod="manual")
    editor.nvim.command("2,3fold")
    editor.lua(
        """
        local namespace = vim.api.nvim_create_namespace("hints")
        vim.api.nvim_buf_set_extmark(0, namespace, 3, 4, {
          virt_text = { { "hint:", "Comment" } }, virt_text_pos = "inline" })
        vim.api.nvim_buf_set_extmark(0, namespace, 3, 0, { virt_text = { { "<- here" } } })
        """
    )
    editor.keys("Go    ret")
    editor.wait_for_ghost("urn 3")
    rows = editor.screen()
    assert rows[0] == "def area(radius):"
    assert "2 lines" in rows[1]
    assert rows[2:4] == ["    hint:c <- here", "    return 3"]


def test_the_other_window_on_a_buffer_does_not_show_it(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", DEF)
    editor.nvim.command("split")
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    rows = editor.screen()
    assert rows.count("    return 3") == 1
    assert rows.count("    ret") == 1


def test_closers_behind_the_cursor_stay_where_they_are(editor: Neovim, script: Script) -> None:
    script.say("area(", "radius)\n")
    open_ready(editor, "area.py", DEF)
    editor.nvim.command("inoremap <buffer> ( ()<Left>")
    editor.keys("oarea(")
    editor.wait_for_ghost("radius")
    editor.wait_for_screen("def area(radius):", "area(radius)")
    editor.keys("ra")
    editor.wait_for_ghost("dius")
    editor.keys("<Tab>!")
    editor.wait_for_lines("def area(radius):", "area(radius!)")


def test_text_around_closers(editor: Neovim, script: Script) -> None:
    script.say("def volume(", "radius): return 4\n")
    open_ready(editor, "area.py", DEF)
    editor.keys("odef volume()<Left>")
    editor.keys("<C-x>")  # nothing; so that the cursor's move and a request are two things
    editor.keys("<BS>(")
    editor.wait_for_ghost("radius‸: return 4")
    editor.wait_for_screen("def area(radius):", "def volume(radius): return 4")
    editor.keys("<Tab>")
    editor.wait_for_lines("def area(radius):", "def volume(radius): return 4")


def test_brackets_that_close_themselves_in_the_text(editor: Neovim, script: Script) -> None:
    script.say("print", "(area(3))\n")
    open_ready(editor, "area.py", DEF)
    editor.nvim.command("inoremap <buffer> ( ()<Left>")
    editor.keys("oprint")
    editor.wait_for_ghost("(area(3))")
    editor.keys("(")
    editor.wait_for_screen("def area(radius):", "print(area(3))")
    editor.keys("<Tab>")
    editor.wait_for_lines("def area(radius):", "print(area(3))")


def test_off_and_on(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", DEF)
    editor.nvim.command("CompletionLs off")
    editor.keys("o    ret")
    assert editor.lua("return require('completion_ls').statusline()") == "completion-ls off"
    editor.keys("<M-Bslash>")  # by hand it is there all the same
    editor.wait_for_ghost("urn 3")
    editor.keys("<Esc>:CompletionLs on<CR>S    ret")
    editor.wait_for_ghost("urn 3")
    assert editor.lua("return require('completion_ls').statusline()") == "completion-ls"


def test_off_for_a_buffer(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n")
    open_ready(editor, "area.py", DEF)
    editor.lua("vim.b.completion_ls = false")
    editor.keys("o    ret")
    editor.keys("<M-Bslash>")
    editor.wait_for_ghost("urn 3")
    assert {one["lane"] for one in script.heard("complete")} <= {"manual", "background"}


def test_alternatives(editor: Neovim, script: Script) -> None:
    script.say("    ret", "urn 3\n", others=["urn 4\n", "urn 5\n"])
    open_ready(editor, "area.py", DEF)
    editor.keys("o    ret")
    editor.wait_for_ghost("urn 3")
    editor.keys("<M-]>")
    editor.wait_for_ghost("urn 4")
    editor.keys("<M-]>")
    editor.wait_for_ghost("urn 5")
    editor.keys("<M-[><M-[>")
    editor.wait_for_ghost("urn 3")
    editor.keys("<M-]>")
    editor.wait_for_ghost("urn 4")
    editor.keys("u")
    editor.wait_for_ghost("rn 4")
    editor.keys("<M-Right>")
    editor.wait_for_ghost(" 4")
    editor.keys("<Tab>")
    editor.wait_for_lines("def area(radius):", "    return 4")
