"""Every endpoint that the platform's own description names has a method, and every field that it
answers is read."""

import inspect
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from tests.documents import rows, section
from tests.sdk.answers import CannedAnswers
from tests.tenants import Tenants
from trading_intents.identity.access import RULES, Grant
from trading_intents.identity.model import Permission
from trading_intents_client import AsyncTradingClient, KeyLimits, Limits, create_command, errors
from trading_intents_client.asynchronous.account import AsyncAccount
from trading_intents_client.asynchronous.controls import AsyncAccountControls
from trading_intents_client.asynchronous.market import AsyncMarket
from trading_intents_client.asynchronous.organization import AsyncOrganization
from trading_intents_client.asynchronous.platform import AsyncPlatform

A = "01a1dd48-1c89-7959-a22f-872cdfc4739d"
S = "AAPL"
Call = Callable[[AsyncTradingClient], Awaitable[Any]]
# One call of each method that asks the platform something, by the class and the method's name.
CALLS: dict[str, Call] = {
    "AsyncTradingClient.accounts": lambda c: c.accounts().page(),
    "AsyncTradingClient.create_account": lambda c: c.create_account("n", "paper", "paper"),
    "AsyncTradingClient.find_account": lambda c: c.find_account(),
    "AsyncAccount.get": lambda c: c.account(A).get(),
    "AsyncAccount.update": lambda c: c.account(A).update(name="n"),
    "AsyncAccount.close": lambda c: c.account(A).close(),
    "AsyncAccount.buy": lambda c: c.account(A).buy(S, 1),
    "AsyncAccount.sell": lambda c: c.account(A).sell(S, 1),
    "AsyncAccount.short": lambda c: c.account(A).short(S, 1),
    "AsyncAccount.submit": lambda c: c.account(A).submit(create_command(S, "BUY", 1)),
    "AsyncAccount.close_position": lambda c: c.account(A).close_position(S),
    "AsyncAccount.cancel_all": lambda c: c.account(A).cancel_all(),
    "AsyncAccount.order": lambda c: c.account(A).order(A),
    "AsyncAccount.orders": lambda c: c.account(A).orders().page(),
    "AsyncAccount.trades": lambda c: c.account(A).trades().page(),
    "AsyncAccount.positions": lambda c: c.account(A).positions().page(),
    "AsyncAccount.balances": lambda c: c.account(A).balances(),
    "AsyncAccount.equity": lambda c: c.account(A).equity(),
    "AsyncAccount.intents": lambda c: c.account(A).intents().page(),
    "AsyncAccount.intent": lambda c: c.account(A).intent(A),
    "AsyncAccount.actions": lambda c: c.account(A).actions(A).page(),
    "AsyncAccount.stats": lambda c: c.account(A).stats(),
    "AsyncAccount.events": lambda c: anext(c.account(A).events()),
    "AsyncAccount.credentials": lambda c: c.account(A).credentials().page(),
    "AsyncAccount.create_credential": lambda c: c.account(A).create_credential({"token": "t"}),
    "AsyncAccount.update_credential": lambda c: c.account(A).update_credential(A, label="l"),
    "AsyncAccount.delete_credential": lambda c: c.account(A).delete_credential(A),
    "AsyncAccountControls.get": lambda c: c.account(A).controls.get(),
    "AsyncAccountControls.set": lambda c: c.account(A).controls.set(disabled=True),
    "AsyncAccountControls.evaluate": lambda c: c.account(A).controls.evaluate(S),
    "AsyncAccountControls.limits": lambda c: c.account(A).controls.limits(),
    "AsyncAccountControls.set_limits": lambda c: c.account(A).controls.set_limits(Limits()),
    "AsyncAccountControls.delete_limits": lambda c: c.account(A).controls.delete_limits(),
    "AsyncAccountControls.halt": lambda c: c.account(A).controls.halt("r"),
    "AsyncAccountControls.current_halt": lambda c: c.account(A).controls.current_halt(),
    "AsyncAccountControls.resume": lambda c: c.account(A).controls.resume(),
    "AsyncAccountControls.symbols": lambda c: c.account(A).controls.symbols().page(),
    "AsyncAccountControls.symbol": lambda c: c.account(A).controls.symbol(S),
    "AsyncAccountControls.set_symbol": lambda c: c.account(A).controls.set_symbol(S, disabled=True),
    "AsyncAccountControls.update_symbol_time": lambda c: c.account(A).controls.update_symbol_time(
        S
    ),
    "AsyncAccountControls.delete_symbol": lambda c: c.account(A).controls.delete_symbol(S),
    "AsyncAccountControls.symbol_limits": lambda c: c.account(A).controls.symbol_limits(S),
    "AsyncAccountControls.set_symbol_limits": lambda c: c.account(A).controls.set_symbol_limits(
        S, Limits()
    ),
    "AsyncAccountControls.delete_symbol_limits": lambda c: c.account(
        A
    ).controls.delete_symbol_limits(S),
    "AsyncOrganization.caller": lambda c: c.organization.caller(),
    "AsyncOrganization.find": lambda c: c.organization.find("local", "demo"),
    "AsyncOrganization.control": lambda c: c.organization.control(),
    "AsyncOrganization.set_control": lambda c: c.organization.set_control(disabled=False),
    "AsyncOrganization.limits": lambda c: c.organization.limits(),
    "AsyncOrganization.set_limits": lambda c: c.organization.set_limits(Limits()),
    "AsyncOrganization.delete_limits": lambda c: c.organization.delete_limits(),
    "AsyncOrganization.halt": lambda c: c.organization.halt("r"),
    "AsyncOrganization.current_halt": lambda c: c.organization.current_halt(),
    "AsyncOrganization.resume": lambda c: c.organization.resume(),
    "AsyncOrganization.api_keys": lambda c: c.organization.api_keys().page(),
    "AsyncOrganization.create_api_key": lambda c: c.organization.create_api_key("n", "paper", []),
    "AsyncOrganization.update_api_key": lambda c: c.organization.update_api_key(A, name="n"),
    "AsyncOrganization.delete_api_key": lambda c: c.organization.delete_api_key(A),
    "AsyncOrganization.key_limits": lambda c: c.organization.key_limits(A),
    "AsyncOrganization.set_key_limits": lambda c: c.organization.set_key_limits(A, KeyLimits()),
    "AsyncOrganization.delete_key_limits": lambda c: c.organization.delete_key_limits(A),
    "AsyncOrganization.open_session": lambda c: c.organization.open_session("paper"),
    "AsyncOrganization.end_session": lambda c: c.organization.end_session(),
    "AsyncOrganization.validate_api_key": lambda c: c.organization.validate_api_key("k"),
    "AsyncOrganization.delete_current_user": lambda c: c.organization.delete_current_user(),
    "AsyncMarket.quotes": lambda c: c.market.quotes().page(),
    "AsyncMarket.quote": lambda c: c.market.quote(S),
    "AsyncMarket.post_quote": lambda c: c.market.post_quote(
        S, bid=1, ask=2, bid_size=1, ask_size=1
    ),
    "AsyncMarket.reference_prices": lambda c: c.market.reference_prices().page(),
    "AsyncMarket.reference_price": lambda c: c.market.reference_price(S),
    "AsyncMarket.post_reference_price": lambda c: c.market.post_reference_price(S, 1),
    "AsyncPlatform.liveness": lambda c: c.platform.liveness(),
    "AsyncPlatform.readiness": lambda c: c.platform.readiness(),
    "AsyncPlatform.metrics": lambda c: c.platform.metrics(),
    "AsyncPlatform.openapi": lambda c: c.platform.openapi(),
    "AsyncPlatform.docs_page": lambda c: c.platform.docs_page(),
    "AsyncPlatform.home_page": lambda c: c.platform.home_page(),
    "AsyncPlatform.outbox_health": lambda c: c.platform.outbox_health(),
    "AsyncPlatform.brokers": lambda c: c.platform.brokers().page(),
    "AsyncPlatform.issue_token": lambda c: c.platform.issue_token("i", "s"),
    "AsyncPlatform.provider_metadata": lambda c: c.platform.provider_metadata(),
    "AsyncPlatform.provider_keys": lambda c: c.platform.provider_keys(),
}
ASK_NOTHING = {f"AsyncTradingClient.{name}" for name in ("account", "aclose", "basket", "events")}
NAMES = {"from": "start", "to": "end"}  # Python has a keyword `from`
# What the console loads into a browser.
BROWSERS_ONLY = re.compile(r"(GET|POST) /(console.*|page\.css)")


@pytest.fixture(scope="module")
def described(tenants: Tenants) -> dict[str, Any]:
    """The endpoints, without those that only browsers need: the console, and the style of pages."""
    document: dict[str, Any] = tenants.client.get("/openapi.json").json()
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not BROWSERS_ONLY.fullmatch(f"{method.upper()} {path}")
    }


def endpoint_of(request: httpx.Request, endpoints: set[str]) -> str:
    """The most literal of those that fit: `/intents/stats` is no intent."""
    asked = f"{request.method} {request.url.path}"
    fits = [e for e in endpoints if re.fullmatch(re.sub(r"{\w+}", "[^/]+", e), asked)]
    assert fits, asked
    return min(fits, key=lambda endpoint: endpoint.count("{"))


def example_of(operation: dict[str, Any]) -> httpx.Response:
    status, answer = next((s, a) for s, a in operation["responses"].items() if s.startswith("2"))
    content = answer.get("content", {})
    if "application/json" in content:
        return httpx.Response(int(status), json=content["application/json"].get("example", {}))
    return httpx.Response(int(status), text="")


async def ask(name: str, described: dict[str, Any]) -> tuple[str, Any, Any]:
    """The endpoint that a method calls, the example that it got, and what it made of it."""
    endpoints = set(described)
    example = httpx.Response(404)

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal example
        example = example_of(described[endpoint_of(request, endpoints)])
        return example

    answers = CannedAnswers(answer)
    async with answers.client(max_retries=0) as client:
        try:
            made = await CALLS[name](client)
        except errors.TradingError:
            made = None
    return endpoint_of(answers.asked[0], endpoints), example, made


@pytest.mark.parametrize("name", CALLS)
async def test_a_method_reads_every_field_that_the_description_shows(
    name: str, described: dict[str, Any]
) -> None:
    _, example, made = await ask(name, described)
    if name in ("AsyncAccount.events", "AsyncTradingClient.find_account"):
        return
    if not isinstance(made, msgspec.Struct):
        assert example.status_code == 204 or isinstance(made, str | dict), (
            f"{name} cannot read {example.text}"
        )
        return
    assert missing(example.json(), msgspec.to_builtins(made)) == []


def missing(received: Any, read: Any, pointer: str = "") -> list[str]:
    if isinstance(received, dict) and isinstance(read, dict):
        absent = [f"{pointer}/{name}" for name in received if name not in read]
        return absent + [
            m
            for name, value in received.items()
            if name in read
            for m in missing(value, read[name], f"{pointer}/{name}")
        ]
    if isinstance(received, list) and isinstance(read, list | tuple):
        assert len(received) == len(read)
        return [
            m
            for one, other in zip(received, read, strict=True)
            for m in missing(one, other, pointer)
        ]
    return []


async def test_every_endpoint_of_the_description_has_a_method(described: dict[str, Any]) -> None:
    called = {(await ask(name, described))[0] for name in CALLS}
    assert described.keys() - called == set()


async def test_every_parameter_of_the_description_can_be_given(described: dict[str, Any]) -> None:
    """By a method's argument of that name; what pages and conditions are made of has its own
    names."""
    known = {"limit", "next_cursor", "if-match", "idempotency-key", "last-event-id"}
    for name in CALLS:
        endpoint, _, _ = await ask(name, described)
        if name == "AsyncTradingClient.find_account":
            continue  # looks through all accounts
        parameters = {
            NAMES.get(p["name"], p["name"])
            for p in described[endpoint]["parameters"]
            if p["in"] == "query"
        }
        assert parameters - known <= set(inspect.signature(method_of(name)).parameters), name


async def test_the_table_of_what_a_key_needs_has_every_method(described: dict[str, Any]) -> None:
    needed = defaultdict(set)
    for name in CALLS:
        endpoint, _, _ = await ask(name, described)
        rule = RULES[described[endpoint]["x-policy"]]
        if rule.public:
            needed["no key"].add(name.removeprefix("Async"))
        elif isinstance(rule.key, Permission):
            needed[str(rule.key)].add(name.removeprefix("Async"))
        else:
            needed["any key" if rule.key is Grant.ANY else "a token"].add(
                name.removeprefix("Async")
            )
    found = rows(
        section("docs/trading.md", "What a key needs"), r"`\w+:\w+`|any key|no key|a token"
    )
    documented = {row[0].strip("`"): set(re.findall(r"`(\w+\.\w+)`", row[2])) for row in found}
    assert documented == needed


def test_every_method_is_in_the_table_of_calls() -> None:
    kinds = (
        AsyncTradingClient,
        AsyncAccount,
        AsyncAccountControls,
        AsyncOrganization,
        AsyncMarket,
        AsyncPlatform,
    )
    public = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }
    assert public == CALLS.keys() | ASK_NOTHING


def method_of(name: str) -> Callable[..., Any]:
    kinds = (
        AsyncTradingClient,
        AsyncAccount,
        AsyncAccountControls,
        AsyncOrganization,
        AsyncMarket,
        AsyncPlatform,
    )
    kind, method = name.split(".")
    found: Callable[..., Any] = getattr(next(k for k in kinds if k.__name__ == kind), method)
    return found


def test_every_error_code_of_the_description_has_a_class(described: dict[str, Any]) -> None:
    answers = [
        answer for operation in described.values() for answer in operation["responses"].items()
    ]
    received = {
        code
        for status, answer in answers
        if status[0] != "2"
        for code in answer["description"].split(", ")
    }
    assert len(received) > 20
    assert received - errors.CLASS_OF_CODE.keys() == set()
