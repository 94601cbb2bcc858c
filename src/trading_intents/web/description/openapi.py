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
from trading_intents.web.routes import IF_MATCH, Operation, Parameter, Route, Tag

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
UUID_FIELDS = {
    "id",
    "account_id",
    "organization_id",
    "intent_id",
    "ref_intent_id",
    "parent_intent_id",
    "order_id",
    "trade_id",
    "credential_id",
    "api_key_id",
}
TIME_FIELDS = {"as_of", "at", "from", "to"}


def build_openapi(routes: Iterable[Route], version: str, url: str) -> dict[str, Any]:
    """`url` is where the examples find the platform."""
    routes = tuple(routes)
    kinds = set[Any]()
    for route in routes:
        operation = route.operation
        kinds |= {operation.body, operation.answer, operation.error_shape.kind}
    ordered = sorted(kinds - {None}, key=str)
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
        described = _operation(route, shapes, examples)
        source = curl(route.method, route.path, described, url)
        described["x-codeSamples"] = [{"lang": "Shell", "source": source}]
        paths.setdefault(route.path, {})[route.method.lower()] = described
    used_tags = {route.operation.tag for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version},
        "tags": [{"name": tag} for tag in Tag if tag in used_tags],
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
            if name in UUID_FIELDS:
                _set_format(schema, "uuid")
            elif name.endswith("_at") or name in TIME_FIELDS:
                _set_format(schema, "date-time")


def _set_format(schema: dict[str, Any], name: str) -> None:
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") == "string":
            choice["format"] = name


def _operation(route: Route, shapes: dict[Any, Any], examples: Examples) -> dict[str, Any]:
    operation = route.operation
    described: dict[str, Any] = {
        "operationId": route.handle.__name__,
        "tags": [operation.tag],
        "summary": route.summary,
        "description": f"Who may call: {route.policy.meaning}",
        "parameters": [_parameter(p, examples) for p in _parameters(route)],
        "responses": _responses(route, shapes, examples),
        "security": [{credential: []} for credential in route.policy.credentials],
        "x-policy": route.policy.name,
    }
    if operation.body is not None:
        shape = shapes[operation.body]
        content = {"schema": shape} | _request_examples(examples.requests(shape))
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {operation.body_media.decode(): content},
        }
    return described


def _request_examples(made: dict[str, Any]) -> dict[str, Any]:
    if len(made) == 1:
        return {"example": made.popitem()[1]}
    return {"examples": {name: {"value": value} for name, value in made.items()}}


def _parameters(route: Route) -> list[Parameter]:
    found = []
    for name in re.findall(r"{(\w+)}", route.path):
        found.append(Parameter(name, "", {"type": "string"}, "path"))
    found += route.operation.parameters
    if route.policy.names_organization:
        found.append(ORGANIZATION)
    return found


def _parameter(parameter: Parameter, examples: Examples) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.meaning,
        "schema": parameter.schema,
        "example": examples.answer(parameter.schema, parameter.name),
    }
    if parameter.schema["type"] == "array":
        described |= {"style": "form", "explode": False}  # between commas
    return described


def _responses(route: Route, shapes: dict[Any, Any], examples: Examples) -> dict[str, Any]:
    operation = route.operation
    success: dict[str, Any] = {"description": "Success"}
    if operation.answer is not None:
        content = {"schema": shapes[operation.answer]}
        if example := examples.answer(content["schema"]):
            content["example"] = example
        success["content"] = {_media(operation.answer_media): content}
        if operation.csv_columns:
            success["content"][_media(CSV)] = {"schema": {"type": "string"}}
    elif operation.status != 204:
        success["content"] = {_media(operation.answer_media): {"schema": {}}}
    responses = {}
    for status in (operation.repeated_status, operation.status):
        if status:
            responses[str(status)] = success
    error_media = _media(operation.error_shape.media)
    error_content = {error_media: {"schema": shapes[operation.error_shape.kind]}}
    for status, codes in sorted(codes_by_status(route).items()):
        responses[str(status)] = {"description": ", ".join(codes), "content": error_content}
    for code, response in responses.items():
        names = _header_names(route, int(code), success)
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return responses


def _header_names(route: Route, status: int, success: dict[str, Any]) -> list[str]:
    """The headers that an answer of this status has, beside those of HTTP itself."""
    found = ["x-request-id"]
    if status == errors.RateLimited.status:
        found += ["ratelimit", "ratelimit-policy"]
    if status in (errors.RateLimited.status, errors.Unavailable.status):
        found.append("retry-after")
    if status == errors.Unauthorized.status:
        found.append("www-authenticate")
    if status < errors.InvalidRequest.status:
        found += _success_header_names(route.operation, success)
    return sorted(found)


def _success_header_names(operation: Operation, success: dict[str, Any]) -> list[str]:
    found = []
    shown = success.get("content", {}).values()
    if any(_has_version(each.get("example")) for each in shown):
        found.append("etag")
    if _has_parameter(operation, "idempotency-key"):
        found.append("idempotent-replayed")
    if operation.csv_columns:
        found.append("link")
    if not operation.always:
        found += ["ratelimit", "ratelimit-policy"]
    return found


def _has_parameter(operation: Operation, name: str) -> bool:
    return name in [each.name for each in operation.parameters]


def _has_version(example: Any) -> bool:
    """Whether a thing has a version, or consists of parts that have one each."""
    if not isinstance(example, dict):
        return False
    if "version" in example:
        return True
    return bool(example) and all(map(_has_version, example.values()))


def _media(content_type: bytes) -> str:
    return content_type.decode().partition(";")[0]


def errors_of(route: Route) -> list[type[PlatformError]]:
    """The errors that a route of this shape can answer, and those that it names itself."""
    operation = route.operation
    found: list[type[PlatformError]] = [errors.InternalError, *operation.errors]
    if not operation.always:
        found += [errors.Unavailable, errors.RateLimited]
    if route.method != "GET":
        found.append(errors.OutcomeUnknown)
    if not route.policy.public:
        found += [errors.Unauthorized, errors.Forbidden, errors.InvalidRequest, errors.RateLimited]
    if "{" in route.path:
        found.append(errors.NotFound)
    if operation.body is not None:
        found.append(errors.InvalidRequest)
        if operation.body_media is JSON:
            found.append(errors.InvalidJson)
        found += [errors.RequestTimeout, errors.PayloadTooLarge, errors.UnsupportedMediaType]
    if not operation.any_query:
        found += [errors.InvalidRequest, errors.ValidationFailed]
    if _has_parameter(operation, "next_cursor"):
        found.append(errors.InvalidCursor)
    if IF_MATCH in operation.parameters:
        found.append(errors.VersionConflict)
    return list(dict.fromkeys(found))


def codes_by_status(route: Route) -> dict[int, list[str]]:
    status_of = route.operation.error_shape.status_of
    grouped: dict[int, list[str]] = {}
    for error in errors_of(route):
        grouped.setdefault(status_of(error), []).append(error.code)
    return grouped
