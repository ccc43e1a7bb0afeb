"""What is counted of what editors do, on a server whose engine says what a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lsprotocol import types as t

from completion_ls.config.settings import CompletionSettings, ServerSettings, Settings
from completion_ls.lsp import count_file, messages
from completion_ls.lsp import server as lsp
from completion_ls.lsp.documents import DocumentWorkspace
from completion_ls.lsp.items import completion_items, inline_items
from completion_ls.lsp.kept import Kept
from completion_ls.lsp.offers import MOST, Offers
from completion_ls.lsp.suggester import Suggester
from support.session import AREA, BODY, URI, ScriptedEngine, settle

LINES = "total = 0\n    return total"
SETTINGS = Settings(
    completion=CompletionSettings(ahead=False), server=ServerSettings(completion_items=True)
)


class Desk:
    """One document in a server, the user's hands, and the counts."""

    def __init__(self, after_s: tuple[float, ...] = (1000.0, 2000.0)) -> None:
        self.engine = ScriptedEngine()
        self.server = lsp.create_server()
        self.server.protocol._workspace = DocumentWorkspace(
            None, position_encoding=t.PositionEncodingKind.Utf16
        )
        self.server.settings = SETTINGS
        self.server.suggester = Suggester(self.engine, SETTINGS)
        offers = self.server.offers
        offers._kept = Kept(offers._judged, after_s)
        self.server.workspace.put_text_document(t.TextDocumentItem(URI, "python", 1, AREA))
        self.version = 1

    @property
    def offers(self) -> Offers:
        return self.server.offers

    @property
    def text(self) -> str:
        return self.server.workspace.text_documents[URI].source

    def at(self, offset: int) -> t.Position:
        before = self.text[:offset]
        return t.Position(before.count("\n"), len(before) - before.rfind("\n") - 1)

    def edit(self, text: str, start: int | None = None, end: int | None = None) -> None:
        """textDocument/didChange; at the end where no place is given."""
        start = len(self.text) if start is None else start
        place = t.Range(self.at(start), self.at(start if end is None else end))
        change = t.TextDocumentContentChangePartial(text=text, range=place)
        self.version += 1
        name = t.VersionedTextDocumentIdentifier(self.version, URI)
        self.server.workspace.update_text_document(name, change)
        lsp.follow_change(self.server, URI, [change])

    async def ask(self, say: str = "", *, kind: int = 2, streams: bool = False) -> list[Any]:
        """Ask at the end of the text; the engine says this, if it is asked."""
        context = t.InlineCompletionContext(t.InlineCompletionTriggerKind(kind))
        parts: list[Any] = []
        partial = parts.append if streams else None
        place = self.at(len(self.text))
        jobs = len(self.engine.answers)
        task = asyncio.create_task(inline_items(self.server, URI, place, context, partial))
        await settle()
        for job in range(jobs, len(self.engine.answers)):
            self.engine.finish(job, say)
        return await asyncio.wait_for(task, 10)

    async def show(self, say: str = BODY) -> str:
        """Ask, and be shown something; its id."""
        [item] = await self.ask(say)
        return id_of(item)

    def counted(self) -> Counter[str]:
        """What was counted, without what is 0."""
        return +self.server.counts._new["scripted"]


def id_of(item: Any) -> str:
    assert item.command.command == messages.ACCEPTED
    [id] = item.command.arguments
    return str(id)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await desk.server.close()


@pytest.fixture
async def told(desk: Desk) -> Desk:
    """The client tells what its user does."""
    desk.offers.is_told = True
    return desk


async def test_what_is_typed_along_is_shown_once(desk: Desk) -> None:
    await desk.ask(BODY, streams=True)
    for letter in BODY[:6]:
        desk.edit(letter)
        await desk.ask()
    desk.edit("", len(desk.text) - 1, len(desk.text))
    await desk.ask()
    assert desk.counted() == {"shown": 1}
    desk.edit("x")
    await desk.ask(" = 1")
    assert desk.counted() == {"shown": 2, "rejected": 1}


async def test_what_grows_is_shown_once(desk: Desk) -> None:
    context = t.InlineCompletionContext(t.InlineCompletionTriggerKind.Automatic)
    parts: list[Any] = []
    place = desk.at(len(AREA))
    task = asyncio.create_task(inline_items(desk.server, URI, place, context, parts.append))
    for part in ("return", " width", " * height"):
        await settle()
        desk.engine.say(0, part)
    await settle()
    desk.engine.finish(0)
    ids = {id_of(item) for item in [*parts, *await task]}
    assert len(parts) > 1 and len(ids) == 1
    assert desk.counted() == {"shown": 1}


async def test_what_never_went_to_the_editor_was_not_shown(desk: Desk) -> None:
    context = t.InlineCompletionContext(t.InlineCompletionTriggerKind.Automatic)
    place = desk.at(len(AREA))
    task = asyncio.create_task(inline_items(desk.server, URI, place, context))
    await settle()
    desk.engine.say(0, "return")
    await settle()
    task.cancel()
    await settle()
    assert desk.counted() == {}


async def test_by_hand_it_counts_when_the_alternatives_are_there_too(desk: Desk) -> None:
    by_hand = t.InlineCompletionContext(t.InlineCompletionTriggerKind.Invoked)
    place = desk.at(len(AREA))
    task = asyncio.create_task(inline_items(desk.server, URI, place, by_hand))
    await settle()
    desk.engine.finish(0, BODY)
    await settle()
    assert len(desk.engine.answers) > 1  # they are drawn
    task.cancel()
    await settle()
    assert desk.counted() == {}


async def test_typed_out_is_neither_accepted_nor_rejected(desk: Desk) -> None:
    await desk.show("pass")
    for letter in "pass":
        desk.edit(letter)
    desk.edit("\n")
    await desk.ask("print()")
    assert desk.counted() == {"shown": 2}


@pytest.mark.parametrize("command", [True, False])
async def test_all_at_once_is_accepted_and_counted_once(desk: Desk, command: bool) -> None:
    id = await desk.show()
    desk.edit("re")  # typed fast
    assert desk.counted() == {"shown": 1}
    desk.edit(BODY[2:])
    for _ in range(2 * command):
        execute(desk, id)
    kept = {"characters_accepted": len(BODY) - 2}
    assert desk.counted() == {"shown": 1, "accepted": 1, **kept}
    desk.edit("\n    ")
    await desk.ask("return 0")
    assert desk.counted() == {"shown": 2, "accepted": 1, **kept}


def execute(desk: Desk, *arguments: Any) -> None:
    """workspace/executeCommand"""
    desk.server.protocol.fm.commands[messages.ACCEPTED](*arguments)


async def test_the_command_says_what_a_change_does_not(desk: Desk) -> None:
    id = await desk.show("x")
    desk.edit("x")  # as if it were typed
    assert desk.counted() == {"shown": 1}
    execute(desk, id)
    assert desk.counted() == {"shown": 1, "accepted": 1, "characters_accepted": 1}


async def test_an_editor_that_changes_what_it_accepts(desk: Desk) -> None:
    """Of another indentation, say: it looks like another text until the editor says so."""
    id = await desk.show(LINES)
    desk.edit(LINES.replace("    ", "\t"))
    assert desk.counted() == {"shown": 1, "rejected": 1}
    execute(desk, id)
    assert desk.counted() == {"shown": 1, "accepted": 1}


async def test_words_a_line_and_the_rest(told: Desk) -> None:
    id = await told.show(LINES)
    for action, part, wanted in [
        ("acceptWord", "total", {"accepted_words": 1, "characters_accepted": 5}),
        ("acceptWord", " =", {"accepted_words": 2, "characters_accepted": 7}),
        ("acceptLine", " 0\n", {"accepted_lines": 1, "characters_accepted": 10}),
        ("accept", "    return total", {"accepted": 1, "characters_accepted": len(LINES)}),
    ]:
        told.edit(part)
        told.offers.used(id, action, len(part))  # type: ignore[arg-type]
        assert wanted.items() <= told.counted().items()
        if action != "accept":
            assert id_of((await told.ask())[0]) == id
    assert told.counted()["shown"] == 1
    told.edit("!")
    await told.ask("?")
    assert told.counted()["rejected"] == 0


async def test_typed_and_accepted_in_one_change(told: Desk) -> None:
    id = await told.show()
    told.edit(BODY)
    told.offers.used(id, "accept", len(BODY) - 3)
    assert told.counted() == {"shown": 1, "accepted": 1, "characters_accepted": len(BODY) - 3}


async def test_who_tells_is_not_guessed_about(told: Desk) -> None:
    id = await told.show("area(1, 2)")
    told.edit("area(1, 2)")
    assert told.counted() == {"shown": 1}
    told.edit("\n    ")
    await told.ask("return 0")  # before the editor came to say it
    told.offers.used(id, "acceptLine", None)
    assert told.counted() == {"shown": 2, "accepted_lines": 1, "characters_accepted": 10}


async def test_escape_is_a_rejection_once(told: Desk) -> None:
    id = await told.show()
    told.offers.used(id, "reject", None)
    told.offers.used(id, "reject", None)
    told.edit("x")
    await told.ask(" = 1")
    assert told.counted() == {"shown": 2, "rejected": 1}
    told.edit("")  # of what was used, what is left is not rejected
    id = await told.show()
    told.edit(" =")
    told.offers.used(id, "acceptWord", 2)
    told.offers.used(id, "reject", None)
    assert told.counted()["rejected"] == 1


async def test_going_elsewhere_is_a_rejection(desk: Desk) -> None:
    await desk.show()
    desk.edit("# new\n", 0)  # by a formatter, say
    await desk.ask()
    assert desk.counted() == {"shown": 1}
    desk.edit("\n")
    await desk.ask("pass")
    assert desk.counted() == {"shown": 2, "rejected": 1}


async def test_what_is_over_holds_no_suggestion(told: Desk) -> None:
    for number in range(3):
        told.offers.used(await told.show(), "reject", None)
        told.edit(f"\n    x{number} = 1\n    ")
    assert [one.source for one in told.offers._all.values()] == [None] * 3


async def test_an_alternative_is_accepted(desk: Desk) -> None:
    task = asyncio.create_task(desk.ask(BODY, kind=1))
    for job, text in enumerate([BODY, "pass", "raise Error", "pass"]):
        await settle()
        if job:
            desk.engine.finish(job, text)
    first, second, third = await task
    assert desk.counted() == {"shown": 1}
    assert id_of(first).partition(".")[0] == id_of(third).partition(".")[0]
    desk.edit(str(third.insert_text))
    execute(desk, id_of(third))
    assert desk.counted() == {"shown": 1, "accepted": 1, "characters_accepted": 11}
    assert second.insert_text == "pass"


async def test_an_item_of_the_menu(desk: Desk) -> None:
    desk.edit("retu")
    place = desk.at(len(desk.text))
    params = t.CompletionParams(t.TextDocumentIdentifier(URI), place)
    task = asyncio.create_task(completion_items(desk.server, params))
    await settle()
    desk.engine.finish(0, "rn width\n    # done")
    found = await task
    assert found
    [item] = found.items
    assert isinstance(item.text_edit, t.TextEdit)
    desk.edit("return width", len(desk.text) - 4, len(desk.text))
    assert desk.counted() == {"shown": 1, "accepted": 1, "characters_accepted": 8}
    execute(desk, id_of(item))
    assert desk.counted()["accepted"] == 1


async def test_the_selected_item_of_the_menu_is_not_ours(told: Desk) -> None:
    told.edit("ret")
    start = t.Position(1, 4)
    chosen = t.SelectedCompletionInfo(t.Range(start, told.at(len(told.text))), "return")
    context = t.InlineCompletionContext(t.InlineCompletionTriggerKind.Automatic, chosen)
    place = told.at(len(told.text))
    task = asyncio.create_task(inline_items(told.server, URI, place, context))
    await settle()
    told.engine.finish(0, " width")
    [item] = await task
    assert item.insert_text == "return width"
    told.edit("urn width")
    told.offers.used(id_of(item), "accept", None)
    assert told.counted() == {"shown": 1, "accepted": 1, "characters_accepted": 6}


@pytest.mark.parametrize(
    "junk",
    [
        None,
        5,
        [],
        {},
        "",
        ".",
        "x.0",
        "0.0",
        ".0",
        "\ud800",
        "9" * 10_000,
        "ID.1",
        "ID.",
        "ID.²",
        "ID." + "9" * 5000,
    ],
)
async def test_junk_is_ignored(desk: Desk, junk: Any) -> None:
    id = await desk.show()
    desk.edit(BODY[:3])
    given = junk.replace("ID", id[:-2]) if isinstance(junk, str) else junk
    for action in ("accept", "acceptWord", "reject"):
        desk.offers.used(given, action, -5)  # type: ignore[arg-type]
    execute(desk, given)
    execute(desk, given, 1, 2)
    execute(desk)
    assert desk.counted() == {"shown": 1}
    desk.offers.used(id, "acceptWord", 10**9)
    assert desk.counted() == {"shown": 1, "accepted_words": 1, "characters_accepted": 3}


async def test_what_was_offered_long_ago_is_ignored(desk: Desk) -> None:
    id = await desk.show()
    for number in range(MOST):
        desk.edit(f"\n    x{number}")
        await desk.ask("= 1")
    before = desk.counted()
    execute(desk, id)
    assert desk.counted() == before
    assert len(desk.server.workspace.text_documents[URI]._followed or []) <= MOST  # type: ignore[attr-defined]


async def test_a_closed_document_is_forgotten() -> None:
    desk = Desk()
    id = await desk.show()
    desk.edit(BODY)
    desk.edit("", len(AREA), len(AREA) + 7)
    lsp.forget(desk.server, URI)
    desk.server.workspace.remove_text_document(URI)
    assert not desk.offers._all and not desk.offers._live
    execute(desk, id)
    for when in ("30_s", "5_min"):
        assert desk.counted()[f"characters_judged_after_{when}"] == len(BODY)
        assert desk.counted()[f"characters_kept_after_{when}"] == len(BODY) - 7
    await desk.server.close()
    kept = {"characters_kept_after_30_s": len(BODY) - 7, "accepted": 1, "shown": 1}
    assert kept.items() <= count_file.read()["scripted"].items()


async def test_kept_after_a_while() -> None:
    desk = Desk(after_s=(0.05, 0.1))
    await desk.show()
    desk.edit(BODY)
    desk.edit("depth", desk.text.index("width *"), desk.text.index(" * height"))
    while desk.counted()["characters_judged_after_5_min"] == 0:
        await asyncio.sleep(0.01)
    assert desk.counted()["characters_judged_after_30_s"] == len(BODY)
    assert len(BODY) - 5 <= desk.counted()["characters_kept_after_30_s"] < len(BODY)
    await desk.server.close()


async def test_the_figures_have_what_is_not_written_yet(desk: Desk) -> None:
    assert await desk.server.counts.of("scripted") == {}
    count_file.add({"scripted": {"shown": 2, "of_a_newer_version": 3}}, 5)
    await desk.show()
    found = await desk.server.counts.of("scripted")
    assert (found["shown"], found["accepted"], found["of_a_newer_version"]) == (3, 0, 3)


async def test_only_numbers_and_names_are_in_the_file(desk: Desk) -> None:
    await desk.show()
    desk.edit(BODY)
    await desk.server.counts.close()
    [[name, numbers]] = json.loads(count_file.place().read_text())["models"].items()
    assert name == "scripted"
    assert all(isinstance(value, int) for key, value in numbers.items() if key != "since")
