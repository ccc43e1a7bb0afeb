"""Ask pip-audit and npm for known vulnerabilities; scripts/audit starts this with their paths."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKED = tuple(ROOT / "editors" / name for name in ("vscode", "nvim"))
"""Folders with a lock file."""
TIMEOUT_S = 240
ANSWER_S = 20
"""So long an advisory database may take for one answer."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What is known of one kind of dependency."""

    kind: str
    vulnerable: list[str]
    """A line for each package."""
    not_audited: str
    """Why nothing, or not all, is known; empty where all is."""


def audit_python(pip_audit: str) -> Audit:
    """Audit what is pinned for Python."""
    report, trouble = _asked(
        [
            *(pip_audit, "--requirement", "scripts/constraints.txt", "--no-deps", "--disable-pip"),
            *("--format", "json", "--progress-spinner", "off", "--timeout", str(ANSWER_S)),
        ],
        ROOT,
    )
    packages = report.get("dependencies")
    if not isinstance(packages, list):
        return Audit("Python", [], trouble or "pip-audit gave no report")
    vulnerable = [
        f"{one['name']} {one['version']}: {', '.join(found['id'] for found in one['vulns'])}"
        for one in packages
        if one.get("vulns")
    ]
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    why = f"nothing is known of {len(skipped)} of {len(packages)} packages here" if skipped else ""
    return Audit("Python", vulnerable, why)


def audit_npm(npm: str, folder: Path) -> Audit:
    """Audit what the lock file in a folder names."""
    kind = f"npm, {folder.name}"
    report, trouble = _asked(
        [
            *(npm, "audit", "--json", "--package-lock-only", "--fetch-retries=0"),
            f"--fetch-timeout={1000 * ANSWER_S}",
        ],
        folder,
    )
    packages = report.get("vulnerabilities")
    if not isinstance(packages, dict):
        said = report.get("message")
        return Audit(kind, [], _first_line(said) or trouble or "npm gave no report")
    vulnerable = [
        f"{name} {one.get('range', '')}: {one.get('severity', 'of unknown severity')}"
        for name, one in packages.items()
    ]
    return Audit(kind, vulnerable, "")


def _asked(command: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    """The report that a program prints (empty where it is none), and what it says of its trouble."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer came in {TIMEOUT_S} s"
    except OSError as error:
        return {}, f"{command[0]} cannot be started ({error.strerror})"
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    lines = done.stderr.strip().splitlines()
    return report if isinstance(report, dict) else {}, _first_line(lines[-1] if lines else "")


def _first_line(said: object) -> str:
    return str(said).splitlines()[0][:200] if said else ""


def main(pip_audit: str, npm: str) -> int:
    """Print what was found on stderr; 1 where a package has a known vulnerability."""
    audits = [audit_python(pip_audit), *(audit_npm(npm, folder) for folder in LOCKED)]
    for audit in audits:
        for line in audit.vulnerable:
            print(
                f"A known vulnerability ({audit.kind}): {line}. Take another version.",
                file=sys.stderr,
            )
        if audit.not_audited:
            print(f"{audit.kind}: not audited, or not all: {audit.not_audited}.", file=sys.stderr)
        elif not audit.vulnerable:
            print(f"{audit.kind}: no known vulnerability.", file=sys.stderr)
    return 1 if any(audit.vulnerable for audit in audits) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
