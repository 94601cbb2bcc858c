"""Every view in Chromium, as a trader and an operator use them."""

import re
from functools import partial
from typing import Any

import httpx
import pytest

from tests.console.conftest import Screen, Screens
from tests.console.page_steps import bearer, make_account, symbol
from tests.platform import Platform
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)


def test_an_order_goes_from_the_ticket_to_filled_on_the_screen(screen: Screen) -> None:
    screen.sign_in_to_demo()
    name = symbol()
    screen.order(name)
    row = screen.row(name)
    row.get_by_text("Filled").wait_for()
    row.click()
    story = screen.page.get_by_role("dialog")
    story.get_by_role("region", name="Trades").wait_for()
    assert "you (" in story.get_by_role("region", name="Actions").inner_text(), (
        "an admin sees the key's name"
    )
    story.get_by_role("button", name="Close").click()


def test_a_limit_order_is_replaced_and_cancelled_in_its_story(screen: Screen) -> None:
    screen.sign_in_to_demo()
    name = symbol()
    screen.order(name, "5", "0.01")
    row = screen.row(name)
    row.get_by_text("New", exact=True).wait_for()
    row.click()
    story = screen.page.get_by_role("dialog")
    story.get_by_label("New total quantity").fill("7")
    story.get_by_role("button", name="Replace").click()
    story.get_by_text("the replace is on its way").wait_for()
    story.get_by_text(f"Buy 7 {name}").wait_for()
    story.get_by_role("button", name="Cancel this order").click()
    story.locator("dd").get_by_text("Cancelled").wait_for()
    screen.page.keyboard.press("Escape")
    row.get_by_text("Cancelled").wait_for()


def test_the_ticket_says_what_controls_would_answer_and_where_a_field_is_wrong(
    screen: Screen,
) -> None:
    screen.sign_in_to_demo()
    name = symbol()
    ticket = screen.page.locator("form.ticket")
    ticket.get_by_label("Symbol").fill(name)
    ticket.get_by_text("Controls let this symbol trade.").wait_for()
    ticket.get_by_label("Quantity").fill("ten")
    ticket.get_by_label("Quantity").press("Enter")
    ticket.locator("#ticket-quantity[aria-invalid]").wait_for()
    assert ticket.locator("#ticket-quantity-error").inner_text()
    ticket.get_by_label("Quantity").press("Escape")
    assert ticket.get_by_label("Symbol").input_value() == ""


def is_range(resolution: str, begin: str, request: Any) -> bool:
    """Whether it asks for spans up to the running one, from such a time on."""
    found = re.search(r"equity\?resolution=(\w+)&from=([^&]+)$", request.url)
    return found is not None and found[1] == resolution and begin in found[2]


def test_positions_show_what_was_bought_and_money(screen: Screen) -> None:
    screen.sign_in_to_demo()
    name = symbol()
    screen.order(name, "12")
    screen.row(name).get_by_text("Filled").wait_for()
    screen.view("Positions")
    row = screen.row(name)
    row.get_by_role("gridcell", name="12", exact=True).wait_for()
    screen.page.get_by_text("realized and unrealized since 00:00 UTC").wait_for()
    recorded = {
        "at": "2026-01-01T00:00:00Z",
        "equity": "1000",
        "realized_pnl": "5",
        "unrealized_pnl": "-2",
    }
    screen.page.route("**/equity?*", lambda route: route.fulfill(json={"data": [recorded]}))
    for choice in ("month", "week", "today"):
        resolution, hour = ("1m", "T00%3A00%3A00.000Z") if choice == "today" else ("1h", "")
        with screen.page.expect_request(partial(is_range, resolution, hour)):
            screen.page.get_by_label("Equity of").select_option(choice)
    screen.page.get_by_role("img", name="Equity: Equity 1,000").wait_for()
    screen.page.get_by_role("img", name="Realized 5, Unrealized").wait_for()
    screen.page.get_by_label("Equity of").select_option("week")
    screen.view("Blotter")
    screen.view("Positions")
    assert screen.page.get_by_label("Equity of").input_value() == "week", (
        "a choice is kept between views"
    )
    row.click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_text(f"A market order sells 12 {name}").wait_for()
    dialog.get_by_role("button", name=f"Close {name}").click()
    dialog.get_by_text("a market order closes it").wait_for()
    screen.page.keyboard.press("Escape")
    row.wait_for(state="detached")


def test_a_switch_set_on_the_page_refuses_the_next_order(screen: Screen) -> None:
    screen.sign_in_to_demo()
    name = symbol()
    screen.view("Controls")
    screen.page.get_by_label("Symbol", exact=True).fill(name)
    screen.page.get_by_role("button", name="Open its controls").click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_label("Stop trading here").check()
    dialog.get_by_label("Reason").fill("earnings tonight")
    dialog.get_by_role("button", name="Set the switch").click()
    dialog.get_by_text("Saved, version 1.").wait_for()
    screen.page.keyboard.press("Escape")
    screen.row(name).get_by_text("stopped: earnings tonight").wait_for()
    screen.view("Blotter")
    ticket = screen.page.locator("form.ticket")
    ticket.get_by_label("Symbol").fill(name)
    ticket.get_by_text("Refused: ").wait_for()
    ticket.get_by_label("Quantity").fill("1")
    ticket.get_by_label("Quantity").press("Enter")
    ticket.locator(".failed").get_by_text("symbol_manually_disabled").wait_for()


def test_a_limit_set_on_the_page_is_shown_in_the_ticket(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "to limit")
    with screens(tenants.platform) as screen:
        screen.sign_in(tenants.callers["key_all"]["x-api-key"])
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.view("Controls")
        form = screen.page.locator("form.limits-account")
        form.get_by_label("Max order quantity").fill("100")
        form.get_by_role("button", name="Set the limits").click()
        form.get_by_text("Saved, version 1.").wait_for()
        screen.view("Blotter")
        ticket = screen.page.locator("form.ticket")
        ticket.get_by_label("Symbol").fill(symbol())
        ticket.get_by_label("Quantity").fill("101")
        ticket.locator(".refuses").get_by_text("101").wait_for()
        ticket.get_by_label("Quantity").fill("100")
        ticket.get_by_text("Controls and limits let this pass.").wait_for()


def test_a_live_account_is_unmistakable(screens: Screens, tenants: Tenants) -> None:
    body = {"name": "real", "broker": "remote", "environment": "live"}
    assert (
        tenants.client.post(
            "/v1/accounts", json=body, headers=tenants.callers["key_live"]
        ).status_code
        == 201
    )
    make_account(tenants, "practice")
    border = "getComputedStyle(document.body).borderTopWidth"
    with screens(tenants.platform) as screen:
        screen.sign_in(tenants.callers["key_live"]["x-api-key"])
        screen.page.get_by_text("LIVE · real money").wait_for()
        screen.page.get_by_role("button", name="Send LIVE order").wait_for()
        assert screen.page.evaluate(border) == "6px"
        assert screen.page.title().startswith("LIVE")
    with screens(tenants.platform) as screen:
        screen.sign_in(tenants.callers["key_all"]["x-api-key"])
        screen.page.get_by_text("PAPER · simulated").wait_for()
        assert screen.page.evaluate(border) == "0px"
        assert screen.page.get_by_role("button", name="LIVE").count() == 0


def test_a_halt_is_started_followed_and_resumed(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "to halt")
    with screens(tenants.platform) as screen:
        screen.sign_in(tenants.callers["key_all"]["x-api-key"])
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.wait_live()
        name = symbol()
        screen.order(name, "5", "0.01")
        screen.row(name).get_by_text("New", exact=True).wait_for()
        screen.view("Controls")
        form = screen.page.locator("form.halt-account")
        form.get_by_label("Reason").fill("the model is wrong")
        form.get_by_role("button", name="Halt account to halt").click()
        screen.page.get_by_text("HALTED: ").wait_for()
        screen.page.get_by_text("Orders: 1 of 1 done").wait_for()
        assert screen.page.locator("form.halt-organization button").is_disabled(), "a key may not"
        screen.view("Blotter")
        screen.row(name).get_by_text("Cancelled").wait_for()
        screen.view("Controls")
        screen.page.get_by_role("button", name="Resume account to halt").click()
        screen.page.get_by_text("Not halted. The last halt was resumed").wait_for()


def test_accounts_say_how_they_are_connected_and_keys_are_made(screen: Screen) -> None:
    screen.sign_in_to_demo()
    screen.view("Accounts")
    row = screen.row("sim")
    row.get_by_text("Connected").wait_for()
    row.get_by_text("orders are sent").wait_for()
    row.click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_text("none stored").wait_for()
    dialog.get_by_role("button", name="Close").click()
    form = screen.page.locator("form.key")
    form.get_by_label("Name").fill("from the console")
    form.get_by_role("button", name="Make a key").click()
    made = screen.page.locator("code.secret").inner_text()
    answered = httpx.get(
        f"{screen.platform.url}/v1/caller", headers={"x-api-key": made}, verify=False
    )
    assert answered.json()["environment"] == "paper"


def test_the_operator_sees_metrics_and_the_outbox(screens: Screens, tenants: Tenants) -> None:
    with screens(tenants.platform) as screen:
        screen.open("/console#/operator")
        screen.page.get_by_label("API key or user's token").fill(bearer(tenants, "internal_admin"))
        screen.page.get_by_role("button", name="Sign in").click()
        screen.page.get_by_text("Streams").wait_for()
        screen.page.get_by_role("img", name="Requests and events a second: requests/s").wait_for()
        screen.page.get_by_role("region", name="Rows by status and event").wait_for()


def test_the_log_shows_actions_newest_first_and_checks_their_hashes(screen: Screen) -> None:
    screen.sign_in_to_demo()
    first = symbol()
    second = symbol()
    screen.order(first)
    screen.order(second)
    screen.view("Log")
    screen.row(first).get_by_text("holds").wait_for()
    texts = screen.page.locator(".grid.log .body .c-symbol").all_inner_texts()
    assert texts.index(second) < texts.index(first)


@pytest.mark.parametrize("caller", ["read_only", "key_none"])
def test_what_a_credential_may_not_call_is_not_offered(
    screens: Screens, tenants: Tenants, caller: str
) -> None:
    make_account(tenants, f"for {caller}")
    with screens(tenants.platform) as screen:
        screen.open()
        screen.page.get_by_label("API key or user's token").fill(bearer(tenants, caller))
        screen.page.get_by_role("button", name="Sign in").click()
        if caller == "key_none":
            screen.page.get_by_text("These credentials may read no trading account").wait_for()
            return
        screen.wait_live()
        assert screen.page.locator("form.ticket button[type=submit]").is_disabled()
        screen.page.get_by_text("Orders need an API key").wait_for()
        screen.view("Controls")
        for form in ("halt-account", "halt-organization", "switch-account", "limits-account"):
            assert screen.page.locator(f"form.{form} button[type=submit]").is_disabled(), form


def test_a_credential_that_does_not_verify_is_refused_and_never_kept(
    screen: Screen, platform: Platform
) -> None:
    screen.open()
    screen.page.get_by_label("API key or user's token").fill("tip_paper_wrong")
    screen.page.get_by_role("button", name="Sign in").click()
    screen.page.get_by_text("does not know this credential").wait_for()
    screen.sign_in_to_demo()
    stored = screen.page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    assert stored == '[{},{},""]'
    assert "code=" not in screen.page.url
    screen.page.reload()
    screen.page.get_by_role("button", name="Sign in").wait_for()
