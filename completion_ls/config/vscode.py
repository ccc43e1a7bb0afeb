"""The settings as the VS Code extension has them: made from `settings.py`, so that they cannot drift.

Writes `contributes.configuration` and the settings that a workspace must not set into package.json, and
their names into src/settings.generated.ts. A server that computes is no setting of the extension: the
language server takes one from no editor, as it cannot tell what a project has set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from completion_ls.config.settings import Settings
from completion_ls.config.sources import OF_THE_USER
from completion_ls.config.table import meanings

PREFIX = "completion-ls."
OWN: dict[str, dict[str, Any]] = {
    "enabled": {
        "type": "boolean",
        "default": True,
        "scope": "language-overridable",
        "markdownDescription": "Offer suggestions while you type. Where this is off they come only when "
        "you ask for them (*Trigger Inline Suggestion*).",
    },
    "program": {
        "type": "string",
        "default": "",
        "scope": "machine",
        "markdownDescription": "Path of the program completion-ls, with `~` for the home folder. Where it "
        "is empty, the program of the active Python environment is started, or that in the PATH, or that "
        "in the extension's own environment.",
    },
    "package": {
        "type": "string",
        "default": "completion-ls",
        "scope": "machine",
        "markdownDescription": "What pip installs into the extension's own environment, where no program "
        "was found: the name of a package, perhaps with a version, or the path of a clone of the "
        "repository or of a wheel, with `~` for the home folder.",
    },
    "trace.server": {
        "type": "string",
        "enum": ["off", "messages", "verbose"],
        "default": "off",
        "scope": "window",
        "markdownDescription": "Write the messages between VS Code and the server into the log. They "
        "hold code.",
    },
}
"""The extension's own settings, which the server does not have."""
KEPT = (
    *("type", "enum", "default", "items", "multipleOf", "minLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
"""What VS Code takes of a JSON schema."""
RESTRICTED = ("model", "draft", "engine", "daemon")
"""Sections that name programs, models or sockets, or decide what is loaded: no workspace may set them,
trusted or not."""


def properties() -> dict[str, dict[str, Any]]:
    """`contributes.configuration.properties`."""
    found = {PREFIX + name: dict(values) for name, values in OWN.items()}
    for name, values in _mirrored():
        found[PREFIX + name] = values
    # The editor would sort them by their names, with what is looked for first between the rest.
    for order, values in enumerate(found.values()):
        values["order"] = order
    return found


def restricted() -> list[str]:
    """Settings that are not taken from a workspace."""
    mirrored = [name for name, _ in _mirrored() if name.partition(".")[0] in RESTRICTED]
    return [PREFIX + name for name in ("program", "package", *mirrored)]


def write(folder: Path) -> None:
    """Bring the extension in `folder` up to date."""
    file = folder / "package.json"
    package = json.loads(file.read_text(encoding="utf-8"))
    package["contributes"]["configuration"]["properties"] = properties()
    package["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"] = restricted()
    file.write_text(json.dumps(package, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "src" / "settings.generated.ts").write_text(_source(), encoding="utf-8")


def _mirrored() -> Iterator[tuple[str, dict[str, Any]]]:
    """The server's settings, as VS Code describes settings."""
    definitions = Settings.model_json_schema()["$defs"]
    for section, field in Settings.model_fields.items():
        if section in OF_THE_USER:
            continue
        model: Any = field.annotation
        texts = meanings(model)
        # Of the user alone; VS Code says so where a workspace has one.
        scope = "machine" if section in RESTRICTED else "window"
        for key, schema in definitions[model.__name__]["properties"].items():
            kept = {name: value for name, value in schema.items() if name in KEPT}
            yield f"{section}.{key}", kept | {"scope": scope, "markdownDescription": texts[key]}


def _source() -> str:
    keys = json.dumps([name for name, _ in _mirrored()], indent=2)
    prefix = len(PREFIX)
    closed = json.dumps([name[prefix:] for name in restricted()], indent=2)
    return (
        "// Made from the server's settings by completion_ls/config/vscode.py; do not edit.\n\n"
        f"export const KEYS: readonly string[] = {keys};\n\n"
        f"export const RESTRICTED: ReadonlySet<string> = new Set({closed});\n"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
