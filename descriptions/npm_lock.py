"""Takes the addresses out of a package-lock.json: the hashes say what is right, wherever it comes
from."""

import json
import sys
from pathlib import Path

ADDRESSES = ("resolved", "funding")

if __name__ == "__main__":
    file = Path(sys.argv[1])
    lock = json.loads(file.read_text())
    for package in lock["packages"].values():
        for name in ADDRESSES:
            package.pop(name, None)
    file.write_text(json.dumps(lock, indent=2) + "\n")
