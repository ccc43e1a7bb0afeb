"""What the CPU engine finds on this machine: a compiler, and its functions compiled."""

from __future__ import annotations

import os
import shlex

from completion_ls.daemon.load import calm_openmp
from completion_ls.doctor.lines import Notes

SLOWER = "torch computes instead, several times slower"


def look(notes: Notes) -> bool:
    """Whether the compiled functions are there. Imports torch, and compiles where that was not done."""
    notes.ok("processors", str(os.cpu_count()))
    calm_openmp()
    try:
        from completion_ls.engines.native import compilers, try_native
    except ImportError as error:
        notes.failed("torch", f"torch cannot be imported ({error}); install it again.")
        return False
    named = os.environ.get("CC", "")
    there = compilers()
    if there:
        notes.ok("C compiler", ", ".join(map(shlex.join, there)))
    else:
        unknown = f", and CC names {named!r}, which is none" if named else ""
        notes.remark(
            "C compiler",
            f"There is no cc, gcc or clang on the PATH{unknown}: {SLOWER}. Install one (gcc, for "
            "example), then start the engine anew with `completion-ls daemon stop`.",
        )
    native, troubles = try_native()
    if native:
        notes.ok("kernels", "compiled")
    elif troubles:
        said = " ".join(troubles[0].split())[:300]
        notes.remark(
            "kernels",
            f"They cannot be compiled: {SLOWER}. What was said: {said}. Install a newer gcc or clang, "
            "or name another compiler in CC.",
        )
    else:
        notes.remark("kernels", f"They were not compiled, as said above: {SLOWER}.")
    return native is not None
