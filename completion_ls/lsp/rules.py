"""From the model's raw text to what is offered: pure functions on strings with LF line ends.

Two promises shape them. What is offered, once accepted, neither doubles nor loses anything that
stands around the cursor. And while the raw text still grows, each offer is a prefix of the later
ones: every rule holds back the tail it may still have to take away.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from completion_ls.config.settings import Lines
from completion_ls.lsp.repetition import (
    sure_loop,
    sure_loop_in_line,
    unending,
    without_far_below,
    without_loop,
)

if TYPE_CHECKING:
    from completion_ls.syntax.blocks import Reading

_PAIRS = {")": "(", "]": "[", "}": "{", ">": "<"}
_QUOTES = "\"'`"
_CLOSING = ")]}>" + _QUOTES + ";,:. \t"
"""What may stand right of the cursor without being text: an editor inserts it by itself."""
_OPENER = re.compile(
    r"(?:(?<!:):|[{(\[]|=>|->|\b(?:do|then|begin|else|repeat)"
    r"|\bdo\s*\|[^|]*\||\bfunction\b[^)]*\))\s*$"
)
_OPENER_WITHIN = 1000
"""Characters at the end of a line in which what opens a block stands: `function` and its parameters."""
_CLOSER_WORDS = {"end", "endif", "endfunction", "endwhile", "fi", "done", "esac", "until"}
_MIDDLE_WORDS = {"else", "elif", "elsif", "elseif", "rescue", "ensure"}
_LABEL = re.compile(r"([A-Za-z_]\w*)(?: (?:slots|Q_SLOTS))?\s*:(?![:=])")
_IF, _ENDIF = re.compile(r"\s*#\s*if"), re.compile(r"\s*#\s*endif")
_STATEMENT = re.compile(r"(?:def|class|return|import|from|while|with|try|@)\b")
_FENCE = "```"
_MOST_CLOSERS = 200
"""So many closers right of the cursor are looked at; no code has more, but a line of commas may."""
_NEXT_LINES = 20
"""So many lines below the cursor are compared with what is offered."""
_WHOLE_FROM = 40
"""Characters of a line from which on only whole words of it are offered, since the text may be cut."""
_UNIT = 4
"""Columns of one level of indentation where a file shows none."""


class Mode(StrEnum):
    """How far a suggestion goes: to the end of the line, or to the end of the block."""

    LINE = "line"
    BLOCK = "block"


@dataclass(frozen=True)
class Offer:
    """Text for the cursor's place; it replaces `replace_after` characters right of the cursor.

    All of those but blanks are in `text` again.
    """

    text: str
    replace_after: int


def choose_mode(before_line: str, after_line: str, setting: Lines) -> Mode:
    """The mode for a cursor between these two parts of its line."""
    if setting != "auto":
        return Mode.LINE if setting == "single" else Mode.BLOCK
    if after_line.strip(_CLOSING):
        return Mode.LINE
    return Mode.BLOCK if not before_line.strip() or _opens(before_line) else Mode.LINE


def stop(
    raw: str, *, before: str, after: str = "", language: str = "", mode: Mode, max_lines: int
) -> int | None:
    """Where raw text is to be cut because the suggestion is complete; None when more is wanted.

    More raw text never changes an answer that is not None. `before` and `after` are the text left
    and right of the cursor; in a `language` with a grammar (an id of LSP) the syntax decides.
    """
    loop = sure_loop(raw)
    raw = raw[:loop]
    ends = [raw.find(_FENCE)]
    if mode is Mode.LINE:
        ends.append(raw.find("\n"))
    else:
        place = _Place(before, after, language)
        extent = _block(raw, place, max_lines=max_lines, ended=False)
        ends.append(extent.end if extent.complete else -1)
    return min((end for end in ends if end >= 0), default=loop)


def offer(
    raw: str,
    *,
    before: str,
    after: str,
    language: str = "",
    mode: Mode,
    finished: bool,
    cut: bool = False,
) -> Offer | None:
    """What is offered for the raw text (cut by `stop`) between `before` and `after`.

    With `finished` False the raw text may go on. The text of such an offer is a prefix of the text
    of every later one, and None when the last one may be None.

    `cut`: the text is finished because it had to end (by the limit of tokens), in an unfinished
    line. Of several lines that one is not offered; of a single one only whole words are, but for
    the first characters, which are offered as soon as they come. So while text may go on, an
    unfinished line is only offered when no other stands before it.
    """
    typed = before[before.rfind("\n") + 1 :]
    rest, _, below = after.partition("\n")
    rest = rest.rstrip()
    lines_below = _lines_below(below)
    next_line = lines_below[0] if lines_below else ""

    raw = _plain(raw, finished)
    taken = _cut(raw, _Place(before, after, language), rest, mode, finished and not cut)
    unfinished = taken == raw and (not finished or cut or sure_loop_in_line(raw) == len(raw))
    lines = _indented(taken.split("\n"), before, after)
    lines[0] = typed + lines[0]  # whole lines from here on
    if unfinished and finished:
        lines = _whole(lines, typed, finished)
    count = len(lines)
    lines = without_loop(lines, finished)
    # Where the unfinished line was taken away, the last one is whole.
    lines = _without_below(lines, typed, next_line, finished, whole=unfinished and finished)
    lines = _without_far_below(lines, typed, lines_below, before, after, finished)
    if unfinished and not finished and len(lines) == count:
        lines = _whole(lines, typed, finished)
    unit = _style_around(before, after).unit
    if lines and _has_body(lines[0], next_line, unit):
        lines = lines[:1]
    # What opens a block is of use with its body only. A first line may stand alone: the user goes on.
    starts = enumerate(line[0 if number else len(typed) :] for number, line in enumerate(lines))
    first = next((number for number, added in starts if added.strip()), len(lines))
    while len(lines) > first + 1 and _hangs(lines[-1], next_line, unit):
        lines = lines[:-1]
    text = "\n".join(lines)[len(typed) :].rstrip()
    offered = _fitted(text, typed, rest, finished)
    if not offered.text.strip() or _doubles_line(offered, typed, rest, next_line, finished):
        return None
    return offered


def type_through(offered_start_text: str, typed: str) -> str | None:
    """What is left of an offered text when `typed` is its beginning, else None."""
    if not offered_start_text.startswith(typed):
        return None
    return offered_start_text[len(typed) :]


# Where a suggestion ends


@dataclass(frozen=True)
class _Place:
    """The text around the cursor, and its language."""

    before: str
    after: str
    language: str

    def reading(self, lines: list[str]) -> Reading | None:
        """What the syntax says behind these whole lines; None where it says nothing."""
        if not self.language:
            return None
        from completion_ls.syntax import blocks  # not before `initialize` is answered

        return blocks.read(self.language, self.before, tuple(lines))

    def closes_further(self, reading: Reading) -> bool:
        """Whether the innermost open bracket, which stands above, is closed below the cursor."""
        from completion_ls.syntax import blocks

        closed = blocks.closed_below(self.language, self.after)
        return closed is None or len(reading.brackets) <= closed


@dataclass(frozen=True)
class _Extent:
    """How much of a raw text surely belongs to the block, and whether the block is complete."""

    end: int
    complete: bool


def _block(raw: str, place: _Place, *, max_lines: int | None, ended: bool) -> _Extent:
    """The block that the raw text continues, by its syntax and its indentation.

    Under a line that opens a block, lines at its own indentation are outside, but for closers. In
    other places lines at the cursor's indentation are inside; at column 0 a blank line ends them,
    unless it stands in a deeper body. `ended` says that no more text comes, so that the
    last line is whole.

    Where there is a grammar, indentation has no say in a line that begins in a bracket, string or
    comment, and a bracket that is open at the end of the cursor's line ends the block with its closer.
    """
    before = place.before
    typed = before[before.rfind("\n") + 1 :]
    lines = raw.split("\n")
    style = _style(before, "", lines)
    opened = bool(typed.strip()) and (
        _opens(typed) or (len(lines) > 1 and _opens(typed + lines[0]))
    )
    base = _columns(_blanks(typed), style.unit)
    if not typed.strip() and lines[0].strip():
        base = _first_columns(lines[0], before, style)
    at_top = not opened and base == 0
    sure = start = first = own = 0
    last = ""  # the last line with text
    gap = False  # a blank line follows it
    for number, line in enumerate(lines):
        whole = ended or number < len(lines) - 1
        text, columns = line.strip(), _columns(_blanks(line), style.unit)
        at_border = number > 0 and columns == base
        above = place.reading(lines[:number]) if number else None
        if number == 1 and opened and above and above.opened_since(0):
            own = len(above.brackets)
        held = above is not None and _is_held(above, text, place, columns <= base)
        closes = False  # a bracket that stands above the cursor's line
        if text:
            outside = opened or (at_top and gap)
            inside = not outside or _closes(text, whole) if at_border else columns > base
            if held:
                inside = True
            elif above and number > 0:
                if text[0] in ")]}" and above.brackets:
                    closes = inside = not place.closes_further(above)
                elif not inside:
                    inside = _is_no_end(text, place, lines[:number], whole)
            if number > 0 and not inside:
                return _Extent(sure, complete=inside is not None)
            first = first if last else number
            sure, last, gap = start + len(line), line if number else typed + line, False
        elif last and whole and not held:
            gap = True
            if at_top and not _blanks(last) and not _opens(last):
                return _Extent(sure, complete=True)
        closed = closes or (opened and at_border and not own and not held)
        if own and above and whole and len(above.brackets) >= own:
            below = place.reading(lines[: number + 1])
            closed |= below is not None and len(below.brackets) < own
        closed = closed and bool(text) and not _goes_on(text)
        full = bool(last) and max_lines is not None and number - first + 1 >= max_lines
        if whole and (closed or full):
            return _Extent(sure, complete=True)
        start += len(line) + 1
    return _Extent(sure, complete=False)


def _is_held(above: Reading, text: str, place: _Place, shallow: bool) -> bool:
    """Whether a line belongs to the text whatever its indentation, by what is open where it begins."""
    if above.literal or above.continued or above.opened_since(1):
        return True
    if not above.opened_since(0):
        return False
    # It stands in the cursor's line, perhaps left of it.
    if above.brackets[-1].closer == "}" or text[:1] in tuple(")]}"):
        return True
    right = place.after.partition("\n")[0].strip()
    return not (right or (shallow and _STATEMENT.match(text)))


def _is_no_end(text: str, place: _Place, lines: list[str], whole: bool) -> bool | None:
    """Whether a line belongs to a block although it is not indented like it: for the preprocessor,
    an access specifier, a label. None: not known before the line goes on."""
    language = place.language
    if language == "python":
        return False
    if language in ("c", "cpp") and text[0] == "#":
        word = text[1:].split()[:1]
        if not whole and (not word or text.endswith(word[0])):
            return None
        opened = sum(bool(_IF.match(line)) - bool(_ENDIF.match(line)) for line in lines)
        middle = word[0] if word else ""
        if middle in ("endif", "else", "elif") and opened <= 0:
            return not re.search(r"^\s*#\s*endif", place.after, re.MULTILINE)
        return True
    found = _LABEL.match(text)
    if found and found[1] not in ("case", "default"):
        return True if whole or not text.endswith(":") else None
    return None if not whole and re.fullmatch(r"[A-Za-z_]\w*(?: \w*)?\s*", text) else False


def _opens(line: str) -> bool:
    """Whether a line opens a block."""
    line = line.rstrip()
    return _OPENER.search(line, max(0, len(line) - _OPENER_WITHIN)) is not None


def _closes(text: str, whole: bool) -> bool | None:
    """Whether a line without its indentation starts with what closes a block or leads to its next
    part (`else` where blocks end with a word). None: not known before the line goes on."""
    if text[0] in ")]}":
        return True
    found = re.match(r"\w+", text)
    word = found[0] if found else text[:1]
    if not whole and (word == text or word in _MIDDLE_WORDS):
        maybe = any(known.startswith(word) for known in _CLOSER_WORDS | _MIDDLE_WORDS)
        return None if maybe else False
    if word in _MIDDLE_WORDS:
        return not text.endswith((":", "{"))
    return word in _CLOSER_WORDS


def _goes_on(text: str) -> bool:
    """Whether the block goes on after its closing line: `} else {`, `elif x; then`."""
    return _opens(text) or text.split()[0] in _MIDDLE_WORDS


def _plain(raw: str, finished: bool) -> str:
    """Without CR and lone halves of surrogate pairs, and only what stands before a fence."""
    raw = raw.replace("\r", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    raw = raw.partition(_FENCE)[0]
    return raw if finished else raw.rstrip("`")


def _cut(raw: str, place: _Place, rest: str, mode: Mode, finished: bool) -> str:
    """One line where the mode or text right of the cursor wants it, else what the block has."""
    if mode is Mode.LINE or rest.strip(_CLOSING):
        return raw.partition("\n")[0]
    return raw[: _block(raw, place, max_lines=None, ended=finished).end]


# Indentation


@dataclass(frozen=True)
class _Style:
    """How a file is indented: by tabs (None: it shows nothing), and the columns of one level."""

    tabs: bool | None
    unit: int

    def blanks(self, columns: int) -> str:
        if not self.tabs:
            return " " * columns
        return "\t" * (columns // self.unit) + " " * (columns % self.unit)


def _style(before: str, after: str, raw_lines: list[str]) -> _Style:
    """The file's style, or that of the raw text where the file shows none. In a file of tabs the
    unit is what the raw text takes for one tab."""
    style = _style_around(before, after)
    if style.tabs is None:
        first = next((line[0] for line in raw_lines if line[:1] in ("\t", " ")), "")
        return _Style(True, style.unit) if first == "\t" else style
    return _Style(True, _spaces_for_a_tab(before, raw_lines)) if style.tabs else style


@lru_cache(maxsize=8)  # asked for each piece of a growing text
def _style_around(before: str, after: str) -> _Style:
    around = before + after
    tabbed = len(re.findall(r"^\t", around, re.MULTILINE))
    spaced = re.findall(r"^ {2,}", around, re.MULTILINE)
    widths = [0, *map(len, spaced)]
    steps = Counter(abs(a - b) for a, b in pairwise(widths) if abs(a - b) > 1)
    unit = steps.most_common(1)[0][0] if steps else _UNIT
    return _Style(tabbed > len(spaced) if tabbed or spaced else None, unit)


def _spaces_for_a_tab(before: str, raw_lines: list[str]) -> int:
    """Spaces per level in raw text, by its first line that has some under a line of known depth."""
    above, _, typed = before.rpartition("\n")
    first, *others = raw_lines
    alone = not typed.strip() and first[:1] in ("", " ", "\t")  # it has its own indentation
    previous = _last_line(above) if alone else typed + first
    for line in raw_lines if alone else others:
        if line.startswith("\t") and line.strip():
            return _UNIT  # what later lines have changes nothing of the earlier ones
        spaces = len(line) - len(line.lstrip(" "))
        if spaces and line.strip():
            depth = len(previous) - len(previous.lstrip("\t")) + _opens(previous)
            unit, odd = divmod(spaces, depth) if depth else (0, 1)
            return unit if not odd and unit in (2, 3, 4, 8) else _UNIT
        previous = line if line.strip() else previous
    return _UNIT


def _indented(lines: list[str], before: str, after: str) -> list[str]:
    """The raw lines, indented in the file's style and without trailing blanks. The first one lacks
    what is typed already."""
    typed = before[before.rfind("\n") + 1 :]
    style = _style(before, after, lines)
    done = []
    for number, line in enumerate(lines):
        blanks = _blanks(line)
        if number == 0 and typed.strip():
            added = blanks
        elif number == 0 and blanks:
            added = _remainder(typed, _first_columns(line, before, style), style)
        else:
            added = blanks if style.tabs is None else style.blanks(_columns(blanks, style.unit))
        done.append((added + line[len(blanks) :]).rstrip())
    return done


def _first_columns(line: str, before: str, style: _Style) -> int:
    """Indentation meant for the cursor's line, which is blank so far, when raw text starts so.

    Blanks that start the raw text are the whole indentation, or the part that is not typed yet.
    They are the part when both together are just what the line above asks for; otherwise the
    larger of both is meant, since what is typed cannot be taken back.
    """
    above, _, typed = before.rpartition("\n")
    have, own = _columns(_blanks(typed), style.unit), _columns(_blanks(line), style.unit)
    previous = _last_line(above)
    wanted = _columns(_blanks(previous), style.unit) + style.unit * _opens(previous)
    return wanted if have + own == wanted else max(have, own)


def _remainder(typed: str, columns: int, style: _Style) -> str:
    """Blanks that lead from the typed ones to this many columns."""
    whole = style.blanks(columns)
    if whole.startswith(typed):
        return whole[len(typed) :]
    return " " * (columns - _columns(typed, style.unit))


def _blanks(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _columns(blanks: str, tab: int) -> int:
    return len(blanks.expandtabs(tab))


def _last_line(text: str) -> str:
    """The last line that is not blank, or an empty one."""
    text = text.rstrip()
    return text[text.rfind("\n") + 1 :]


# What is taken away


def _hangs(line: str, next_line: str, unit: int) -> bool:
    """Whether a line says nothing, or opens a block that has no body yet."""
    return not line.strip() or (_opens(line) and not _has_body(line, next_line, unit))


def _has_body(line: str, next_line: str, tab: int) -> bool:
    """Whether a line opens a block whose body stands below it already."""
    deep, deeper = (_columns(_blanks(one), tab) for one in (line, next_line))
    return _opens(line) and deeper > deep


def _whole(lines: list[str], typed: str, finished: bool) -> list[str]:
    """Without the last line, which is unfinished; where no other has text, what is sure of it."""
    *others, last = lines
    own = 0 if others else len(typed)
    if others and (others[0][len(typed) :].strip() or any(line.strip() for line in others[1:])):
        return others
    size = max(_without_word(last), own + _WHOLE_FROM)
    loop = unending(last[own:], finished=finished)
    return [*others, last[: size if loop is None else min(size, own + loop)]]


def _without_word(line: str) -> int:
    """Length of a line without the word that it ends with. (A search for that takes the square of the
    time that a long line takes.)"""
    size = len(line)
    while size and (line[size - 1].isalnum() or line[size - 1] == "_"):
        size -= 1
    return size


def _lines_below(below: str) -> list[str]:
    """The next lines that are not blank."""
    lines = below.split("\n", 2 * _NEXT_LINES)
    return [line.rstrip() for line in lines[: 2 * _NEXT_LINES] if line.strip()][:_NEXT_LINES]


def _without_far_below(
    lines: list[str], typed: str, below: list[str], before: str, after: str, finished: bool
) -> list[str]:
    """Up to where the lines repeat what stands below in the same block, but not at its start."""
    first = 0 if not typed.strip() else 1
    if len(lines) <= first or not lines[first].strip():
        return lines
    unit = _style_around(before, after).unit
    level = _columns(_blanks(lines[first]), unit)
    block: list[str] = []
    for line in below:
        columns = _columns(_blanks(line), unit)
        if columns < level or (not block and columns > level):
            break
        block.append(line)
    return without_far_below(lines, first, block, before, finished) if block else lines


def _without_below(
    lines: list[str], typed: str, below: str, finished: bool, *, whole: bool
) -> list[str]:
    """Up to where the lines repeat the next line below, also where the last one, if it need not be
    `whole`, may be about to.

    A closer that ends a block of the offered lines themselves is no repetition. The cursor's own
    line, when it is the last, is left to `_doubles_line`.
    """
    if not below:
        return lines
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if number == 0 and (last or len(line) == len(typed)):
            continue
        begins = last and not whole and bool(line) and below.startswith(line)
        repeats = line == below or begins
        if repeats and not _closes_own(lines[:number], typed, line, whole=finished or not last):
            return lines[:number]
    return lines


def _closes_own(lines: list[str], typed: str, closer: str, *, whole: bool) -> bool:
    """Whether `closer` ends a block that these lines open, other than by what is typed."""
    if not _closes(closer.strip(), whole):
        return False
    depth = _columns(_blanks(closer), _UNIT)
    inner = False
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if not line.strip():
            continue
        if _columns(_blanks(line), _UNIT) <= depth:
            by_user = number == 0 and (_opens(typed) or len(line) == len(typed))
            same = _columns(_blanks(line), _UNIT) == depth
            return same and not by_user and (inner or _opens(line))
        inner = True
    return False


def _doubles_line(offered: Offer, typed: str, rest: str, below: str, finished: bool) -> bool:
    """Whether the cursor's line becomes the next line below, or still may."""
    if not below or "\n" in offered.text:
        return False
    line = typed + offered.text
    if finished:
        return line + rest[offered.replace_after :] == below
    return below.startswith(line)


# The text right of the cursor


def _fitted(text: str, typed: str, rest: str, finished: bool) -> Offer:
    """The text without what stands right of the cursor, or with a replacement of it.

    Closers that the text brings itself replace the rest's. What the text ends with, of those and of
    what the rest holds behind them, is not offered but left where it stands.
    """
    if not rest:
        return Offer(text, 0)
    quotes = _open_quotes(typed, rest)
    if not finished:
        text = text[: _sure_to_stay(text, rest)].rstrip()
        return Offer(text, _brought(text, rest, quotes).size)
    brought = _brought(text, rest, quotes)
    overlap = _overlap(text, rest, brought, quotes)
    kept = text[: len(text) - overlap]
    same = _common_end(kept, rest[: brought.size])
    kept, left = kept[: len(kept) - same], brought.size - same
    if "\n" in kept and not _last_part(kept).strip():
        return Offer(text, brought.size + overlap)  # what is the same stands on a line of its own
    return Offer(kept.rstrip(), left if rest[:left].strip() else 0)


def _open_quotes(typed: str, rest: str) -> str:
    """The quotes right of the cursor when they end the string that the cursor is in, else ''."""
    quote = rest[0]
    if quote not in _QUOTES:
        return ""
    if rest.startswith(quote * 3):
        return quote * 3
    return quote if len(re.findall(rf"(?<!\\){quote}", typed)) % 2 else ""


def _closers(text: str, quotes: str) -> dict[int, int]:
    """Index of each closer in the text, with that of its opener, or -1 when that is left of it.

    Strings count as pairs of quotes; what they hold is skipped. `quotes` ends the string in which
    the text starts, if any.
    """
    found: dict[int, int] = {}
    stack: list[int] = []
    index = 0
    if quotes:
        inside = re.match(rf"(?:\\.|(?!{quotes}).)*", text, re.DOTALL)
        index = inside.end() if inside else 0
        if index >= len(text):
            return found
        found[index] = -1
        index += len(quotes)
    while index < len(text):
        character = text[index]
        if character in _QUOTES:
            end = _string_end(text, index)
            if end is not None:
                found[end] = index
                index = end
            elif character == quotes:  # the text ends in a string, which the rest ends
                return {closer: opener for closer, opener in found.items() if opener >= 0}
        elif character in _PAIRS.values():
            stack.append(index)
        elif character in _PAIRS and not (character == ">" and text[index - 1 : index] in "-="):
            while stack and text[stack[-1]] == "<" != _PAIRS[character]:
                stack.pop()  # a comparison
            if stack and text[stack[-1]] == _PAIRS[character]:
                found[index] = stack.pop()
            elif not stack:
                found[index] = -1
        index += 1
    return found


def _string_end(text: str, start: int) -> int | None:
    """Index of the quote that ends the string starting here; None when its line does not end it."""
    quote = text[start]
    found = re.compile(rf"(?:\\.|[^{quote}\\\n])*{quote}").match(text, start + 1)
    return found.end() - 1 if found else None


@dataclass(frozen=True)
class _Brought:
    """The first `size` characters of the rest are in the text itself, the last before `end`."""

    size: int
    end: int


def _brought(text: str, rest: str, quotes: str) -> _Brought:
    """How much of the rest's start the text brings itself: its unmatched closers in their order,
    and a `,` `;` `:` behind them when it ends the line of the last one."""
    size = end = 0
    for index, opener in _closers(text, quotes).items():
        if opener >= 0:
            continue
        token = quotes if quotes and not size else text[index]
        blanks = len(rest[size:]) - len(rest[size:].lstrip())
        if rest.startswith(token, size + blanks):
            size += blanks + len(token)
            end = index + len(token)
        elif token != ">":
            break
    line = text[: text.find("\n", end)] if "\n" in text[end:] else text
    if size and rest[size:] and rest[size] in ",;:" and line.endswith(rest[size], end):
        return _Brought(size + 1, len(line))
    return _Brought(size, end)


def _overlap(text: str, rest: str, brought: _Brought, quotes: str) -> int:
    """Length of the longest end of the text's last line that goes on in the rest behind what is
    brought. An end that splits a pair is none: `[` and `"b"]` do not share a quote with `"a"`."""
    start = max(brought.end, text.rfind("\n") + 1)
    rest = rest[brought.size :]
    pairs = [pair for pair in _closers(text, quotes).items() if pair[1] >= 0]
    for size in range(min(len(rest), len(text) - start), 0, -1):
        cut = len(text) - size
        if text.endswith(rest[:size]) and not any(o < cut <= c for c, o in pairs):
            return size
    return 0


def _sure_to_stay(text: str, rest: str) -> int:
    """Length of a growing text without the end that `_fitted` may take away when more has come."""
    last = _last_part(text)
    closers = min(_MOST_CLOSERS, len(rest) - len(rest.lstrip(_CLOSING)))
    most = 0
    for skipped in range(closers + 1):
        tail = rest[skipped:]
        sizes = range(min(len(tail), len(last)), most, -1)
        most = next((size for size in sizes if last.endswith(tail[:size])), most)
    sure = text[: len(text) - most]
    return len(sure.rstrip(_CLOSING + "\n") if closers else sure)


def _common_end(a: str, b: str) -> int:
    size = 0
    while size < min(len(a), len(b)) and a[-1 - size] == b[-1 - size]:
        size += 1
    return size


def _last_part(text: str) -> str:
    return text[text.rfind("\n") + 1 :]
