"""Writes openapi.json, asyncapi.json, a Bruno collection and the TypeScript client's package.

python -m descriptions FOLDER [TOOLS]

`make dist` runs it. TOOLS is where `make client` installed the tools of npm; without them the
package is left out.
"""

import json
import sys
from pathlib import Path

from descriptions.asyncapi import make_asyncapi
from descriptions.bruno import make_collection
from descriptions.served import fetch_openapi
from descriptions.typescript import missing_tool, pack


def main(folder: Path, tools: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    openapi = fetch_openapi()
    write_json(folder / "openapi.json", openapi)
    write_json(folder / "asyncapi.json", make_asyncapi(openapi))
    for path, text in make_collection(openapi).items():
        file = folder / "bruno" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    missing = missing_tool(tools)
    if missing:
        print(f"the TypeScript client is not packed: {missing}")
    else:
        print(pack(openapi, tools, folder).name)


def write_json(file: Path, document: object) -> None:
    file.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(*sys.argv[2:]).resolve())
