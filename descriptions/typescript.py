"""Packs the TypeScript client: types from the descriptions, TypeScript's checker, `npm pack`."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from descriptions.events import client_schemas, field_table

SOURCE = Path(__file__).parents[1] / "sdk-ts"
NEEDED = ("openapi-typescript", "tsc")
LIMIT_SECONDS = 110


def missing_tool(tools: Path) -> str:
    """A sentence that says what is missing, and how to get it; nothing where all is there."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is missing (apt-get install nodejs npm, then `make client`)"
    for program in NEEDED:
        if not (tools / "node_modules" / ".bin" / program).exists():
            return f"{program} is missing: `make client` installs it"
    return ""


def pack(openapi: dict[str, Any], tools: Path, folder: Path) -> Path:
    """The package, from a copy: what is generated is never in the source's folder."""
    with tempfile.TemporaryDirectory() as made:
        copy = build(openapi, tools, Path(made, SOURCE.name))
        return pack_built(copy, folder)


def build(openapi: dict[str, Any], tools: Path, copy: Path) -> Path:
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("node_modules"))
    (copy / "node_modules").symlink_to(tools / "node_modules")
    generate(openapi, copy)
    _run(copy, copy / "node_modules" / ".bin" / "tsc", "-p", ".")
    return copy


def pack_built(copy: Path, folder: Path) -> Path:
    done = _run(copy, "npm", "pack", "--json", "--pack-destination", folder.resolve())
    (packed,) = json.loads(done)
    return folder / str(packed["filename"])


def generate(openapi: dict[str, Any], copy: Path) -> None:
    """Writes the types of requests, of answers and of events into a copy of the source."""
    stream = {"components": {"schemas": client_schemas()}, "paths": {}}
    head = {"openapi": "3.1.0", "info": openapi["info"]}
    for name, document in (("api", openapi), ("stream", head | stream)):
        file = copy / f"{name}.json"
        file.write_text(json.dumps(document))
        tool = copy / "node_modules" / ".bin" / "openapi-typescript"
        _run(copy, tool, file.name, "-o", f"src/{name}.ts")
    table = json.dumps(field_table(), indent=2)
    (copy / "src" / "fields.ts").write_text(f"export const FIELDS = {table} as const;\n")


def _run(folder: Path, *command: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
