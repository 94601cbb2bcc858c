"""OpenAPI 3.1, made from the route table and the types that serve requests, so that it cannot
differ from them."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from trading_intents import errors
from trading_intents.errors import PlatformError
from trading_intents.web.description.examples import Examples, curl
from trading_intents.web.paging import CSV
from trading_intents.web.request import JSON
from trading_intents.web.routes import IF_MATCH, Parameter, Route, Tag

TITLE = "Trading Intents Platform"
ORGANIZATION = Parameter(
    "x-organization-id",
    "From a service account only, which must name the organization that it reads; ignored "
    "from anyone else.",
    {"type": "string", "format": "uuid"},
    where="header",
)
HEADERS = {
    "etag": 'The version, such as "3", for If-Match.',
    "idempotent-replayed": "true: the first answer to this Idempotency-Key again.",
    "link": 'In an answer as CSV: the next page, rel="next", where there is more.',
    "ratelimit": "How many requests are left, for the caller and its organization.",
    "ratelimit-policy": "The rate limits.",
    "retry-after": "Seconds to wait.",
    "www-authenticate": "The credential that is taken.",
    "x-request-id": "The caller's own if it is 1 to 64 of A-Z a-z 0-9 . _ - and else a new one.",
}
# A field has the same meaning wherever it stands. Other ids are a broker's, an identity provider's
# or the caller's.
UUID_FIELDS = frozenset(
    {
        *("id", "account_id", "organization_id", "intent_id", "ref_intent_id", "parent_intent_id"),
        *("order_id", "trade_id", "credential_id", "api_key_id"),
    }
)
TIME_FIELDS = frozenset({"as_of", "at", "from", "to"})


def build_openapi(routes: Iterable[Route], version: str, url: str) -> dict[str, Any]:
    """`url` is where the examples find the platform."""
    routes = tuple(routes)
    kinds = {
        k
        for route in routes
        for k in (route.operation.body, route.operation.answer, route.operation.error_shape.kind)
        if k is not None
    }
    ordered = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    _add_formats(components)
    shapes = dict(zip(ordered, schemas, strict=True))
    examples = Examples(components)
    ids = [route.handle.__name__ for route in routes]
    assert len(ids) == len(set(ids)), "two operations have one id"
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, shapes, examples)
        operation["x-codeSamples"] = [
            {"lang": "Shell", "source": curl(route.method, route.path, operation, url)}
        ]
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version},
        "tags": [
            {"name": tag} for tag in Tag if any(route.operation.tag is tag for route in routes)
        ],
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": meaning, "schema": {"type": "string"}}
                for name, meaning in HEADERS.items()
            },
            "securitySchemes": {
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _add_formats(components: dict[str, Any]) -> None:
    for component in components.values():
        for name, schema in component.get("properties", {}).items():
            if schema.get("default", ...) is None:
                # Generators of types take a field with a default for one that is always there.
                del schema["default"]
            is_time = name.endswith("_at") or name in TIME_FIELDS
            kind = "uuid" if name in UUID_FIELDS else "date-time" if is_time else None
            for choice in schema.get("anyOf", [schema]) if kind else ():
                if choice.get("type") == "string":
                    choice["format"] = kind


def _operation(route: Route, shapes: dict[Any, Any], examples: Examples) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handle.__name__,
        "tags": [route.operation.tag],
        "summary": route.summary,
        "description": f"Who may call: {route.policy.meaning}",
        "parameters": [_parameter(p, examples) for p in _parameters(route)],
        "responses": _responses(route, shapes, examples),
        "security": [{credential: []} for credential in route.policy.credentials],
        "x-policy": route.policy.name,
    }
    if route.operation.body is not None:
        content = {"schema": shapes[route.operation.body]} | _request_examples(
            examples.requests(shapes[route.operation.body])
        )
        operation["requestBody"] = {
            "required": not route.operation.is_body_optional,
            "content": {route.operation.body_media.decode(): content},
        }
    return operation


def _request_examples(made: dict[str, Any]) -> dict[str, Any]:
    if len(made) == 1:
        return {"example": made.popitem()[1]}
    return {"examples": {name: {"value": value} for name, value in made.items()}}


def _parameters(route: Route) -> list[Parameter]:
    in_path = [
        Parameter(n, "", {"type": "string"}, "path") for n in re.findall(r"{(\w+)}", route.path)
    ]
    return [
        *in_path,
        *route.operation.parameters,
        *([ORGANIZATION] if route.policy.names_organization else []),
    ]


def _parameter(parameter: Parameter, examples: Examples) -> dict[str, Any]:
    # Between commas.
    several = {"style": "form", "explode": False} if parameter.schema["type"] == "array" else {}
    return several | {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.meaning,
        "schema": parameter.schema,
        "example": examples.answer(parameter.schema, parameter.name),
    }


def _responses(route: Route, shapes: dict[Any, Any], examples: Examples) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if route.operation.answer is not None:
        shape = shapes[route.operation.answer]
        example = examples.answer(shape)
        success["content"] = {
            _media(route.operation.answer_media): {"schema": shape}
            | ({"example": example} if example else {})
        }
        if route.operation.csv_columns:
            success["content"][_media(CSV)] = {"schema": {"type": "string"}}
    elif route.operation.status != 204:
        success["content"] = {_media(route.operation.answer_media): {"schema": {}}}
    responses = {
        str(status): success
        for status in (route.operation.repeated_status, route.operation.status)
        if status
    }
    for status, codes in sorted(codes_by_status(route).items()):
        content = {
            _media(route.operation.error_shape.media): {
                "schema": shapes[route.operation.error_shape.kind]
            }
        }
        responses[str(status)] = {"description": ", ".join(codes), "content": content}
    for code, response in responses.items():
        names = _header_names(route, int(code), success)
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return responses


def _header_names(route: Route, status: int, success: dict[str, Any]) -> list[str]:
    """The headers that an answer of this status has, beside those of HTTP itself."""
    is_success = status < errors.InvalidRequest.status
    is_limited = status == errors.RateLimited.status
    has = {
        "etag": is_success
        and any(_has_version(each.get("example")) for each in success.get("content", {}).values()),
        "idempotent-replayed": is_success
        and any(p.name == "idempotency-key" for p in route.operation.parameters),
        "link": is_success and bool(route.operation.csv_columns),
        "ratelimit": is_limited or (is_success and not route.operation.always),
        "ratelimit-policy": is_limited or (is_success and not route.operation.always),
        "retry-after": status in (errors.RateLimited.status, errors.Unavailable.status),
        "www-authenticate": status == errors.Unauthorized.status,
        "x-request-id": True,
    }
    return [name for name, is_sent in has.items() if is_sent]


def _has_version(example: Any) -> bool:
    """Whether a thing has a version, or consists of parts that have one each."""
    if not isinstance(example, dict):
        return False
    return "version" in example or (bool(example) and all(map(_has_version, example.values())))


def _media(content_type: bytes) -> str:
    return content_type.decode().partition(";")[0]


def errors_of(route: Route) -> list[type[PlatformError]]:
    """The errors that a route of this shape can answer, and those that it names itself."""
    found: list[type[PlatformError]] = [errors.InternalError, *route.operation.errors]
    if not route.operation.always:
        found += [errors.Unavailable, errors.RateLimited]
    if route.method != "GET":
        found.append(errors.OutcomeUnknown)
    if not route.policy.public:
        found += [errors.Unauthorized, errors.Forbidden, errors.InvalidRequest, errors.RateLimited]
    if "{" in route.path:
        found.append(errors.NotFound)
    if route.operation.body is not None:
        found += (
            [errors.InvalidRequest, errors.InvalidJson]
            if route.operation.body_media is JSON
            else [errors.InvalidRequest]
        )
        found += [errors.RequestTimeout, errors.PayloadTooLarge, errors.UnsupportedMediaType]
    if not route.operation.any_query:
        found += [errors.InvalidRequest, errors.ValidationFailed]
    if any(p.name == "next_cursor" for p in route.operation.parameters):
        found.append(errors.InvalidCursor)
    if IF_MATCH in route.operation.parameters:
        found.append(errors.VersionConflict)
    return list(dict.fromkeys(found))


def codes_by_status(route: Route) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for error in errors_of(route):
        grouped.setdefault(route.operation.error_shape.status_of(error), []).append(error.code)
    return grouped
