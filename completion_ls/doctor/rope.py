"""How a model's positions are turned, and where its config.json says so: engines look in different
places, and one that finds nothing takes a number of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from completion_ls.config.settings import EngineSettings
from completion_ls.doctor.lines import Notes
from completion_ls.engines.exl2 import checks
from completion_ls.engines.shape import is_left_to_transformers

DEFAULT = 10000
"""What is taken where nothing is said."""


def look(notes: Notes, role: str, folder: Path, settings: EngineSettings) -> None:
    """For a folder whose config.json is an object."""
    label = f"{role}: rope"
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    if settings.kind == "exllamav2":
        try:
            checks.check_rope(folder)
        except ValueError as error:
            notes.failed(label, str(error))
            return
    found = dict(_thetas(config))
    if found:
        _say(notes, label, file, found)
    elif settings.kind == "exllamav2" or is_left_to_transformers(folder):
        notes.ok(
            label, "config.json names no rope_theta; the library has that of this architecture"
        )
    else:
        notes.remark(
            label,
            f"{file} has no rope_theta, so {DEFAULT:,} is taken. If the original model has another, "
            'add it there as "rope_theta": with a wrong one, text gets worse with its length.',
        )


def _say(notes: Notes, label: str, file: Path, found: Mapping[str, float]) -> None:
    text = " and ".join(f"rope_theta {value:,.0f} ({place})" for place, value in found.items())
    if len({value for place, value in found.items() if "." not in place}) > 1:
        notes.remark(
            label,
            f"{file} says it twice, and not alike: {text}. Leave the one that the original model has.",
        )
    else:
        notes.ok(label, text)


def _thetas(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each place with a number; behind a dot, that of one kind of layers."""
    for of in (config, config.get("text_config")):
        if not isinstance(of, Mapping):
            continue
        yield from _theta("in text_config" if of is not config else "at the top", of)
        given = of.get("rope_parameters")
        if isinstance(given, Mapping):
            yield from _theta("in rope_parameters", given)
            for kind, inner in given.items():
                if isinstance(inner, Mapping):
                    yield from _theta(f"in rope_parameters.{kind}", inner)


def _theta(place: str, of: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    value = of.get("rope_theta")
    if isinstance(value, int | float):
        try:
            yield place, float(value)
        except OverflowError:  # it has hundreds of digits
            yield place, math.inf
