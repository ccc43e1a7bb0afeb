"""Whether the figures are served to Prometheus as `daemon.metrics_port` asks, and else why not."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Mapping
from typing import Any

from completion_ls.doctor.lines import Notes
from completion_ls.wire.endpoint import LOOPBACK, DaemonConfig

NAME = "daemon.metrics_port"
Figures = Mapping[str, Any]


def look(notes: Notes, config: DaemonConfig, daemons: Mapping[str, Figures]) -> None:
    """Compare the setting with the figures of the daemons that run, by the names of their endpoints."""
    port = config.daemon.metrics_port
    if not port:
        return
    ours = daemons.get(f"engine-{config.identity}")
    here = importlib.util.find_spec("prometheus_client") is not None
    if ours and ours.get("metrics_port") == port:
        _running(notes, ours)
    elif not here:
        notes.remark(
            NAME,
            "prometheus-client is not installed, so there are no metrics; run "
            f"`{sys.executable} -m pip install prometheus-client`"
            f"{', then `completion-ls daemon stop`' if ours else ''}.",
        )
    elif ours:
        notes.remark(
            NAME,
            f"The running daemon was started without port {port}: `completion-ls daemon stop`; the one "
            "that the next keystroke starts has it.",
        )
    else:
        _port(notes, port, daemons)


def _running(notes: Notes, ours: Figures) -> None:
    if failure := ours.get("metrics_failure"):
        notes.remark(NAME, f"{failure} Then `completion-ls daemon stop`.")
    elif url := ours.get("metrics_url"):
        notes.ok(NAME, f"{url}, served by process {ours.get('pid')}")
    else:
        notes.ok(NAME, f"process {ours.get('pid')} is about to serve it")


def _port(notes: Notes, port: int, daemons: Mapping[str, Figures]) -> None:
    """No daemon of these settings runs: whether the next one can have the port."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        has_it = [
            f"daemon {name}"
            for name, figures in daemons.items()
            if figures.get("metrics_port") == port and "metrics_url" in figures
        ]
        by = has_it[0] if has_it else "another program, perhaps"
        notes.remark(
            NAME,
            f"Port {port} cannot be had ({error.strerror or error}; {by}), so the next daemon would "
            "serve no metrics; choose another port.",
        )
        return
    notes.ok(NAME, f"port {port} is free; the next daemon serves http://{LOOPBACK}:{port}/metrics")
