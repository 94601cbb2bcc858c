"""Holds requests and answers (JSON on standard input) against the OpenAPI document that
alpaca-mcp-server brings, and prints what does not fit. Runs in the witnesses' environment."""

import json
import re
import sys
from importlib.metadata import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

(found,) = (each for each in files("alpaca-mcp-server") or () if each.name == "trading-api.json")
DOCUMENT: dict[str, Any] = json.loads(Path(found.locate()).read_text())
ROOT = "urn:alpaca"
REGISTRY = Registry().with_resource(
    ROOT, Resource.from_contents(DOCUMENT, default_specification=DRAFT202012)
)


def complaints(schema_at: str, value: object) -> list[str]:
    validator = Draft202012Validator({"$ref": f"{ROOT}#{schema_at}"}, registry=REGISTRY)
    return [
        f"{'/'.join(map(str, error.path))}: {error.message}"[:300]
        for error in validator.iter_errors(value)
    ]


def check(exchange: dict[str, Any]) -> list[str]:
    method = exchange["method"].lower()
    path = exchange["path"]
    for template, operations in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and method in operations:
            break
    else:
        return [f"{method} {path} is not in the document"]
    at = f"/paths/{template.replace('/', '~1')}/{method}".replace("{", "%7B").replace("}", "%7D")
    operation = operations[method]
    names = {each["name"] for each in operation.get("parameters", ()) if "name" in each}
    wrong = [f"unknown parameter {name}" for name in set(exchange["query"]) - names]
    if exchange["body"] is not None and exchange["status"] == 200:
        wrong += complaints(f"{at}/requestBody/content/application~1json/schema", exchange["body"])
    answer = operation["responses"].get(str(exchange["status"]))
    if answer is None and exchange["status"] < 400:
        wrong.append(f"{exchange['status']} is no answer of {template}")
    for kind in (answer or {}).get("content", ()):
        pointer = f"{at}/responses/{exchange['status']}/content/{kind.replace('/', '~1')}/schema"
        wrong += complaints(pointer, exchange["answer"])
    return [f"{method} {template}: {each}" for each in wrong]


exchanges = json.load(sys.stdin)
print(
    json.dumps(
        {
            "checked": len(exchanges),
            "wrong": sorted({text for each in exchanges for text in check(each)}),
        }
    )
)
