"""The pages at / and /docs, as HTML made once from the OpenAPI document: no script, nothing loaded
from elsewhere."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any

from trading_intents.errors import PlatformError
from trading_intents.web.description.examples import Examples, Schema, values_of
from trading_intents.web.description.static import HTML, MEDIA, StaticFile, browser_headers

STYLE_PATH = "/page.css"
MAX_FIELD_DEPTH = 8
BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "format": "format",
    "pattern": "matching",
}
WHAT_IT_IS = (
    "Applications submit intents: to create, replace or cancel an order. The platform checks them "
    "against controls, records them for ever, sends each to the account's broker once, and streams "
    "what came of it."
)
FIRST_ORDER = """. examples/demo.sh {url}
curl -s {url}/v1/accounts/$ACCOUNT/intents \\
  -H "x-api-key: $KEY" -H 'content-type: application/json' \\
  -d '{{"command": {{"type": "CREATE", "payload": {{"symbol": "AAPL",
       "order_side": "BUY", "spec": {{"Market": {{"quantity": "10"}}}}}}}}}}'
curl -s {url}/v1/accounts/$ACCOUNT/orders -H "x-api-key: $KEY\""""


def make_pages(
    document: Mapping[str, Any], errors: Iterable[type[PlatformError]], url: str
) -> dict[str, StaticFile]:
    headers = browser_headers()
    title = f"{document['info']['title']} {document['info']['version']}"
    home = _page(title, _home(title, url, has_console="/console" in document["paths"]))
    reference = _page(f"API of the {title}", _reference(document, errors))
    style = resources.files(__package__).joinpath("page.css").read_bytes()
    return {
        "/": StaticFile(home, HTML, headers),
        "/docs": StaticFile(reference, HTML, headers),
        STYLE_PATH: StaticFile(style, MEDIA[".css"], headers),
    }


def _page(title: str, content: str) -> bytes:
    head = "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
    style = f"<link rel=stylesheet href={STYLE_PATH}>"
    return (
        f"<!doctype html><html lang=en><head>{head}<title>{escape(title)}</title>{style}</head>"
        f"<body>{content}</body></html>\n"
    ).encode()


def _home(title: str, url: str, has_console: bool) -> str:
    console = "<li><a href=/console>The console</a>: orders, positions and controls in the browser"
    return (
        f"<h1>{escape(title)}</h1><p>{WHAT_IT_IS}</p>"
        f"<ul>{console if has_console else ''}"
        "<li><a href=/docs>The API</a>: every operation with its fields, examples and errors"
        "<li><a href=/openapi.json>openapi.json</a>: the same for programs (OpenAPI 3.1)"
        "<li><a href=/healthz>Liveness</a> and <a href=/readyz>readiness</a> of this process"
        "<li><a href=/metrics>Metrics</a> for Prometheus</ul>"
        "<h2>Place a first order</h2><p>In another terminal, in the folder where you typed "
        "<code>make run</code>, with the demo organization that it made:</p>"
        f"<pre><code>{escape(FIRST_ORDER.format(url=url))}</code></pre>"
        "<p>README.md goes on from here: the stream, controls, the history, an organization of "
        "your own.</p>"
    )


def _reference(document: Mapping[str, Any], errors: Iterable[type[PlatformError]]) -> str:
    examples = Examples(document["components"]["schemas"])
    contents = []
    sections = []
    for tag in document["tags"]:
        title = escape(tag["name"])
        contents.append(f"<li><strong>{title}</strong>")
        sections.append(f"<h2>{title}</h2>")
        for method, path, operation in _operations_of(document, tag["name"]):
            name = operation["operationId"]
            contents.append(f"<li><a href=#{name}>{name}</a>")
            sections.append(_operation(method, path, operation, examples))
    codes = {}
    for error in errors:
        codes[error.code] = [str(error.status), f"<code>{error.code}</code>", escape(error.title)]
    problem = _fields({"$ref": "#/components/schemas/Problem"}, examples)
    return (
        f"<h1>{escape(document['info']['title'])}: the API</h1>"
        "<p><a href=/>Start</a> · <a href=/openapi.json>openapi.json</a> · "
        "<a href=#errors>Errors</a></p>"
        f"<nav><ul>{''.join(contents)}</ul></nav>{''.join(sections)}"
        "<h2 id=errors>Errors</h2><p>RFC 9457: <code>application/problem+json</code> with the "
        f"fields below.</p>{_table(('Field', 'Type', ''), problem)}"
        f"{_table(('Status', 'Code', 'Meaning'), codes.values(), codes)}"
    )


def _operations_of(document: Mapping[str, Any], tag: str) -> Iterator[tuple[str, str, Schema]]:
    """The operations with their methods and paths."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] == [tag]:
                yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Schema, examples: Examples) -> str:
    parts = [
        f"<section id={operation['operationId']}><h3>{escape(operation['summary'])}</h3>",
        f"<p><code>{method} {escape(path)}</code></p><p>{escape(operation['description'])}.</p>",
        f"<pre><code>{escape(operation['x-codeSamples'][0]['source'])}</code></pre>",
    ]
    if operation["parameters"]:
        rows = [_parameter(parameter, examples) for parameter in operation["parameters"]]
        parts.append("<h4>Parameters</h4>" + _table(("Name", "Type", ""), rows))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<h4>Body: {escape(media)}</h4>" + _content(content, examples))
    failures = []
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            bodies = response.get("content", {})
            parts.append(f"<h4>{status} {escape(', '.join(bodies) or 'without a body')}</h4>")
            for content in bodies.values():
                parts.append(_content(content, examples))
        else:
            codes = re.sub(r"(\w+)", r"<a href=#\1>\1</a>", response["description"])
            failures.append([status, codes])
    parts.append(f"<h4>Errors</h4>{_table(('Status', 'Code'), failures)}</section>")
    return "".join(parts)


def _parameter(parameter: Schema, examples: Examples) -> list[str]:
    name = f"<code>{escape(parameter['name'])}</code>"
    location = parameter["in"] + (", required" if parameter["required"] else "")
    meaning = escape(parameter["description"])
    if parameter["example"] is not None:
        meaning += f" Such as <code>{escape(str(parameter['example']))}</code>."
    return [name, f"{_type(parameter['schema'], examples)} ({location})", meaning]


def _content(content: Schema, examples: Examples) -> str:
    rows = list(_fields(content["schema"], examples))
    shown = _table(("Field", "Type", ""), rows) if rows else ""
    for value in values_of(content):
        shown += f"<pre><code>{escape(json.dumps(value, indent=1))}</code></pre>"
    return shown


def _fields(
    schema: Schema, examples: Examples, path: str = "", depth: int = 0
) -> Iterator[list[str]]:
    """A row for each field, and for each field within it."""
    resolved = examples.resolve(schema)
    for choice in resolved.get("anyOf", ()):
        yield from _fields(choice, examples, path, depth)
    if "items" in resolved:
        yield from _fields(resolved["items"], examples, f"{path}[]", depth)
    for name, field in resolved.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        need = "required" if name in resolved.get("required", ()) else "optional"
        yield [f"<code>{escape(here)}</code>", _type(field, examples), need]
        if depth < MAX_FIELD_DEPTH:
            yield from _fields(field, examples, here, depth + 1)


def _type(schema: Schema, examples: Examples) -> str:
    resolved = examples.resolve(schema)
    if "anyOf" in resolved:
        return " or ".join(dict.fromkeys(_type(choice, examples) for choice in resolved["anyOf"]))
    if "enum" in resolved:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in resolved["enum"])
    kind = str(resolved.get("type", "anything"))
    if kind == "array" and "items" in resolved:
        return f"array of {_type(resolved['items'], examples)}"
    for name, words in BOUNDS.items():
        if name in resolved:
            kind += f", {words} {escape(str(resolved[name]))}"
    return kind


def _table(titles: Iterable[str], rows: Iterable[list[str]], anchors: Iterable[str] = ()) -> str:
    """`anchors` are the rows' ids; without any the rows have none."""
    lines = [f"<tr>{_cells('th', titles)}</tr>"]
    ids = iter(anchors)
    for row in rows:
        anchor = next(ids, None)
        start = "<tr>" if anchor is None else f"<tr id={anchor}>"
        lines.append(f"{start}{_cells('td', row)}</tr>")
    return f"<div class=scroll><table>{''.join(lines)}</table></div>"


def _cells(kind: str, texts: Iterable[str]) -> str:
    return "".join(f"<{kind}>{text}</{kind}>" for text in texts)
