"""The console when answers are late, lost or refused."""

import json
import uuid
from typing import Any

import pytest

from tests.console.conftest import LIMIT_SECONDS, Screen, Screens
from tests.console.page_steps import TWO_FRAMES, Held, bearer, make_account, symbol
from tests.tenants import Tenants
from tests.waiting import eventually

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)

PROBLEM = {
    "status": 503,
    "content_type": "application/problem+json",
    "body": '{"detail": "the disk is full"}',
}


def add_credential(screen: Screen, credential: str) -> None:
    screen.page.get_by_role("button", name="Add a credential").click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_label("API key or user's token").fill(credential)
    dialog.get_by_role("button", name="Sign in").click()
    dialog.wait_for(state="detached")


def test_signing_out_while_accounts_are_read_stays_signed_out(
    screens: Screens, tenants: Tenants
) -> None:
    make_account(tenants, "left behind")
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        held = Held(screen, "**/v1/accounts?*")
        add_credential(screen, bearer(tenants, "admin"))
        held.wait()
        screen.page.get_by_role("button", name="Sign out").click()
        held.release()
        assert screen.page.locator("header.top").is_hidden()
        assert screen.page.get_by_label("API key or user's token").is_visible()


def test_a_view_is_busy_until_it_offers_what_a_new_credential_may_do(
    screens: Screens, tenants: Tenants
) -> None:
    make_account(tenants, "seen by two")
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        held = Held(screen, "**/v1/accounts?*")
        add_credential(screen, bearer(tenants, "admin"))
        held.wait()
        screen.page.locator("main[aria-busy=true]").wait_for()
        held.release()
        screen.wait_signed_in(2)


def test_an_account_whose_stream_was_refused_stays_chosen(
    screens: Screens, tenants: Tenants
) -> None:
    make_account(tenants, "the first one")
    account = make_account(tenants, "refused for a while")
    with screens(tenants.platform) as screen:
        events = f"**/accounts/{account}/events?*"
        screen.page.route(events, lambda route: route.fulfill(**PROBLEM | {"status": 403}))
        screen.sign_in(bearer(tenants, "key_all"))
        picker = screen.page.get_by_label("Account", exact=True)
        assert picker.input_value() != account
        picker.select_option(account)
        screen.page.locator(".connection.refused").wait_for()
        screen.page.unroute(events)
        add_credential(screen, bearer(tenants, "admin"))
        screen.wait_live()
        assert picker.input_value() == account


def test_an_account_that_no_credential_reads_any_more_is_not_shown(
    screens: Screens, tenants: Tenants
) -> None:
    body = {"name": "real for a while", "broker": "remote", "environment": "live"}
    assert (
        tenants.client.post(
            "/v1/accounts", json=body, headers=tenants.callers["key_live"]
        ).status_code
        == 201
    )
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_live"))
        add_credential(screen, bearer(tenants, "key_none"))
        screen.page.get_by_role("button", name="Forget the live key").click()
        screen.page.get_by_text("These credentials may read no trading account").wait_for()
        screen.page.get_by_role("heading", name="Operator", level=1).wait_for()
        assert screen.page.locator(".grid.blotter").count() == 0
        assert screen.page.evaluate("document.body.dataset.environment") is None


def test_a_late_answer_leaves_the_next_order_as_it_is_typed(
    screens: Screens, tenants: Tenants
) -> None:
    """A price that goes on in the field for the quantity would be an order that nobody meant."""
    account = make_account(tenants, "typing ahead")
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.wait_live()
        ticket = screen.page.locator("form.ticket")
        fields = {
            name: ticket.get_by_label(name)
            for name in ("Symbol", "Order type", "Quantity", "Limit price")
        }
        fields["Symbol"].fill(symbol())
        fields["Quantity"].fill("10")
        held = Held(screen, "**/intents")
        fields["Quantity"].press("Enter")
        held.wait()
        fields["Order type"].select_option("Limit")
        fields["Quantity"].fill("3")
        fields["Limit price"].press_sequentially("18")
        held.release()
        ticket.locator(".outcome").get_by_text("Buy 10 ").wait_for()
        screen.page.keyboard.type("7.50")
        assert [fields[name].input_value() for name in ("Quantity", "Limit price")] == [
            "3",
            "187.50",
        ]


def test_an_order_without_an_answer_is_sent_again_under_its_key(
    screens: Screens, tenants: Tenants
) -> None:
    """The first attempt arrives, and no attempt is answered until the trader sends the same order
    again."""
    account = make_account(tenants, "unanswered")
    keys: list[str] = []

    def lose_answers(route: Any) -> None:
        if route.request.method != "POST":
            route.continue_()
            return
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.fetch()
        if len(keys) <= 4:
            route.abort()
        else:
            route.continue_()

    name = symbol()
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.wait_live()
        screen.page.route("**/intents", lose_answers)
        ticket = screen.page.locator("form.ticket")
        ticket.get_by_label("Symbol").fill(name)
        ticket.get_by_label("Quantity").fill("10")
        ticket.get_by_label("Quantity").press("Enter")
        ticket.get_by_text("no answer came").wait_for()
        screen.view("Positions")
        screen.view("Blotter")
        screen.order(name)
        screen.row(name).get_by_text("Filled").wait_for()
        assert len(keys) == 5
        assert len(set(keys)) == 1
        screen.order(name)
        assert len(set(keys)) == 2, "an answered order's key is not used again"
    found = tenants.client.get(f"/v1/accounts/{account}/orders", headers=tenants.callers["key_all"])
    assert len(found.json()["data"]) == 2


def test_a_late_verdict_of_a_cleared_ticket_is_not_shown(screen: Screen) -> None:
    screen.sign_in_to_demo()
    held = Held(screen, "**/controls/evaluate")
    ticket = screen.page.locator("form.ticket")
    ticket.get_by_label("Symbol").fill(symbol())
    held.wait()
    ticket.get_by_label("Symbol").press("Escape")
    held.release()
    assert ticket.locator(".verdict").inner_text() == ""


def test_the_log_has_no_hole_after_a_burst(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "bursts")
    headers = tenants.callers["key_all"]

    def send(count: int) -> None:
        spec = {"Limit": {"quantity": "1", "limit_price": "0.01"}}
        for _ in range(count):
            command = {
                "type": "CREATE",
                "payload": {"symbol": "BURST", "order_side": "BUY", "spec": spec},
            }
            answer = tenants.client.post(
                f"/v1/accounts/{account}/intents", json={"command": command}, headers=headers
            )
            assert answer.status_code == 202, answer.text

    send(3)
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.wait_live()
        screen.view("Log")
        screen.page.get_by_text("3 actions").wait_for()
        held = Held(screen, "**/intents?*")
        send(1)
        held.wait()
        send(220)
        held.release()
        screen.page.get_by_text("224 actions").wait_for()


def test_symbols_that_cannot_be_read_are_not_said_to_be_none(screen: Screen) -> None:
    screen.page.route("**/symbols?*", lambda route: route.fulfill(**PROBLEM))
    screen.sign_in_to_demo()
    screen.view("Controls")
    screen.page.get_by_text("The symbols cannot be read: the disk is full").wait_for()
    assert screen.page.get_by_text("No symbol has a switch or a window.").is_hidden()


def test_a_story_says_that_it_did_not_look_at_every_trade(screen: Screen) -> None:
    others = {"data": [{"intent_id": str(uuid.UUID(int=0))}] * 100, "next_cursor": "more"}
    screen.page.route("**/trades?*", lambda route: route.fulfill(json=others))
    screen.sign_in_to_demo()
    name = symbol()
    screen.order(name)
    screen.row(name).click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_text("only the first 1,000 were looked through").wait_for()
    dialog.get_by_role("button", name="Close").click()


def test_accounts_that_cannot_be_read_again_are_marked(screen: Screen) -> None:
    screen.sign_in_to_demo()
    screen.view("Accounts")
    screen.row("sim").wait_for()
    option = "document.querySelector('#account option')"
    screen.page.evaluate(f"{option}.isSame = true")
    with screen.page.expect_response("**/v1/accounts?*"):
        pass
    screen.page.wait_for_function(TWO_FRAMES)
    assert screen.page.evaluate(f"{option}.isSame"), "a reading does not close an open list"
    assert screen.page.locator(".figures.stale").count() == 0
    screen.page.route("**/v1/accounts?*", lambda route: route.fulfill(**PROBLEM))
    screen.page.locator(".figures.stale").get_by_text("sim").wait_for()


def test_a_new_keys_secret_stays_when_another_key_cannot_be_changed(screen: Screen) -> None:
    changed: list[Any] = []

    def fail_changes(route: Any) -> None:
        if route.request.method == "PATCH":
            changed.append(json.loads(route.request.post_data))
            route.fulfill(**PROBLEM)
        else:
            route.continue_()

    screen.page.route("**/v1/api-keys/*", fail_changes)
    screen.sign_in_to_demo()
    screen.view("Accounts")
    form = screen.page.locator("form.key")
    form.get_by_label("Name").fill(symbol())
    form.get_by_role("button", name="Make a key").click()
    secret = screen.page.locator("code.secret")
    secret.wait_for()
    screen.page.get_by_role("button", name="Disable ").first.click()
    screen.page.get_by_role("alert").get_by_text("the disk is full").wait_for()
    assert changed == [{"disabled": True}]
    assert secret.is_visible()


def test_a_stream_ends_with_the_credential_that_opened_it(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "read by two")
    opened: list[dict[str, str]] = []
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"), bearer(tenants, "admin"))
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.wait_live()
        screen.page.on(
            "request",
            lambda request: opened.append(request.headers) if "/events?" in request.url else None,
        )
        screen.page.get_by_role("button", name="Forget the paper key").click()
        screen.page.locator(".chip").first.get_by_text("admin").wait_for()
        eventually(lambda: bool(screen.page.evaluate("true") and opened), LIMIT_SECONDS)
        screen.wait_live()
        assert [headers.get("authorization", "") for headers in opened] == [
            f"Bearer {bearer(tenants, 'admin')}"
        ]
        assert screen.page.get_by_label("Account", exact=True).input_value() == account
