"""Example values for the API's description: one for each field name, composed by the schemas.
Validates nothing."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from types import NoneType
from typing import Any
from urllib.parse import quote, urlencode

Schema = Mapping[str, Any]

_TIME = "2026-01-05T15:00:00.000000Z"
# A name means the same everywhere in this API. None is taken where the schema allows null. The
# first of an enumeration and a time need no entry.
VALUES: Mapping[str, Any] = json.loads(
    resources.files(__package__).joinpath("examples.json").read_text()
)


class Examples:
    def __init__(self, components: Mapping[str, Any]) -> None:
        self._components = components

    def resolve(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._components[schema["$ref"].rpartition("/")[2]]
        return schema

    def answer(self, schema: Schema, name: str = "") -> Any:
        """With every field that there is; of a parameter by its name."""
        return self._value(name, schema, lambda name, resolved: True)

    def requests(self, schema: Schema) -> dict[str, Any]:
        """Bodies with the fields that are required and those worth showing; of a tagged union, one
        for each tag."""

        def shown(name: str, resolved: Schema) -> bool:
            return name in resolved.get("required", ()) or VALUES.get(name) is not None

        made = self._value("", schema, shown)
        for name, field in self.resolve(schema).get("properties", {}).items():
            if "discriminator" in field:
                bodies = {}
                for tag, ref in field["discriminator"]["mapping"].items():
                    bodies[tag] = made | {name: self._value(name, {"$ref": ref}, shown)}
                return bodies
        return {"": made}

    def _value(self, name: str, schema: Schema, shown: Any) -> Any:
        resolved = self.resolve(schema)
        choices = [self.resolve(choice) for choice in resolved.get("anyOf", [resolved])]
        if name in VALUES and any(_fits(VALUES[name], choice) for choice in choices):
            return VALUES[name]
        chosen = choices[0]
        if "default" in chosen:
            return chosen["default"]
        if "enum" in chosen:
            return chosen["enum"][0]
        match chosen.get("type"):
            case "object":
                return self._object(chosen, shown)
            case "array":
                if "items" not in chosen:
                    return []
                return [self._value("", chosen["items"], shown)]
            case "integer" | "number":
                return max(1, chosen.get("minimum", 1))
            case "boolean":
                return False
            case _:
                return _text(name, chosen)

    def _object(self, schema: Schema, shown: Any) -> dict[str, Any]:
        made = {}
        for name, field in schema.get("properties", {}).items():
            if shown(name, schema):
                made[name] = self._value(name, field, shown)
        return made


def _text(name: str, schema: Schema) -> str:
    is_time = name.endswith("_at") or name in ("from", "to") or schema.get("format") == "date-time"
    return _TIME if is_time else "text"


def _fits(value: Any, schema: Schema) -> bool:
    kind = _JSON_TYPES[type(value)]
    if "enum" in schema:
        return value in schema["enum"]
    if kind == "array" and value and "enum" in schema.get("items", {}):
        return set(value) <= set(schema["items"]["enum"])
    if schema.get("type") != kind:
        return False
    return kind != "string" or re.search(schema.get("pattern", ""), value) is not None


_JSON_TYPES = {
    NoneType: "null",
    bool: "boolean",
    str: "string",
    int: "integer",
    list: "array",
    dict: "object",
}


def values_of(content: Schema) -> list[Any]:
    """The examples of a body."""
    if "example" in content:
        return [content["example"]]
    return [example["value"] for example in content.get("examples", {}).values()]


def curl(method: str, path: str, operation: Schema, url: str) -> str:
    given = {parameter["name"]: parameter["example"] for parameter in operation["parameters"]}

    def fill(found: re.Match[str]) -> str:
        return quote(str(given[found[1]]), safe="")

    filled = re.sub(r"{(\w+)}", fill, path)
    answers = operation["responses"].get("200", {}).get("content", {})
    options = "-N" if "text/event-stream" in answers else "-s"
    if method != "GET":
        options += f" -X {method}"
    parts = [f"curl {options} {url}{filled}"]
    if {"api_key": []} in operation["security"]:
        parts.append('-H "x-api-key: $KEY"')
    elif operation["security"]:
        parts.append('-H "authorization: Bearer $TOKEN"')
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        example = values_of(content)[0]
        text = json.dumps(example) if media.endswith("json") else urlencode(example)
        parts += [f"-H 'content-type: {media}'", f"-d '{text}'"]
    return " \\\n  ".join(parts)
