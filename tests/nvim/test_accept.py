"""Accepting: what the buffer is then, undo, repeat, and keys that fall through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from support.nvim import Neovim, until, until_equal
from support.scripted_daemon import Script

pytestmark = [pytest.mark.editor, pytest.mark.process]

DEF = "def area(radius):\n"
BODY = "    side = 2 * radius\n    return side * side\n\n"


@pytest.fixture
def body(editor: Neovim, script: Script) -> Neovim:
    """An editor that shows two lines."""
    script.say("", BODY)
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("o")
    editor.wait_for_ghost(BODY.rstrip())
    return editor


def test_a_word_and_another(body: Neovim) -> None:
    for word in ("    side", " =", " 2"):
        before = body.lines[1]
        body.keys("<M-Right>")
        body.wait_for_lines(DEF.strip(), before + word)
        assert body.ghost == BODY.rstrip()[len(before + word) :]


def test_a_line_and_another(body: Neovim) -> None:
    body.keys("<M-C-Right>")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius")
    assert body.ghost == "\n    return side * side"
    body.keys("<M-C-Right>")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius", "    return side * side")


def test_undo_takes_back_one_acceptance(body: Neovim) -> None:
    body.keys("<Space><Space><M-Right><Tab>")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius", "    return side * side")
    body.keys(" # done<Esc>u")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius", "    return side * side")
    body.keys("u")
    body.wait_for_lines(DEF.strip(), "    side")
    body.keys("u")
    body.wait_for_lines(DEF.strip(), "  ")
    body.keys("<C-r><C-r>")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius", "    return side * side")


def test_a_word_then_undo_leaves_the_suggestion_sound(body: Neovim) -> None:
    body.keys("<M-Right>")
    body.wait_for_lines(DEF.strip(), "    side")
    body.keys("<C-o>u")
    body.wait_for_lines(DEF.strip(), "")
    body.wait_for_ghost(BODY.rstrip())
    body.keys("<Tab>")
    body.wait_for_lines(DEF.strip(), "    side = 2 * radius", "    return side * side")


def test_repeat_inserts_the_same(editor: Neovim, script: Script) -> None:
    script.say("x = ", "area(3)\n")
    editor.open("area.py", DEF + "\n\n")
    editor.wait_until_ready()
    editor.keys("jax = ")
    editor.wait_for_ghost("area(3)")
    editor.keys("<Tab> + 1<Esc>")
    editor.wait_for_lines(DEF.strip(), "x = area(3) + 1", "")
    editor.keys("j.")
    editor.wait_for_lines(DEF.strip(), "x = area(3) + 1", "x = area(3) + 1")


def test_typed_along_and_accepted_in_one_go(editor: Neovim, script: Script) -> None:
    script.say("x = ", "area(3)\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("ox = ")
    editor.wait_for_ghost("area(3)")
    editor.keys("ar<Tab>!")
    editor.wait_for_lines(DEF.strip(), "x = area(3)!")


def test_backspaces_then_accept(editor: Neovim, script: Script) -> None:
    script.say("value = ", "compute(radius)\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("ovalue = compu")
    editor.wait_for_ghost("te(radius)")
    editor.keys("<BS><BS><BS>")
    editor.wait_for_ghost("mpute(radius)")
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), "value = compute(radius)")


def test_text_in_the_middle_of_a_line(editor: Neovim, script: Script) -> None:
    script.say('msg = "🥸 hi" + na', "me\n")
    editor.open("area.py", DEF + 'msg = "🥸 hi" +  # é\n')
    editor.wait_until_ready()
    editor.keys("j0f+a na")
    editor.wait_for_ghost("me")
    editor.wait_for_screen(DEF.strip(), 'msg = "🥸 hi" + name  # é')
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), 'msg = "🥸 hi" + name  # é')


def test_crlf(editor: Neovim, script: Script) -> None:
    script.say("", BODY)
    file = editor.open("area.py", b"def area(radius):\r\n# the end\r\n")
    editor.wait_until_ready()
    assert editor.nvim.api.get_option_value("fileformat", {}) == "dos"
    editor.keys("o")
    editor.wait_for_ghost(BODY.rstrip())
    editor.keys("<Tab><Esc>:write<CR>")
    wanted = (DEF + BODY.rstrip() + "\n# the end\n").replace("\n", "\r\n").encode()
    until_equal(file.read_bytes, wanted)


def test_keys_fall_through(editor: Neovim, script: Script) -> None:
    editor.open("notes.txt", "some text here\n", expandtab=False)
    editor.wait_until_ready()
    editor.keys("oa<Tab>b<C-]><M-]>c<Esc>")
    editor.wait_for_lines("some text here", "a\tbc")


def test_a_mapping_from_before_is_what_falls_through(
    another: Callable[[], tuple[Neovim, Script]],
) -> None:
    editor, script = another()
    editor.open("area.py", DEF)
    editor.lua(
        """
        vim.keymap.set("i", "<Tab>", function() return "<C-v>u2192" end, { expr = true })
        vim.keymap.set("i", "<M-Right>", "[word]")
        """
    )
    editor.setup()
    script.say("x = ", "area(3)\n")
    editor.keys("o<Tab><M-Right> x = <BS><BS><BS><BS><BS>")
    editor.wait_for_lines(DEF.strip(), "→[word]")
    editor.keys("<Esc>Sx = ")
    editor.wait_for_ghost("area(3)")
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), "x = area(3)")
    # Another setup leaves the key as it was before ours.
    editor.setup(keys={"accept": "<C-e>"})
    editor.keys("<Esc>S<Tab>")
    editor.wait_for_lines(DEF.strip(), "→")


def test_a_macro_plays_what_was_recorded(editor: Neovim, script: Script) -> None:
    script.say("x = ", "area(3)\n")
    editor.open("notes.txt", DEF + "\n\n", expandtab=False)
    editor.wait_until_ready()
    editor.keys("jqqax = <Tab>1<Esc>q")
    editor.wait_for_lines(DEF.strip(), "x = \t1", "")
    editor.keys("j@q")
    editor.wait_for_lines(DEF.strip(), "x = \t1", "x = \t1")
    editor.keys("Sx = ")
    editor.wait_for_ghost("area(3)")


def test_beside_the_builtin_menu(editor: Neovim, script: Script) -> None:
    script.say("rad", "ius * radius\n")
    editor.open("area.py", DEF)
    editor.wait_until_ready()
    editor.keys("orad<C-n>")
    until(lambda: editor.nvim.funcs.pumvisible() or editor.lines[1] == "radius", "no menu")
    editor.keys("<C-e>")
    editor.keys("<Esc>orad")
    editor.wait_for_ghost("ius * radius")
    editor.lua("vim.fn.complete(1, { 'radius', 'radian', 'radio' })")
    until(lambda: editor.nvim.funcs.pumvisible(), "no menu")
    editor.keys("<C-n>")
    until_equal(lambda: editor.lines[-1], "radian")
    assert editor.ghost == ""
    editor.keys("<C-p>")
    until_equal(lambda: editor.lines[-1], "radius")
    editor.wait_for_ghost(" * radius")
    editor.keys("<Tab>")
    until_equal(lambda: editor.lines[-1], "radius * radius")
    assert not editor.nvim.funcs.pumvisible()


def test_events(body: Neovim) -> None:
    body.lua(
        """
        vim.g.heard = {}
        vim.api.nvim_create_autocmd("User", {
          group = vim.api.nvim_create_augroup("test", {}),
          pattern = "CompletionLs*",
          callback = function(event)
            local heard = vim.g.heard
            local data = event.data
            heard[#heard + 1] = { event.match, data.kind or "", data.text or "" }
            vim.g.heard = heard
          end,
        })
        """
    )
    body.keys("<M-Right><C-]>")
    wanted = [["CompletionLsHidden", "", ""], ["CompletionLsAccepted", "word", "    side"]]
    until_equal(lambda: sorted(body.lua("return vim.g.heard")), sorted(wanted))


def test_a_word_and_no_more_in_one_go(body: Neovim) -> None:
    body.keys("<M-Right><C-]>")
    body.wait_for_lines(DEF.strip(), "    side")
    body.lua("vim.wait(500)")
    assert body.ghost == ""
    body.keys(" ")
    body.wait_for_ghost("= 2 * radius\n    return side * side")


def test_a_closing_that_stands_there_is_not_doubled(editor: Neovim, script: Script) -> None:
    script.say("def volume(", "radius, height):\n")
    editor.open("area.py", DEF + "def volume():\n    pass\n")
    editor.wait_until_ready()
    editor.keys("jf(i<Right>r<BS>")
    editor.wait_for_screen(DEF.strip(), "def volume(radius, height):", "    pass")
    editor.keys("<Tab>")
    editor.wait_for_lines(DEF.strip(), "def volume(radius, height):", "    pass")


def counts(editor: Neovim) -> Counter[str]:
    """What was counted so far."""
    found = editor.lua("return require('completion_ls.client').figures(0).suggestions or {}")
    return Counter({name: value for name, value in found.items() if isinstance(value, int)})


def test_what_is_accepted_is_counted(body: Neovim) -> None:
    before = counts(body)
    assert before["shown"] > 0
    for keys, text, counted in [
        ("<M-Right>", "    side", {"accepted_words": 1, "characters_accepted": 8}),
        ("<M-C-Right>", " = 2 * radius", {"accepted_lines": 1, "characters_accepted": 13}),
        ("<Tab>", "\n    return side * side", {"accepted": 1, "characters_accepted": 23}),
    ]:
        lines = "\n".join(body.lines) + text
        body.keys(keys)
        body.wait_for_lines(*lines.split("\n"))
        before += Counter(counted)
        until_equal(lambda wanted=before: wanted - counts(body), Counter())


def test_what_is_dismissed_is_counted(body: Neovim) -> None:
    before = counts(body)
    body.keys("<C-]>")
    body.wait_for_ghost("")
    until_equal(lambda: counts(body), before + Counter(rejected=1))
