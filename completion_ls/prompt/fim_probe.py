"""Whether a model really fills in the middle: its tokenizer may have the tokens and it no training.

A few lines of code that say much about the line above them are given to the model around that line: in
its FIM format, and in the two ways in which a model without FIM would be asked, with the text from below
first and without it. A model that was trained for it should find the line least surprising in its own
format. It is not enough that the text below helps: names that stand in it help every model. (Tried with a
model that was not trained for it, whose own format did worse; not yet with one that was.)

Tokens of the same names do not always mean the same format: then the model is asked in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from completion_ls.prompt.build import PromptBuilder

Surprise = Callable[[Sequence[int], Sequence[int]], float]
"""Of a prompt and the tokens behind it: minus the natural logarithm of their probability."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A line, and the lines around it."""

    before: str
    line: str
    after: str


HELD_OUT = (
    HeldOut(
        "def mean_of_squares(values):\n    count = len(values)\n",
        "    squares = [value * value for value in values]\n",
        "    return sum(squares) / count\n",
    ),
    HeldOut(
        "function greet(name) {\n",
        '  const greeting = "Hello, " + name;\n',
        "  console.log(greeting);\n  return greeting;\n}\n",
    ),
    HeldOut(
        "int last_index(const char *text, char wanted) {\n  int found = -1;\n",
        "  for (int place = 0; text[place] != '\\0'; place++) {\n",
        "    if (text[place] == wanted)\n      found = place;\n  }\n  return found;\n}\n",
    ),
    HeldOut(
        "import json\n\n\ndef read_settings(path):\n",
        "    with open(path) as stream:\n",
        "        return json.load(stream)\n",
    ),
)


def best_format(candidates: Sequence[PromptBuilder], surprise: Surprise) -> PromptBuilder:
    """The one in whose FIM format the lines surprise the model least; of equals the first."""
    return min(
        candidates,
        key=lambda prompts: sum(
            surprise(prompts.fim_prompt(held.before, held.after), prompts.section(held.line))
            for held in HELD_OUT
        ),
    )


def fills_in(prompts: PromptBuilder, surprise: Surprise) -> bool:
    """Whether the model does better with the FIM format of `prompts` than without any."""
    own = first = without = 0.0
    for held in HELD_OUT:
        line = prompts.section(held.line)
        own += surprise(prompts.fim_prompt(held.before, held.after), line)
        first += surprise(prompts.plain_prompt(held.before, held.after), line)
        without += surprise(prompts.plain_prompt(held.before, ""), line)
    return own < min(first, without)
