"""The description is made from the route table, and holds."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.platform import Platform
from tests.web.conftest import Site

pytest_plugins = ("tests.started_dirs",)


async def test_every_route_is_described(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {(route.method, route.path) for route in site.app.routes}
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", "0.1.0")


async def test_bodies_and_answers_are_the_types_that_serve(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    operation = document["paths"]["/v1/places/{place}/orders"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Order"
    }
    assert document["components"]["schemas"]["Order"]["additionalProperties"] is False
    assert set(operation["responses"]) == {
        "201",
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "415",
        "422",
        "429",
        "500",
        "503",
    }
    assert operation["security"]


@pytest.fixture(scope="module")
def document(platform: Platform) -> dict[str, Any]:
    answer: dict[str, Any] = platform.client.get("/openapi.json").json()
    return answer


def test_no_field_has_null_as_its_default(document: dict[str, Any]) -> None:
    """Generators of types take a field with a default for one that is always there: it could not be
    left out."""
    schemas = document["components"]["schemas"]
    fields = [
        (kind, *field)
        for kind, each in schemas.items()
        for field in each.get("properties", {}).items()
    ]
    assert [(kind, name) for kind, name, field in fields if field.get("default", ...) is None] == []
    assert "client_reference_id" in schemas["Submit"]["properties"]
    assert schemas["Submit"]["required"] == ["command"]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_has_an_id_a_tag_a_summary_and_an_example(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    ids = []
    for name, operation in operations(document):
        ids.append(operation["operationId"])
        assert set(operation["tags"]) <= tags, name
        assert operation["summary"].endswith("."), name
        assert operation["x-codeSamples"][0]["source"].startswith("curl "), name
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert content.get("example") is not None or content.get("examples"), name
    assert len(ids) == len(set(ids))
    assert {"submit_intent", "list_orders", "create_account", "evaluate_controls"} <= set(ids)
    submit = document["paths"]["/v1/accounts/{account_id}/intents"]["post"]
    assert list(submit["requestBody"]["content"]["application/json"]["examples"]) == [
        "CREATE",
        "REPLACE",
        "CANCEL",
    ]


def test_every_example_fits_its_schema(document: dict[str, Any]) -> None:
    checked = 0
    for name, operation in operations(document):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        contents = [content for body in bodies for content in body.get("content", {}).values()]
        for content in contents:
            named = [example["value"] for example in content.get("examples", {}).values()]
            for example in [*named, *([content["example"]] if "example" in content else [])]:
                schema = content["schema"] | {"components": document["components"]}
                assert jsonschema_rs.validator_for(schema).is_valid(example), (name, example)
                checked += 1
        for parameter in operation["parameters"]:
            assert jsonschema_rs.validator_for(parameter["schema"]).is_valid(
                parameter["example"]
            ), (name, parameter)
    assert checked > 50


def test_ids_of_the_platform_and_times_have_their_formats(document: dict[str, Any]) -> None:
    formats: dict[str, set[str]] = {"uuid": set(), "date-time": set(), "": set()}
    for component in document["components"]["schemas"].values():
        for name, schema in component.get("properties", {}).items():
            kinds = [
                each.get("format", "")
                for each in schema.get("anyOf", [schema])
                if each.get("type") == "string"
            ]
            if name == "id" or name.endswith(("_id", "_at")) or name in ("as_of", "from", "to"):
                for kind in kinds:
                    formats[kind].add(name)
    assert {
        "id",
        "account_id",
        "organization_id",
        "intent_id",
        "ref_intent_id",
        "order_id",
    } <= formats["uuid"]
    assert {"created_at", "closed_at", "received_at", "as_of", "from", "to"} <= formats["date-time"]
    assert formats[""] == {
        *("client_id", "client_reference_id", "exec_id", "principal_id", "request_id"),
        *("external_id", "external_account_id", "external_order_id"),
    }


def test_a_record_of_an_action_names_every_value_that_it_can_have(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    fields = schemas["ActionRecord"]["properties"]
    named = {
        name: schemas[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        for name, each in fields.items()
    }
    values = {name: set(each["enum"]) for name, each in named.items() if "enum" in each}
    assert values["action_type"] == {"CREATE", "REPLACE", "CANCEL"}
    assert values["order_type"] == {"MARKET", "LIMIT", "STOP", "STOP_LIMIT", "TRAILING_STOP"}
    assert values["order_type"] == set(schemas["Order"]["properties"]["order_type"]["enum"])
    assert values["principal_type"] == {"API_KEY", "USER", "SERVICE", "SYSTEM"}
    assert {"environment", "order_side", "route_strategy", "time_in_force"} <= values.keys()


def test_every_list_says_of_what(document: dict[str, Any]) -> None:
    def arrays(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict):
            if schema.get("type") == "array":
                yield schema
            schema = list(schema.values())
        if isinstance(schema, list):
            for part in schema:
                yield from arrays(part)

    assert [
        array for array in arrays(document["components"]["schemas"]) if "items" not in array
    ] == []


def test_an_operation_names_only_the_credentials_that_it_takes(document: dict[str, Any]) -> None:
    security = {
        operation["operationId"]: operation["security"] for _, operation in operations(document)
    }
    assert security["submit_intent"] == [{"api_key": []}]
    assert security["create_api_key"] == [{"bearer": []}]
    assert security["list_orders"] == [{"api_key": []}, {"bearer": []}]
    assert security["check_liveness"] == []
