"""When a suggestion is offered that nobody asked for by hand."""

from __future__ import annotations

from completion_ls.config.settings import Settings
from completion_ls.lsp.situation import Situation

LEAST_TEXT = 10
"""With fewer characters before the cursor nothing is offered by itself: it would be noise."""


def is_wanted(now: Situation, settings: Settings) -> bool:
    """Whether to offer something at a place: always where it was asked for by hand, else where the
    settings allow it, there is enough text, and no word goes on right of the cursor (what is left of
    it would be pushed away)."""
    if now.manual:
        return True
    return has_enough_text(now) and not is_in_word(now) and allows(settings, now)


def has_enough_text(now: Situation) -> bool:
    """Whether a suggestion that nobody asked for would be more than noise."""
    return len((now.context + now.before).strip()) >= LEAST_TEXT


def is_in_word(now: Situation) -> bool:
    """Whether the cursor stands between two characters of a word."""
    return _is_of_word(now.before[-1:]) and _is_of_word(now.after[:1])


def allows(settings: Settings, now: Situation) -> bool:
    """Whether the settings have suggestions at such a place: in this language, in comments and in
    strings (docstrings are strings)."""
    if now.language in settings.server.disabled_languages:
        return False
    wanted = settings.completion
    if wanted.in_comments and wanted.in_strings:
        return True
    from completion_ls.syntax.literals import Literal, literal_at_end

    literal = literal_at_end(now.language, now.before)
    if literal is Literal.COMMENT:
        return wanted.in_comments
    return wanted.in_strings or literal is None


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"
