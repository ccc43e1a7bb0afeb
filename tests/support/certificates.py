"""Certificates that the tests make for themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, or another name, that signs itself, and its key, made now."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", f"subjectAltName={name}"),
            *("-out", str(files[0]), "-keyout", str(files[1])),
        ],
        check=True,
        capture_output=True,
    )
    return files
