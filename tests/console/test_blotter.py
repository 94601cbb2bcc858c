"""The blotter's tools, the keys, accounts and API keys that are made on the page, and a phone."""

import re

import pytest

from tests.console.conftest import PHONE, Screens
from tests.console.page_steps import bearer, choose, make_account, symbol
from tests.tenants import Tenants

pytestmark = pytest.mark.slow


def test_orders_are_filtered_and_cancelled_from_the_blotter(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "to sweep")
    first = symbol()
    second = symbol()
    third = symbol()
    with screens(tenants.platform) as screen:
        page = screen.page
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        for name in (first, second, third):
            screen.order(name, "5", "0.01")
            screen.row(name).get_by_text("New", exact=True).wait_for()
        page.get_by_text("3 orders").wait_for()
        assert re.search(r"\d\d:\d\d:\d\d", screen.row(first).inner_text()), (
            "the time beside the age"
        )

        screen.row(first).get_by_text("Cancel", exact=True).click()
        screen.row(first).get_by_text("Cancelled").wait_for()
        page.locator("footer.notice").get_by_text(f"Cancel of Buy 5 {first}").wait_for()
        assert page.get_by_role("dialog").count() == 0, "a cancel opens no story"

        page.get_by_label("Filter").fill(second)
        page.get_by_text("1 of 3 orders").wait_for()
        screen.view("Positions")
        screen.view("Blotter")
        page.get_by_text("1 of 3 orders").wait_for()
        assert page.get_by_label("Filter").input_value() == second
        page.locator(".grid.blotter").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Delete")
        screen.row(second).get_by_text("Cancelled").wait_for()

        page.get_by_label("Filter").fill("")
        screen.order(second, "4", "0.01")
        page.get_by_text("4 orders").wait_for()
        page.get_by_role("button", name="Cancel all").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("2 orders of to sweep are open").wait_for()
        dialog.get_by_role("button", name="Cancel every order").click()
        dialog.get_by_text("2 cancels are on their way").wait_for()
        page.keyboard.press("Escape")
        screen.row(third).get_by_text("Cancelled").wait_for()


def test_keys_lead_from_view_to_view_and_a_phone_shows_the_ticket_first(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "by keys")
    with screens(tenants.platform) as screen:
        page = screen.page
        dialog = page.get_by_role("dialog")
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        page.locator("#main").focus()
        page.keyboard.press("?")
        dialog.get_by_text("cancel the selected order").wait_for()
        page.keyboard.press("Escape")
        screen.view("Log")
        page.locator("#main").focus()
        page.keyboard.press("n")
        screen.wait_view("Blotter")
        page.keyboard.type("n?/")
        assert page.locator("#ticket-symbol").input_value() == "n?/", (
            "letters in a field are no keys"
        )

        colour = (
            "getComputedStyle(document.querySelector('form.ticket "
            "button[type=submit]')).backgroundColor"
        )
        buys = page.evaluate(colour)
        page.locator("form.ticket").get_by_text("Sell", exact=True).click()
        assert page.evaluate(colour) != buys

        page.set_viewport_size(PHONE)
        assert page.locator("header.top").bounding_box()["height"] < 50, "one line"
        tops = [
            page.locator(selector).bounding_box()["y"]
            for selector in (".ticket-panel", ".grid.blotter")
        ]
        assert tops[0] < tops[1], "the ticket comes first"
        assert page.get_by_role("button", name="Sign out").is_hidden()
        page.get_by_role("button", name="Credentials").click()
        page.get_by_role("button", name="Sign out").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_account_its_credential_and_a_key_are_made_on_the_page(
    screens: Screens, tenants: Tenants
) -> None:
    name = symbol()
    with screens(tenants.platform) as screen:
        page = screen.page
        make_account(tenants, "some account")
        screen.sign_in(bearer(tenants, "admin"))
        screen.view("Accounts")
        form = page.locator("form.account")
        form.get_by_label("Name").fill(name)
        form.get_by_label("Broker").select_option("remote")
        form.get_by_role("button", name="Add an account").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("none is stored").wait_for()
        for field in ("Api key id", "Api secret"):
            dialog.get_by_label(field).fill("secret")
        dialog.get_by_role("button", name="Store the credential").click()
        dialog.get_by_text("Stored. A worker connects with it.").wait_for()
        page.keyboard.press("Escape")
        screen.row(name).get_by_text(re.compile("Disconnected|Connecting")).wait_for()

        key = page.locator("form.key")
        assert key.get_by_label("intent:edit").is_hidden()
        key.get_by_label("Name").fill(name)
        key.get_by_label("Permissions").select_option("as chosen below")
        key.get_by_label("intent:read").check()
        key.get_by_label("Expires").fill("2099-01-31")
        key.get_by_role("button", name="Make a key").click()
        page.locator("code.secret").wait_for()
        made = tenants.client.get(
            "/v1/api-keys?limit=100", headers=tenants.callers["admin"]
        ).json()["data"]
        (found,) = (each for each in made if each["name"] == name)
        assert (found["permissions"], found["expires_at"]) == (
            ["intent:read"],
            "2099-01-31T00:00:00.000000Z",
        )

        budget = page.get_by_label(f"Budget of {name}")
        budget.click()
        page.get_by_text(f"{name} has used no budget: it has none.").wait_for()
        path = f"/v1/api-keys/{found['id']}/limits"
        tenants.client.put(
            path, json={"max_daily_notional": "500"}, headers=tenants.callers["admin"]
        )
        budget.click()
        page.get_by_text(f"{name} has used 0 of 500 today.").wait_for()
