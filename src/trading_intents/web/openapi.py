"""OpenAPI 3.1 and a readable page of it, made from the route table and the types that serve requests."""

import html
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from trading_intents import errors
from trading_intents.errors import PlatformError
from trading_intents.web.paging import read_cursor, read_limit
from trading_intents.web.request import JSON, check_entity_tags
from trading_intents.web.routing import Parameter, Route

PAGE_PARAMETERS = (
    Parameter(
        "limit",
        "Rows a page, 1 to 100; default 50.",
        {"type": "integer", "minimum": 0, "default": 50},
        check=read_limit,
    ),
    Parameter("next_cursor", "Where the last page ended.", {"type": "string"}, check=read_cursor),
)
IF_MATCH = Parameter(
    "if-match",
    'Write only if the version is still this one, such as "3".',
    {"type": "string"},
    where="header",
    check=check_entity_tags,
)
_SECURITY: list[dict[str, list[str]]] = [{"api_key": []}, {"bearer": []}]


def build_openapi(routes: Iterable[Route], version: str) -> dict[str, Any]:
    routes = tuple(routes)
    kinds = {k for route in routes for k in (route.body, route.answer, route.error_shape.kind) if k is not None}
    ordered = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    shapes = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shapes)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trading Intents Platform", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _operation(route: Route, shapes: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": f"Who may call: {route.policy.meaning}",
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [_parameter(p) for p in (*_path_parameters(route), *route.parameters)],
        "responses": _responses(route, shapes),
        "security": [] if route.policy.public else _SECURITY,
        "x-policy": route.policy.name,
    }
    if route.body is not None:
        content = {route.body_media.decode(): {"schema": shapes[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(route: Route) -> list[Parameter]:
    return [Parameter(n, "", {"type": "string"}, "path") for n in re.findall(r"{(\w+)}", route.path)]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.meaning,
        "schema": parameter.schema,
    }


def _responses(route: Route, shapes: dict[Any, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if route.status != 204:
        shape = shapes[route.answer] if route.answer is not None else {}
        success["content"] = {_media(route.answer_media): {"schema": shape}}
    responses = {str(route.status): success}
    for status, codes in sorted(_by_status(route).items()):
        content = {_media(route.error_shape.media): {"schema": shapes[route.error_shape.kind]}}
        responses[str(status)] = {"description": ", ".join(codes), "content": content}
    return responses


def _media(content_type: bytes) -> str:
    return content_type.decode().partition(";")[0]


def errors_of(route: Route) -> list[type[PlatformError]]:
    """What a route of this shape can answer, and what it says itself."""
    found: list[type[PlatformError]] = [errors.InternalError, *route.errors]
    if not route.always:
        found.append(errors.Unavailable)
    if route.method != "GET":
        found.append(errors.OutcomeUnknown)
    if not route.policy.public:
        found += [errors.Unauthorized, errors.Forbidden, errors.InvalidRequest, errors.RateLimited]
    if route.bucket:
        found.append(errors.RateLimited)
    if "{" in route.path:
        found.append(errors.NotFound)
    if route.body is not None:
        found += [errors.InvalidRequest, errors.InvalidJson] if route.body_media is JSON else [errors.InvalidRequest]
        found += [errors.RequestTimeout, errors.PayloadTooLarge, errors.UnsupportedMediaType, errors.ValidationFailed]
    if any(p.name == "next_cursor" for p in route.parameters):
        found += [errors.InvalidRequest, errors.InvalidCursor]
    if IF_MATCH in route.parameters:
        found.append(errors.VersionConflict)
    return list(dict.fromkeys(found))


def _by_status(route: Route) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for error in errors_of(route):
        grouped.setdefault(route.error_shape.status_of(error), []).append(error.code)
    return grouped


def wire_errors() -> list[type[PlatformError]]:
    """Every error that can be answered, by status and code."""
    found: list[type[PlatformError]] = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PlatformError) and kind is not PlatformError
    ]
    return sorted((k for k in found if not issubclass(k, errors.StartupRefused)), key=lambda k: (k.status, k.code))


def render_page(routes: Iterable[Route], version: str) -> bytes:
    """The page at /docs: no script, nothing loaded from elsewhere."""
    rows = "".join(_row(route) for route in routes)
    codes = "".join(
        f'<tr id="{e.code}"><td>{e.status}</td><td><code>{e.code}</code></td><td>{html.escape(e.title)}</td></tr>'
        for e in wire_errors()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Trading Intents Platform</title>"
        "<meta name=viewport content='width=device-width'><style>"
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.4rem;text-align:left;"
        "vertical-align:top}tr:target{background:#ffc}</style>"
        f"<h1>Trading Intents Platform {html.escape(version)}</h1>"
        "<p>The full description is <a href=/openapi.json>openapi.json</a> (OpenAPI 3.1).</p>"
        f"<h2>Endpoints</h2><table><tr><th>Endpoint<th>What it does<th>Who may call<th>Answers</tr>{rows}</table>"
        f"<h2>Errors</h2><table><tr><th>Status<th>Code<th>Meaning</tr>{codes}</table></html>"
    ).encode()


def _row(route: Route) -> str:
    statuses = ", ".join([str(route.status), *map(str, sorted(_by_status(route)))])
    return (
        f"<tr><td><code>{route.method} {html.escape(route.path)}</code></td><td>{html.escape(route.summary)}</td>"
        f"<td>{html.escape(route.policy.meaning)}</td><td>{statuses}</td></tr>"
    )
