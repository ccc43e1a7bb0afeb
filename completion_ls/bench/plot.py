"""A picture of a replay: prompt tokens over the session, times to first text, times by kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from completion_ls.bench.figures import Keystroke


def write_plot(
    file: Path, keystrokes: Sequence[Keystroke], *, title: str, peer_ms: Sequence[float] = ()
) -> None:
    """Write a PNG. `peer_ms` are another server's times to its first token. Raises OSError."""
    # Figures of their own, not pyplot's: it would look for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    tokens, times, kinds = figure.subplots(1, 3)

    tokens.plot([key.computed for key in keystrokes], ".", markersize=4)
    tokens.set_yscale("symlog", linthresh=10)
    tokens.set_ylim(bottom=-0.5)
    tokens.set(xlabel="keystroke", ylabel="prompt tokens computed")

    needed = [key.first_ms for key in keystrokes if key.needed_pass]
    for name, values in (
        ("all keystrokes", [key.first_ms for key in keystrokes]),
        ("those that needed a pass", needed),
        ("llama.cpp, first token", list(peer_ms)),
    ):
        if values:
            times.ecdf(values, label=name)
    times.set_xscale("log")
    times.legend(loc="upper left")
    times.set(xlabel="ms to first ghost text, or none", ylabel="share of keystrokes")

    alone = [key.first_ms for key in keystrokes if key.by_front_alone]
    cached = [k.first_ms for k in keystrokes if not k.by_front_alone and not k.needed_pass]
    named = {"text was there": alone, "no pass": cached, "pass": needed}
    found = {name: values for name, values in named.items() if values}
    kinds.boxplot(
        list(found.values()),
        tick_labels=[f"{name}\n{len(values)}" for name, values in found.items()],
        whis=(5, 95),
        showfliers=False,
    )
    kinds.set_yscale("log")
    kinds.set(xlabel="how it was answered, keystrokes", ylabel="ms to first ghost text, or none")
    figure.savefig(file, format="png", dpi=110)
