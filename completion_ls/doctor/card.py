"""What exllamav2 needs of this machine, whichever the model is: card, driver, libraries."""

from __future__ import annotations

from completion_ls.doctor.lines import Notes
from completion_ls.engines.exl2 import checks, gpu

GIB = 2**30


def look(notes: Notes) -> checks.Card | None:
    """The card that models are loaded on, if all is there. Imports torch only then."""
    driver = gpu.driver_version()
    if driver:
        notes.ok("driver", driver)
    seen = gpu.find_card()
    if seen:
        free = "" if seen.free_bytes is None else f", {seen.free_bytes / GIB:.1f} of them free"
        capability = ".".join(map(str, seen.capability))
        notes.ok(
            "card",
            f"{seen.name}, {seen.total_bytes / GIB:.1f} GiB{free}, compute capability {capability}",
        )
    try:
        checks.check_assertions()
    except RuntimeError as error:
        notes.failed("assertions", str(error))
    missing = []
    for piece in checks.pieces():
        if piece.found:
            notes.ok(piece.name, piece.found)
        else:
            missing.append(piece.name)
            notes.failed(piece.name, f"It is missing. {piece.how_to_get}")
    if missing:
        notes.failed(
            "engine",
            f"The exllamav2 engine lacks: {', '.join(missing)}. Install them as said for each; or "
            f"{checks.WITHOUT_A_CARD}",
        )
        return None
    try:
        card = checks.find_card()
    except (RuntimeError, ImportError) as error:
        notes.failed("engine", str(error))
        return None
    notes.ok("engine", f"torch computes on {card.name}")
    return card
