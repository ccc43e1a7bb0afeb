"""What goes to the editor: items of inline completion, a stream of them, or one in the completion menu."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.exceptions import JsonRpcRequestCancelled

from completion_ls.lsp import messages
from completion_ls.lsp.documents import Document, Place, clean, key_of
from completion_ls.lsp.first_answer import SERVER_NAME
from completion_ls.lsp.occasion import is_wanted
from completion_ls.lsp.offers import MENU
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.wire.client import EngineFailed

if TYPE_CHECKING:
    from completion_ls.lsp.server import CompletionServer

log = logging.getLogger(__name__)


async def inline_items(
    server: CompletionServer,
    uri: str,
    position: types.Position,
    context: types.InlineCompletionContext,
    partial: Callable[[types.InlineCompletionItem], None] | None = None,
) -> list[types.InlineCompletionItem]:
    """The items for a position; `partial` is called with the item as it grows. Without it, the item
    may be the first lines of what comes."""
    server.supersede("inline", uri)
    document = server.document(uri)
    if document is None:
        return []
    manual = context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
    start = end = document.cursor = document.locate(position)
    server.others.used(document)
    chosen = context.selected_completion_info
    if chosen is not None:
        # The suggest widget is open on an item: continue as if it had been accepted already.
        start, end = document.locate(chosen.range.start), document.locate(chosen.range.end)
    head = clean(chosen.text) if chosen else ""
    situation = server.situation(document, start, end, head=head, manual=manual)
    seen = document.edits

    def item(shown: Shown, number: int = 0) -> types.InlineCompletionItem:
        last = Place(end.line, end.column + shown.replace_after)
        return types.InlineCompletionItem(
            insert_text=(head + shown.text).replace("\n", document.eol),
            range=types.Range(document.position(start), document.position(last)),
            command=_command(server, document, start, head, shown, number),
        )

    def grown(shown: Shown) -> None:
        if partial and server.is_current(document, seen):
            partial(item(shown))

    shown = await _ask(server, situation, grown if partial else None)
    if not server.is_current(document, seen):
        raise JsonRpcRequestCancelled("The document changed; ask again.")
    if shown is None:
        return []
    others: list[Shown] = []
    if manual and chosen is None:
        grown(shown)  # the others take their time
        others = await server.configured().alternatives(situation, shown)
        if not server.is_current(document, seen):
            raise JsonRpcRequestCancelled("The document changed; ask again.")
    # Only now: each item is counted as one that went to the editor.
    return [item(one, number) for number, one in enumerate([shown, *others])]


async def stream_items(
    server: CompletionServer, params: messages.StreamInlineCompletionParams
) -> types.InlineCompletionList:
    """As `inline_items`, with a notification for every growth and a last one that says `done`."""
    count = itertools.count()

    def send(items: list[types.InlineCompletionItem], *, done: bool) -> None:
        part = messages.PartialInlineCompletionParams(params.streamId, next(count), items, done)
        server.protocol.notify(messages.PARTIAL_INLINE_COMPLETION, part)

    items = await inline_items(
        server,
        params.textDocument.uri,
        params.position,
        params.context,
        lambda item: send([item], done=False),
    )
    send(items, done=True)
    return types.InlineCompletionList(items=items)


async def completion_items(
    server: CompletionServer, params: types.CompletionParams
) -> types.CompletionList | None:
    """The suggestion as an item of the completion menu, for editors without inline completion."""
    server.supersede("completion", params.text_document.uri)
    document = server.document(params.text_document.uri)
    if document is None or not server.settings.server.completion_items:
        return None
    place, seen = document.locate(params.position), document.edits
    shown = await _ask(server, server.situation(document, place, place))
    if not server.is_current(document, seen):
        raise JsonRpcRequestCancelled("The document changed; ask again.")
    # One line: some editors put an item's text into the buffer as it is, line ends included.
    text = shown.text.partition("\n")[0].rstrip() if shown else ""
    if shown is None or not text:
        return types.CompletionList(is_incomplete=True, items=[])
    # The word left of the cursor is replaced, with itself in front, as other servers do it: menus
    # filter by it, and eglot puts the label in its place before it applies the edit.
    word = re.split(r"[^\w-]", document.line(place.line)[: place.column])[-1]
    start = Place(place.line, place.column - len(word))
    end = Place(place.line, place.column + shown.replace_after)
    item = types.CompletionItem(
        label=(word + text).strip(),
        kind=types.CompletionItemKind.Text,
        detail=SERVER_NAME,
        sort_text="\uffff",
        filter_text=word + text,
        insert_text_format=types.InsertTextFormat.PlainText,
        text_edit=types.TextEdit(
            range=types.Range(document.position(start), document.position(end)),
            new_text=word + text,
        ),
        command=_command(server, document, place, "", Shown(text, shown.replace_after), MENU),
    )
    return types.CompletionList(is_incomplete=True, items=[item])


def _command(
    server: CompletionServer, document: Document, start: Place, head: str, shown: Shown, number: int
) -> types.Command:
    """Note that an item goes to the editor: `head`, which is not the model's, and a text, from a place
    on. Returns what the editor runs when it was accepted."""
    suggester = server.configured()
    source = suggester.live(key_of(document.uri))
    return server.offers.offer(
        document,
        start,
        head + shown.text,
        model=suggester.model,
        source=source,
        own=len(head),
        number=number,
    )


async def _ask(
    server: CompletionServer,
    situation: Situation,
    partial: Callable[[Shown], None] | None = None,
    *,
    is_again: bool = False,
) -> Shown | None:
    """The suggestion for a situation; nothing where none is wanted, and trouble is shown once. That a
    server failed in passing is said to who asks by hand, each time; a server that is lost with the
    request has a fallback asked `again`."""
    suggester = server.configured()
    on_screen = suggester.is_on_screen(situation)
    if not is_wanted(situation, server.settings, is_on_screen=on_screen):
        return None
    try:
        return await suggester.suggest(situation, partial)
    except EngineFailed as failure:
        if failure.passing and not is_again and await server.fallback.comes():
            return await _ask(server, situation, partial, is_again=True)
        if failure.told:
            log.info("%s", failure)
        elif not failure.passing:
            server.notices.show(str(failure), types.MessageType.Error)
        elif situation.manual:
            server.notices.show(str(failure), types.MessageType.Warning, again=True)
        else:
            log.info("%s", failure)
        return None
