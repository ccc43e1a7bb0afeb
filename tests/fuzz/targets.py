"""All properties, by what they are about."""

from __future__ import annotations

from fuzz.config import CONFIG
from fuzz.edits import EDITS
from fuzz.lsp import LSP
from fuzz.models import MODELS
from fuzz.property import Property
from fuzz.wire import WIRE

PROPERTIES: tuple[Property, ...] = (*WIRE, *LSP, *EDITS, *CONFIG, *MODELS)
