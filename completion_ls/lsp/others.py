"""Context from other files for the documents of a window: what is chosen, and when that changes.

What is chosen stands in front of every prompt of a document, so a change costs the whole prompt. It is
looked for when a document comes into view and when the user has paused, in a thread; requests take what is
there. Where a document had requests with what was chosen before, the new choice waits until the prompt
with it has been computed in the background, so that no key pays for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from pygls.uris import to_fs_path
from pygls.workspace import Workspace

from completion_ls.config.settings import Settings
from completion_ls.context.surroundings import (
    MAX_LENGTH,
    NOTHING,
    Opened,
    Query,
    Surroundings,
)
from completion_ls.lsp.documents import Document, Place, clean, key_of

if TYPE_CHECKING:
    from completion_ls.context.library import Library

log = logging.getLogger(__name__)

PAUSE_S = 0.8
"""Nothing is looked for while keys come in shorter time than this."""
FILES_SHARE = 4
"""Other files have one token in so many of the prompt (see `prompt/build.py`)."""
CHARACTERS_PER_TOKEN = 3
"""As code has at least, mostly."""
MOST_RECENT = 24
"""Documents that are remembered, open or closed."""
ABOVE, BELOW = MAX_LENGTH // 2, MAX_LENGTH // 8
"""Characters of the document itself that are looked at."""


class Warm(Protocol):
    """Has the prompt of a document computed with other files than it has now. `done` is called when it
    is, or cannot be, and not where a key came before; False where nothing is worked on ahead."""

    def __call__(
        self, document: Document, others: Surroundings, done: Callable[[], None]
    ) -> bool: ...


@dataclass
class _Held:
    """What a document has."""

    chosen: Surroundings = NOTHING
    next: Surroundings | None = None
    """Clearly better, and not computed yet."""
    used: bool = False
    """Whether a request had what is chosen."""
    looked: bool = False


class _NotReadable(ValueError):
    """A pattern of the settings."""


class Others:
    """The other files of the documents of one window. On the event loop, which never waits."""

    def __init__(
        self,
        workspace: Callable[[], Workspace],
        resting_place: Callable[[Document], Place],
        warm: Warm,
        settled: Callable[[Document], None],
        tell: Callable[[str], None],
    ) -> None:
        """`settled` is called when the document in view has its first choice, or another one; `tell`
        where the user must do something."""
        self._workspace = workspace
        self._resting_place = resting_place
        self._warm = warm
        self._settled = settled
        self._tell = tell
        self._settings = Settings()
        self._held: dict[str, _Held] = {}
        self._recent: dict[str, tuple[Path, str]] = {}
        """By URI, the last one last: file and language."""
        self._texts: dict[str, tuple[Document, int, str]] = {}
        self._in_view = ""
        self._library: tuple[object, Library] | None = None
        """The thread's own, with what it was made of."""
        self._generation = 0
        self._thread: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looking = self._again = False

    def configure(self, settings: Settings) -> None:
        """Go on with these settings."""
        context, tokens = self._settings.context, self._settings.prompt.max_tokens
        self._settings = settings
        if (context, tokens) != (settings.context, settings.prompt.max_tokens):
            self.start_anew()

    def start_anew(self) -> None:
        """What may be read has changed, or where it is: nothing of before is used any more."""
        self._generation += 1
        self._held.clear()
        self._look_later()

    def files(self, uri: str) -> Surroundings:
        """What a request of a document is to have; it stays the same until the prompt with another
        choice is computed."""
        held = self._held.get(uri)
        if held is None:
            return NOTHING
        held.used = True
        return held.chosen

    def shown(self, document: Document) -> bool:
        """A document has come into view. Whether it is to get its first choice in a moment."""
        self._in_view = unquote(document.uri)
        if not self._is_wanted(document):
            return False
        self._note(document)
        self._look()
        held = self._held.get(key_of(document.uri))
        return held is None or not held.looked

    def used(self, document: Document) -> None:
        """A document was changed, or asked about."""
        if self._is_wanted(document):
            self._in_view = unquote(document.uri)
            self._note(document)
            self._look_later()

    def closed(self, uri: str) -> None:
        """A document was closed. Its file, as it is on the disk, remains one of the recent ones."""
        self._held.pop(key_of(uri), None)
        self._texts.pop(unquote(uri), None)

    def close(self) -> None:
        """End the thread."""
        self._stop_waiting()
        self._generation += 1
        self._in_view = ""  # nothing is looked for any more
        if self._thread:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_wanted(self, document: Document) -> bool:
        return bool(
            self._settings.context.files and self._folders() and self._file(document) is not None
        )

    def _folders(self) -> list[Path]:
        found = [_path(folder.uri) for folder in self._workspace().folders.values()]
        return [path for path in found if path and path.is_absolute()]

    def _file(self, document: Document) -> Path | None:
        """The file of a document; cells of notebooks and what has no file yet have none."""
        if not document.uri.startswith("file:"):
            return None
        if self._workspace().get_notebook_document(cell_uri=document.uri) is not None:
            return None
        return _path(document.uri)

    def _note(self, document: Document) -> None:
        file = self._file(document)
        if file is not None:
            uri = unquote(document.uri)
            self._recent.pop(uri, None)
            self._recent[uri] = file, document.language_id or ""
            while len(self._recent) > MOST_RECENT:
                del self._recent[next(iter(self._recent))]

    def _look_later(self) -> None:
        self._stop_waiting()
        if self._in_view:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PAUSE_S, self._look)

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Look around for the document in view."""
        self._stop_waiting()
        if self._looking:
            self._again = True
            return
        document = self._workspace().text_documents.get(self._in_view)
        if not isinstance(document, Document) or not self._is_wanted(document):
            return
        held = self._held.setdefault(key_of(document.uri), _Held())
        query = self._query(document)
        self._looking, self._again = True, False
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="context")
        arguments = self._folders(), self._settings.context.exclude
        loop = asyncio.get_running_loop()
        now = self._generation
        work = loop.run_in_executor(
            self._thread, self._work, arguments, query, held.chosen, held.next or held.chosen
        )
        work.add_done_callback(lambda done: self._found(document, held, now, done))

    def _work(
        self,
        arguments: tuple[Sequence[Path], Sequence[str]],
        query: Query,
        used: Surroundings,
        held: Surroundings,
    ) -> tuple[Surroundings, bool]:
        """In the thread. Also whether what is used now may still be. Raises _NotReadable."""
        # Importing it takes longer than a start should.
        from completion_ls.context.library import Library
        from completion_ls.context.permitted import BadPattern

        if self._library is None or self._library[0] != arguments:
            try:
                self._library = arguments, Library(*arguments)
            except BadPattern as error:
                self._library = None
                raise _NotReadable(str(error)) from error
        library = self._library[1]
        return library.look(query, held), library.permits(used)

    def _found(
        self,
        document: Document,
        held: _Held,
        now: int,
        work: asyncio.Future[tuple[Surroundings, bool]],
    ) -> None:
        self._looking = False
        if work.cancelled():
            return
        found, permitted = held.chosen, True
        error = work.exception()
        if isinstance(error, _NotReadable):
            if now == self._generation:
                self._tell(
                    f"Setting 'context.exclude': {str(error)[:80]!r} is no pattern of a .gitignore. "
                    "Until it is mended there is no context from other files."
                )
        elif error:
            # Not the error itself: it may hold a text.
            log.warning("no context from other files: %s", type(error).__name__)
        else:
            found, permitted = work.result()
        if now == self._generation and self._held.get(key_of(document.uri)) is held:
            self._take(document, held, found, permitted)
        if self._again:
            self._look()

    def _take(self, document: Document, held: _Held, found: Surroundings, permitted: bool) -> None:
        first, held.looked = not held.looked, True
        in_view = unquote(document.uri) == self._in_view
        held.next = None
        if found != held.chosen:
            held.next = found
            # What may be read no longer is not used until then.
            if held.used and permitted:
                if not in_view:
                    return  # it is looked for again when the user comes back
                if self._warm(document, found, lambda: _adopt(held, found)):
                    return
            _adopt(held, found)
        elif not first:
            return
        if in_view:
            self._settled(document)

    def _query(self, document: Document) -> Query:
        place = document.cursor or self._resting_place(document)
        file = self._file(document)
        assert file is not None
        before = clean(document.before(place, ABOVE))
        return Query(
            file,
            document.language_id or "",
            before + clean(document.after(place, BELOW)),
            before.count("\n"),
            self._opened(unquote(document.uri)),
            self._settings.prompt.max_tokens // FILES_SHARE * CHARACTERS_PER_TOKEN,
        )

    def _opened(self, uri: str) -> list[Opened]:
        """The documents that were edited or shown before this one, the last one first; then those
        that are open and never were."""
        documents = self._workspace().text_documents
        for other, document in documents.items():
            if other not in self._recent and isinstance(document, Document):
                file = self._file(document)
                if file is not None and len(self._recent) < MOST_RECENT:
                    self._recent = {other: (file, document.language_id or ""), **self._recent}
        found = []
        for other, (file, language) in reversed(self._recent.items()):
            document = documents.get(other)
            if other != uri:
                text = self._text(other, document) if isinstance(document, Document) else None
                if text is not None or document is None:
                    found.append(Opened(file, language, text))
        return found

    def _text(self, uri: str, document: Document) -> str | None:
        """The text of an open document; None where it is too long."""
        known = self._texts.get(uri)
        if known is None or known[:2] != (document, document.edits):
            text = clean(document.before(document.end, MAX_LENGTH + 1))
            known = self._texts[uri] = document, document.edits, text
        return known[2] if len(known[2]) <= MAX_LENGTH else None


def _adopt(held: _Held, found: Surroundings) -> None:
    if held.next is found:  # nothing else was found meanwhile
        held.chosen, held.next, held.used = found, None, False


def _path(uri: str) -> Path | None:
    """The path of a URI, if a file may have it: junk would end the look at all others."""
    try:
        path = to_fs_path(uri)
        return Path(path) if path and b"\0" not in os.fsencode(path) else None
    except ValueError:
        return None
