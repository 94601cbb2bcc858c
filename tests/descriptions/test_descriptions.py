"""AsyncAPI by its own parser and with the stream's real events; the Bruno collection by Bruno's own
parser and against a platform."""

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from descriptions.asyncapi import make_asyncapi
from descriptions.bruno import make_collection
from descriptions.events import client_schemas, event_kinds, field_table
from descriptions.typescript import missing_tool

from tests.tenants import Tenants
from trading_intents_client import Account, TradingClient

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / ".venv" / "npm-types"
LIMIT_SECONDS = 60
# What only a person or a service account may read, and what only the key that the example names.
OTHERS = {
    "get_outbox_health": 401,
    "find_organization": 401,
    "list_api_keys": 401,
    "get_api_key_limits": 403,
}
# Nothing was set that these read.
UNSET = {
    "get_account_control",
    "get_account_halt",
    "get_account_limits",
    "get_organization_control",
    "get_organization_halt",
    "get_organization_limits",
    "get_symbol_controls",
    "get_symbol_limits",
}


@pytest.fixture(scope="module")
def openapi(tenants: Tenants) -> dict[str, Any]:
    document: dict[str, Any] = tenants.client.get("/openapi.json").json()
    return document


@pytest.fixture
def api_key(tenants: Tenants) -> str:
    key: str = tenants.api_key("org_acme", "all")["api_key"]
    return key


def by_node(program: str, package: str, given: object) -> Any:
    missing = missing_tool(TOOLS)
    if not missing and not (TOOLS / "node_modules" / package).exists():
        missing = f"{package} is missing: `make client` installs it"
    if missing:
        pytest.skip(missing)
    done = subprocess.run(
        ["node", str(HERE / program), str(TOOLS)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_asyncapi_is_valid_and_has_the_events_that_the_stream_sends(
    openapi: dict[str, Any], tenants: Tenants, api_key: str
) -> None:
    with TradingClient(tenants.platform.url, api_key=api_key) as client:
        account = client.account(client.create_account("asyncapi", "paper", "paper").id)
        events = sent_events(account, tenants, api_key)
    assert {event["event"] for event in events} >= {
        "status",
        "primed",
        "intent_action",
        "broker_order",
        "broker_trade",
        "broker_position",
        "halt",
    }
    document = make_asyncapi(openapi)
    wrong = copy.deepcopy(document)
    wrong["operations"]["sendAccountEvents"]["channel"]["$ref"] = "#/channels/nothing"
    misfit = {"event": "broker_order", "data": {"broker_order": {"version": 1}}}
    given = {"documents": [document, wrong], "events": [*events, misfit]}
    answer = by_node("check_asyncapi.cjs", "@asyncapi/parser", given)
    right, found = answer["complaints"]
    assert right == []
    assert found, "the parser looks at nothing"
    assert [event for event, _ in answer["misfits"]] == ["broker_order"], answer["misfits"]
    assert document["info"]["version"] == openapi["info"]["version"]


def sent_events(account: Account, tenants: Tenants, api_key: str) -> list[dict[str, Any]]:
    url = f"{tenants.platform.url}/v1/accounts/{account.id}/events"
    params = {"kinds": ",".join(("intent_action", "broker_order", "broker_trade", "halt"))}
    params["kinds"] += ",broker_position,balance"
    found = list[dict[str, Any]]()
    name = ""
    with httpx.stream("GET", url, params=params, headers={"x-api-key": api_key}) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if not line.startswith("data: "):
                continue
            found.append({"event": name, "data": json.loads(line.removeprefix("data: "))})
            if name == "primed":
                account.buy("AAPL", 1, stop_loss="1")
            if name == "broker_position":
                account.controls.halt("a test")
            if name == "halt":
                account.controls.resume()
                return found
    raise AssertionError("the stream ends")


def test_the_clients_types_have_every_field_of_every_event() -> None:
    schemas = client_schemas()
    for kind, message in event_kinds().items():
        properties = schemas[message.name]["properties"]
        assert set(properties) == set(message.fields_by_name)
        assert field_table()[kind].keys() <= properties.keys()
    order = schemas["BrokerOrder"]
    assert order["properties"]["order_side"]["enum"] == ["BUY", "SELL", "SELL_SHORT"]
    assert order["properties"]["version"] == {"type": "integer"}
    assert {"order_id", "quantity", "version", "flags"} <= set(order["required"])
    assert not {"limit_price", "broker_sent_at", "active"} & set(order["required"])


def test_the_requests_of_the_collection_are_those_of_the_api_and_are_answered(
    openapi: dict[str, Any], tenants: Tenants, api_key: str
) -> None:
    files = make_collection(openapi)
    assert json.loads(files["bruno.json"])["type"] == "collection"
    read = by_node("read_bruno.cjs", "@usebruno/lang", files)
    assert read.keys() == files.keys() - {"bruno.json"}
    assert read["collection.bru"]["auth"]["apikey"]["value"] == "{{api_key}}"
    given = {each["name"]: each["value"] for each in read["environments/demo.bru"]["variables"]}
    assert given.keys() == {"url", "account_id", "intent_id", "api_key", "token"}
    requests = {name: each for name, each in read.items() if "http" in each}
    assert {operation_id(name) for name in requests} == described(openapi)
    given |= {"url": tenants.platform.url, "api_key": api_key}
    with TradingClient(tenants.platform.url, api_key=api_key) as client:
        account_id = client.create_account("bruno", "paper", "paper").id
    answers = send_all(requests, given, account_id)
    refused = {name: status for name, status in answers.items() if status >= 400}
    assert {name: refused.pop(name) for name in OTHERS} == OTHERS
    assert refused.keys() <= UNSET
    assert set(refused.values()) == {404}
    assert answers["submit_intent"] == 202
    assert answers["get_order"] == answers["get_intent"] == 200


def described(openapi: dict[str, Any]) -> set[str]:
    operations = [each for methods in openapi["paths"].values() for each in methods.values()]
    pages = {"get_docs", "get_home", "get_page_style"}
    return {each["operationId"] for each in operations if each["tags"] != ["Console"]} - pages


def operation_id(file: str) -> str:
    return file.rpartition("/")[2].partition(".")[0]


def send_all(requests: dict[str, Any], given: dict[str, str], account_id: str) -> dict[str, int]:
    """Those that read, and a new order, in the order that the collection's text says."""
    statuses = {}
    first = ("Accounts/list_accounts.bru", "Intents/submit_intent.CREATE.bru")
    rest = [name for name, each in requests.items() if each["http"]["method"] == "get"]
    for name in dict.fromkeys([*first, *rest]):
        if operation_id(name) == "stream_events":
            continue  # it never ends
        answer = send(requests[name], given)
        statuses[operation_id(name)] = answer.status_code
        for kept in requests[name].get("vars", {}).get("res", []):
            given[kept["name"]] = value_at(answer.json(), kept["value"])
        if operation_id(name) == "list_accounts":
            assert given["account_id"]
            given["account_id"] = account_id  # others' tests use the first one
    return statuses


def send(request: dict[str, Any], given: dict[str, str]) -> httpx.Response:
    def filled(text: str) -> str:
        return re.sub(r"{{(\w+)}}", lambda found: given[found[1]], text)

    url = filled(request["http"]["url"])
    for each in request.get("params", []):
        if each["type"] == "path":
            url = url.replace(f":{each['name']}", filled(each["value"]))
    body = request.get("body", {}).get("json", "")
    headers = {"x-api-key": given["api_key"]} if request["http"]["auth"] == "inherit" else {}
    if body:
        headers["content-type"] = "application/json"
    return httpx.request(
        request["http"]["method"].upper(), url, headers=headers, content=filled(body)
    )


def value_at(answer: Any, path: str) -> str:
    """`res.body.data[0].id` in an answer."""
    for part in re.findall(r"\w+", path.removeprefix("res.body.")):
        answer = answer[int(part)] if part.isdigit() else answer[part]
    return str(answer)
