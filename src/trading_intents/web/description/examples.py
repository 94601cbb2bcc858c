"""Example values for the API's description: one for each field name, composed by the schemas. Validates nothing."""

import json
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any
from urllib.parse import quote, urlencode

Schema = Mapping[str, Any]

_TIME = "2026-01-05T15:00:00.000000Z"
# A name means the same everywhere in this API. None is taken where the schema allows null. The first of an enumeration
# and a time need no entry.
VALUES: Mapping[str, Any] = {
    "access_token": "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJyZXBvcnRlciJ9.c2lnbmF0dXJl",
    "api_key_id": "01a1dd2f-4829-75b0-8eb4-622a00644a0f",
    "account_id": "01a1dd3b-0e5c-7d53-8a94-4b7a3c1f0b62",
    "action_type": "CREATE",
    "allow_short": False,
    "allowed": True,
    "allowed_symbols": ["AAPL", "MSFT"],
    "api_key": "tip_paper_EGIaLl36Ih3laA2dT8IRemcCDNISuSMf2OPwTt",
    "ask": "187.5",
    "ask_size": "200",
    "average_cost": "187.42",
    "average_price": "187.42",
    "bid": "187.4",
    "bid_size": "300",
    "broker": "paper",
    "broker_quantity": "10",
    "buying_power": "998125.8",
    "cash": "998125.8",
    "client_id": "reporter",
    "client_reference_id": "my-17",
    "client_secret": "the-secret-that-admin-apply-showed",
    "closed_at": None,
    "code": "validation_failed",
    "credential_fields": ["api_key_id", "api_secret"],
    "credential_id": "01a1dd3b-2f10-7c11-9d0e-6c2b8b1f6a55",
    "cumulative_quantity": "10",
    "currency": "USD",
    "daily_pnl": "0",
    "duplicate_window_millis": 500,
    "environment": "paper",
    "environments": ["paper", "live"],
    "equity": "1000005.8",
    "exec_id": "01a1dd3b-7a00-7b11-8c0e-1c2b8b1f6a01",
    "expires_in": 900,
    "external_account_id": None,
    "external_id": "demo",
    "external_order_id": "01a1dd3b-79ff-7b11-8c0e-1c2b8b1f6a00",
    "fee": None,
    "fields": ["api_key_id", "api_secret"],
    "filled_quantity": "10",
    "fingerprint": "5d41402abc4b2a76",
    "flags": [],
    "grant_type": "client_credentials",
    "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "hint": "PwTt",
    "daily_notional": "1874.2",
    "id": "01a1dd2f-4829-75b0-8eb4-622a00644a0f",
    "if-match": '"1"',
    "intent_id": "01a1dd3b-5e1c-7aa3-9c94-0b7a3c1f0b01",
    "idempotency-key": "my-17",
    "label": "main",
    "last": None,
    "last_size": None,
    "last_used_at": None,
    "leaves_quantity": "0",
    "leg": None,
    "limit_price": "187.5",
    "manual_reason": "earnings tonight",
    "manually_disabled": True,
    "market_price": "188",
    "market_value": "1880",
    "max_daily_loss": "5000",
    "max_daily_notional": "5000",
    "max_open_orders": 50,
    "max_order_notional": "100000",
    "max_order_quantity": "500",
    "max_orders_per_minute": 600,
    "max_position_quantity": "1000",
    "name": "momentum",
    "next_cursor": None,
    "notional": "1874.2",
    "opening_quantity": "0",
    "order_id": "01a1dd3b-5e1c-7aa3-9c94-0b7a3c1f0b01",
    "order_status": "FILLED",
    "orders_last_minute": 3,
    "order_type": "LIMIT",
    "organization_id": "01a1dd2f-4492-731e-ac51-f15666b39ddb",
    "parent_intent_id": None,
    "permissions": ["intent:read", "intent:edit"],
    "price": "187.42",
    "price_collar_bps": 200,
    "principal_id": "01a1dd2f-4829-75b0-8eb4-622a00644a0f",
    "principal_type": "API_KEY",
    "provider": "local",
    "provider_id": "demo",
    "quantity": "10",
    "realized_pnl": "0",
    "reason": None,
    "ref_intent_id": "01a1dd3b-5e1c-7aa3-9c94-0b7a3c1f0b01",
    "route_strategy": "SMART",
    "scope": "intent:read",
    "secrets": {"api_key_id": "PK1", "api_secret": "s1"},
    "spec": {"Limit": {"quantity": "10", "limit_price": "187.5", "time_in_force": "DAY"}},
    "stale_order_millis": 60_000,
    "status": "ready",
    "stop_price": None,
    "symbol": "AAPL",
    "time_in_force": "DAY",
    "timezone": "America/New_York",
    "token_type": "Bearer",
    "trail_amount": None,
    "trail_bps": None,
    "trade_id": "01a1dd3b-7a01-7b11-8c0e-1c2b8b1f6a02",
    "trading_end": "16:00:00",
    "trading_start": "09:30:00",
    "triggered": [],
    "unrealized_pnl": "5.8",
    "x-organization-id": "01a1dd2f-4492-731e-ac51-f15666b39ddb",
}


class Examples:
    """Makes examples of the schemas that a document's components hold."""

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
        """Bodies with the fields that are required and those worth showing; of a tagged union, one for each tag."""

        def shown(name: str, resolved: Schema) -> bool:
            return name in resolved.get("required", ()) or VALUES.get(name) is not None

        made = self._value("", schema, shown)
        for name, field in self.resolve(schema).get("properties", {}).items():
            if "discriminator" in field:
                variants = field["discriminator"]["mapping"].items()
                return {tag: made | {name: self._value(name, {"$ref": ref}, shown)} for tag, ref in variants}
        return {"": made}

    def _value(self, name: str, schema: Schema, shown: Any) -> Any:
        resolved = self.resolve(schema)
        choices = [self.resolve(choice) for choice in resolved.get("anyOf", [resolved])]
        if name in VALUES and any(_fits(VALUES[name], choice) for choice in choices):
            return VALUES[name]
        chosen = choices[0]
        if "enum" in chosen or "default" in chosen:
            return chosen.get("default", chosen.get("enum", [None])[0])
        match chosen.get("type"):
            case "object":
                fields = chosen.get("properties", {}).items()
                return {field: self._value(field, kind, shown) for field, kind in fields if shown(field, chosen)}
            case "array":
                return [self._value("", chosen["items"], shown)] if "items" in chosen else []
            case "integer" | "number":
                return max(1, chosen.get("minimum", 1))
            case "boolean":
                return False
            case _:
                is_time = name.endswith("_at") or name in ("from", "to") or chosen.get("format") == "date-time"
                return _TIME if is_time else "text"


def _fits(value: Any, schema: Schema) -> bool:
    kind = _JSON_TYPES[type(value)]
    if "enum" in schema:
        return value in schema["enum"]
    if kind == "array" and value and "enum" in schema.get("items", {}):
        return all(item in schema["items"]["enum"] for item in value)
    return (
        schema.get("type") == kind
        and re.search(schema.get("pattern", ""), value if kind == "string" else "") is not None
    )


_JSON_TYPES = {NoneType: "null", bool: "boolean", str: "string", int: "integer", list: "array", dict: "object"}


def curl(method: str, path: str, operation: Schema, url: str) -> str:
    """A command for a shell that calls the operation with its examples."""
    given = {parameter["name"]: parameter["example"] for parameter in operation["parameters"]}
    place = re.sub(r"{(\w+)}", lambda found: quote(str(given[found[1]]), safe=""), path)
    options = "-N" if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}) else "-s"
    parts = [f"curl {options} {'' if method == 'GET' else f'-X {method} '}{url}{place}"]
    if {"api_key": []} in operation["security"]:
        parts.append('-H "x-api-key: $KEY"')
    elif operation["security"]:
        parts.append('-H "authorization: Bearer $TOKEN"')
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        is_only = "example" in content
        example = content["example"] if is_only else next(iter(content["examples"].values()))["value"]
        text = json.dumps(example) if media.endswith("json") else urlencode(example)
        parts += [f"-H 'content-type: {media}'", f"-d '{text}'"]
    return " \\\n  ".join(parts)
