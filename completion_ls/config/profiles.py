"""What each profile sets up, and the GPU memory that it takes by the plan."""

from __future__ import annotations

import tomllib

from completion_ls.config.settings import Settings
from completion_ls.config.sources import profiles_dir

TAKES_GIB: dict[str, float] = {
    "nvidia-24gb": 21.3,
    "nvidia-16gb": 12.8,
    "nvidia-12gb": 9.2,
    "nvidia-24gb-moe": 18.3,
    "nvidia-24gb-gemma": 18.9,
}
"""The GiB of GPU memory that each profile for a card takes by the plan."""


def planned(settings: Settings) -> list[str]:
    """What the models of the settings take, in words, by the plan of each profile that names these
    very models."""
    asked = settings.engine.kind, settings.model.name, settings.draft.model
    return [
        f"as the profile {name} sets them up, they take {gib} GiB of GPU memory"
        for name, gib in TAKES_GIB.items()
        if of_profile(name) == asked
    ]


def settings_of(profile: str) -> Settings:
    """The defaults, and what a profile sets."""
    text = (profiles_dir() / f"{profile}.toml").read_text(encoding="utf-8")
    return Settings.model_validate(tomllib.loads(text))


def of_profile(profile: str) -> tuple[str, str, str]:
    """Engine, model and draft model of a profile, by the defaults where it says nothing."""
    of = settings_of(profile)
    return of.engine.kind, of.model.name, of.draft.model
