"""Which FIM format a model is prompted in, and why.

Whether the model was trained for it is tried where it is loaded on a card (`prompt/fim_probe.py`), so
only a daemon knows; on the CPU that would take seconds and is not done.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from completion_ls.config.settings import EngineSettings, ModelSettings
from completion_ls.doctor.lines import Notes
from completion_ls.prompt.formats import find_format, fitting


def look(notes: Notes, tokenizer: Tokenizer, model: ModelSettings, engine: EngineSettings) -> None:
    """By the tokenizer."""
    try:
        fim = find_format(model.format, tokenizer)
    except ValueError as error:
        notes.failed("format", str(error))
        return
    tried = {
        "exllamav2": "whether the model does better without is tried when it is loaded",
        "torch_cpu": "whether the model was trained for it is not tried on the CPU",
        "remote": "whether the model was trained for it is not tried at a server",
    }[engine.kind]
    if model.format != "auto":
        notes.ok("format", f"{model.format}, as model.format says; {tried}")
    elif fim is None:
        notes.ok(
            "format",
            "plain: the tokenizer has no tokens of a FIM format that is known, so the text from below "
            "the cursor stands before the lines above it",
        )
    else:
        others = [one.name for one in fitting(tokenizer)[1:]]
        also = f"; its tokens would do for {', '.join(others)} as well" if others else ""
        notes.ok("format", f"{fim.name}: the tokenizer has its tokens{also}; {tried}")


def in_use(
    notes: Notes, figures: dict[str, Any], model: ModelSettings, tokenizer: Tokenizer
) -> None:
    """By the figures of a daemon that has the model loaded."""
    used = figures.get("fim_format")
    if not isinstance(used, str):
        return  # an older daemon
    expected = find_format(model.format, tokenizer)
    name = expected.name if expected else "plain"
    if used == name:
        notes.ok("in use", used)
    elif used == "plain":
        notes.remark("in use", f"plain: tried at loading, the model does better without {name}.")
    else:
        notes.remark("in use", f"{used}: tried at loading, it suits the model better than {name}.")
