"""AsyncAPI 3 of the stream, over HTTP and over gRPC, from openapi.json and the stream's
descriptor."""

from typing import Any

from descriptions.events import event_kinds, wire_schemas

Document = dict[str, Any]

EVENTS_PATH = "/v1/accounts/{account_id}/events"
HTTP_HOST = "127.0.0.1:8080"
GRPC_HOST = "127.0.0.1:5051"
CONTENT_TYPE = "application/json"
PROTOBUF = "application/x-protobuf"
# A comment over HTTP, which clients never see.
ONLY_GRPC = {"heartbeat"}
REQUESTS = {"SubscribeEvents": "Subscribe", "StreamEvents": "StreamEventsRequest"}
CALLS = {
    "SubscribeEvents": "One account's events, or the whole organization's.",
    "StreamEvents": "Several subscriptions in one call, one for each account scope.",
}


def make_asyncapi(openapi: Document) -> Document:
    described = openapi["paths"][EVENTS_PATH]["get"]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": f"{openapi['info']['title']}: the stream",
            "version": openapi["info"]["version"],
            "description": "Intents, orders, trades, positions, balances and halts, as they "
            "change: as text over HTTP, or over gRPC. Both have the same events and cursors.",
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "http": _server(HTTP_HOST, "http"),
            "grpc": _server(GRPC_HOST, "grpc"),
        },
        "channels": {"accountEvents": _http_channel()} | _grpc_channels(),
        "operations": {"sendAccountEvents": _http_operation(described)} | _grpc_operations(),
        "components": {
            "messages": _messages(),
            "schemas": wire_schemas(),
            "securitySchemes": _security_schemes(openapi["components"]["securitySchemes"]),
        },
    }


def _server(host: str, protocol: str) -> Document:
    known = [{"$ref": f"#/components/securitySchemes/{name}"} for name in ("api_key", "bearer")]
    return {"host": host, "protocol": protocol, "security": known}


def _security_schemes(schemes: Document) -> Document:
    """As in OpenAPI, but that AsyncAPI has a type of its own for API keys over HTTP."""
    changed = {}
    for name, scheme in schemes.items():
        is_key = scheme["type"] == "apiKey"
        changed[name] = scheme | {"type": "httpApiKey"} if is_key else scheme
    return changed


def _http_channel() -> Document:
    kinds = [kind for kind in event_kinds() if kind not in ONLY_GRPC]
    return {
        "address": EVENTS_PATH,
        "title": "An account's events",
        "servers": [{"$ref": "#/servers/http"}],
        "parameters": {"account_id": {"description": "The account's id."}},
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in kinds},
    }


def _http_operation(described: Document) -> Document:
    query = {}
    headers = []
    for each in described["parameters"]:
        if each["in"] == "query":
            query[each["name"]] = each["schema"] | {"description": each["description"]}
        elif each["in"] == "header":
            headers.append(f"`{each['name']}`: {each['description']}")
    asked = {"method": "GET", "query": {"type": "object", "properties": query}}
    return {
        "action": "send",
        "channel": {"$ref": "#/channels/accountEvents"},
        "title": described["summary"],
        "description": f"{described['description']}. `text/event-stream`: `event` is the kind, "
        "`id` the cursor, `data` the message. A heartbeat is a comment. Headers of the request: "
        + " ".join(headers),
        "bindings": {"http": asked | {"bindingVersion": "0.3.0"}},
    }


def _grpc_channels() -> Document:
    kinds = {kind: {"$ref": f"#/components/messages/{kind}"} for kind in event_kinds()}
    channels = {}
    for call, request in REQUESTS.items():
        asked = {request: {"$ref": f"#/components/messages/{request}"}}
        channels[call] = {
            "address": f"/trading.TradingService/{call}",
            "description": CALLS[call],
            "servers": [{"$ref": "#/servers/grpc"}],
            "messages": asked | kinds,
        }
    return channels


def _grpc_operations() -> Document:
    operations = {}
    for call, request in REQUESTS.items():
        channel = f"#/channels/{call}"
        answers = [{"$ref": f"{channel}/messages/{kind}"} for kind in event_kinds()]
        operations[f"receive{call}"] = {
            "action": "receive",
            "channel": {"$ref": channel},
            "messages": [{"$ref": f"{channel}/messages/{request}"}],
            "reply": {"channel": {"$ref": channel}, "messages": answers},
        }
    return operations


def _messages() -> Document:
    """An event is a TradingEvent with one kind, and its cursor. Over gRPC it is protobuf."""
    messages = {}
    for kind, message in event_kinds().items():
        payload = {
            "type": "object",
            "required": [kind],
            "properties": {
                kind: {"$ref": f"#/components/schemas/{message.name}"},
                "cursor": {"type": "string", "description": "Go on after it, here or elsewhere."},
            },
        }
        messages[kind] = {"name": kind, "contentType": CONTENT_TYPE, "payload": payload}
    for request in REQUESTS.values():
        payload = {"$ref": f"#/components/schemas/{request}"}
        messages[request] = {"name": request, "contentType": PROTOBUF, "payload": payload}
    return messages
