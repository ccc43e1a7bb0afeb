"""When a suggestion is offered that nobody asked for by hand."""

from __future__ import annotations

from completion_ls.config.settings import Settings
from completion_ls.lsp.situation import Situation

LEAST_TEXT = 10
"""With fewer characters before the cursor nothing is offered by itself: it would be noise."""


def is_wanted(now: Situation, settings: Settings, *, is_on_screen: bool = False) -> bool:
    """Whether to offer something at a place: always where it was asked for by hand, else where the
    settings allow it, there is enough text, and no word goes on right of the cursor (what is left of
    it would be pushed away). What is on the screen stays while it is typed, into whatever it leads."""
    if now.manual:
        return True
    if not has_enough_text(now) or is_turned_off(settings, now):
        return False
    return is_on_screen or (not is_in_word(now) and allows(settings, now))


def has_enough_text(now: Situation) -> bool:
    """Whether a suggestion that nobody asked for would be more than noise."""
    return len((now.context + now.before).strip()) >= LEAST_TEXT


def is_in_word(now: Situation) -> bool:
    """Whether the cursor stands between two characters of a word."""
    return _is_of_word(now.before[-1:]) and _is_of_word(now.after[:1])


def is_turned_off(settings: Settings, now: Situation) -> bool:
    """Whether the settings have no suggestions in this language."""
    return now.language in settings.server.disabled_languages


def allows(settings: Settings, now: Situation) -> bool:
    """Whether the settings have suggestions at such a place: in this language, in comments and in
    strings (docstrings are strings)."""
    if is_turned_off(settings, now):
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
