"""The API's description as a platform of this tree answers it, which is started for the purpose."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import httpx

PREFIX = "TRADING_INTENTS_"
DOCUMENTED_URL = "http://127.0.0.1:8080"
STOP_LIMIT_SECONDS = 20
ANSWER_LIMIT_SECONDS = 20


def fetch_openapi() -> dict[str, Any]:
    """Serves from a new folder, at a port that is free, until it has answered."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with tempfile.TemporaryDirectory() as folder:
        settings = {"DATA_DIR": folder, "HTTP_PORT": "0", "GRPC_PORT": "0", "WORKERS": "0"}
        given = {PREFIX + name: value for name, value in settings.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "trading_intents", "serve"],
            env=clean | given,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            url = _served_at(process)
            answer = httpx.get(f"{url}/openapi.json", timeout=ANSWER_LIMIT_SECONDS)
            text = answer.raise_for_status().text
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STOP_LIMIT_SECONDS)
    document: dict[str, Any] = json.loads(text.replace(url, DOCUMENTED_URL))
    return document


def _served_at(process: subprocess.Popen[str]) -> str:
    """The address, which the log says once the platform serves."""
    assert process.stderr is not None
    lines = list[str]()
    for line in process.stderr:
        lines.append(line)
        said = json.loads(line) if line.startswith("{") else {}
        if said.get("event") == "serving":
            return str(said["http"])
    raise SystemExit("the platform does not start:\n" + "".join(lines))
