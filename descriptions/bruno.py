"""A collection of requests for Bruno, from openapi.json: a file for each request, with an
environment for the demo."""

import json
from typing import Any

Document = dict[str, Any]

DEMO_URL = "http://127.0.0.1:8080"
MEANT_FOR_BROWSERS = {"text/html", "text/css"}
CONSOLE = "Console"
JSON = "application/json"
# What one answer says and other requests need.
VARIABLES = {
    "account_id": "account_id",
    "intent_id": "intent_id",
    "order_id": "intent_id",
    "ref_intent_id": "intent_id",
}
KEPT = {
    "list_accounts": {"account_id": "res.body.data[0].id"},
    "submit_intent": {"intent_id": "res.body.intent_id"},
}
ABOUT = """\
Every request of the API. Choose the environment `demo`, put the API key of `.data/demo.json` into
its secret `api_key`, and send `Accounts/list_accounts` first: it sets `account_id` for the others.
An order that `Intents/submit_intent.CREATE` places is the `intent_id` of those that follow.
"""
MANIFEST = {"version": "1", "type": "collection", "ignore": ["node_modules", ".git"]}


def make_collection(openapi: Document) -> dict[str, str]:
    """The files' texts by their paths in the collection's folder."""
    name = openapi["info"]["title"]
    files = {
        "bruno.json": json.dumps({"name": name} | MANIFEST, indent=2) + "\n",
        "collection.bru": _collection(),
        "environments/demo.bru": _environment(),
    }
    seqs = {tag["name"]: seq for seq, tag in enumerate(openapi["tags"], 1)}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            tag = operation["tags"][0]
            if _is_for_browsers(operation):
                continue
            files[f"{tag}/folder.bru"] = _block("meta", {"name": tag, "seq": str(seqs[tag])})
            for example, body in _bodies(operation).items():
                request = f"{operation['operationId']}.{example}".removesuffix(".")
                seq = sum(file.startswith(f"{tag}/") for file in files)
                parts = _request(method, path, operation, body)
                meta = {"name": request, "type": "http", "seq": str(seq)}
                files[f"{tag}/{request}.bru"] = "\n".join([_block("meta", meta), *parts])
    return files


def _is_for_browsers(operation: Document) -> bool:
    answered = operation["responses"].get("200", {}).get("content", {})
    return operation["tags"][0] == CONSOLE or bool(MEANT_FOR_BROWSERS & answered.keys())


def _bodies(operation: Document) -> dict[str, Any]:
    """A request for each example of a body; most have one, which has no name."""
    contents = operation.get("requestBody", {}).get("content", {})
    for content in contents.values():
        if "examples" in content:
            return {name: each["value"] for name, each in content["examples"].items()}
        return {"": content.get("example", {})}
    return {"": None}


def _request(method: str, path: str, operation: Document, body: Any) -> list[str]:
    url = "{{url}}" + path.replace("{", ":").replace("}", "")
    media = next(iter(operation.get("requestBody", {}).get("content", {})), None)
    kind = {None: "none", JSON: "json"}.get(media, "formUrlEncoded")
    blocks = [_block(method, {"url": url, "body": kind, "auth": _auth(operation)})]
    sent = {"path": "params:path", "query": "params:query", "header": "headers"}
    for where, title in sent.items():
        given = {}
        for parameter in operation["parameters"]:
            if parameter["in"] == where:
                mark = "" if parameter["required"] else "~"  # not sent until it is ticked
                given[mark + parameter["name"]] = _text(parameter["name"], parameter["example"])
        if given:
            blocks.append(_block(title, given))
    if kind == "json":
        blocks.append(_text_block("body:json", json.dumps(_with_variables(body), indent=2)))
    elif kind == "formUrlEncoded":
        blocks.append(_block("body:form-urlencoded", body))
    if _auth(operation) == "bearer":
        blocks.append(_block("auth:bearer", {"token": "{{token}}"}))
    kept = KEPT.get(operation["operationId"])
    if kept and (body is None or body["command"]["type"] == "CREATE"):
        blocks.append(_block("vars:post-response", kept))
    blocks.append(_text_block("docs", f"{operation['summary']}\n\n{operation['description']}."))
    return blocks


def _auth(operation: Document) -> str:
    """The collection's API key where one is taken."""
    taken = {name for each in operation["security"] for name in each}
    if not taken:
        return "none"
    return "inherit" if "api_key" in taken else "bearer"


def _text(name: str, example: Any) -> str:
    if name in VARIABLES:
        return "{{" + VARIABLES[name] + "}}"
    return ",".join(map(str, example)) if isinstance(example, list) else str(example)


def _with_variables(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_variables(each) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {}
    for name, each in value.items():
        changed[name] = _text(name, each) if name in VARIABLES else _with_variables(each)
    return changed


def _collection() -> str:
    key = {"key": "x-api-key", "value": "{{api_key}}", "placement": "header"}
    mode = _block("auth", {"mode": "apikey"})
    return "\n".join([mode, _block("auth:apikey", key), _text_block("docs", ABOUT)])


def _environment() -> str:
    named = _block("vars", {"url": DEMO_URL, "account_id": "", "intent_id": ""})
    return f"{named}vars:secret [\n  api_key,\n  token\n]\n"


def _block(title: str, fields: dict[str, str]) -> str:
    lines = [f"  {name}: {value}".rstrip() for name, value in fields.items()]
    return "\n".join([f"{title} {{", *lines, "}", ""])


def _text_block(title: str, text: str) -> str:
    lines = [f"  {line}".rstrip() for line in text.strip().splitlines()]
    return "\n".join([f"{title} {{", *lines, "}", ""])
