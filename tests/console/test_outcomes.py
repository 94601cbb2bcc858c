"""The console shows what became of an order, a broker that cannot be reached, and a halt."""

import pytest

from tests.console.conftest import Screens
from tests.console.page_steps import bearer, choose, make_account, send, symbol
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

VIEWS = ("Blotter", "Positions", "Controls", "Accounts", "Operator", "Log")


def test_the_ticket_follows_its_order_and_a_notice_shows_others(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "to follow")
    name = symbol()
    other = symbol()
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        ticket = screen.page.locator("form.ticket")
        notice = screen.page.locator("footer.notice[aria-live=polite]")
        outcome = ticket.locator(".outcome")

        screen.order(name, "99999999")
        outcome.get_by_text("Rejected: Buy 99,999,999").wait_for()
        assert (
            "because it costs more than the buying power (insufficient_buying_power)"
            in outcome.inner_text()
        )
        notice.get_by_text(f"Rejected: Buy 99,999,999 {name}").wait_for()
        row = screen.row("99,999,999")
        row.get_by_text("it costs more than the buying power").wait_for()

        ticket.get_by_label("Quantity").fill("99999999")
        assert outcome.inner_text() == "", "another is begun"
        ticket.locator(".refuses").get_by_text("more than the buying power of").wait_for()
        ticket.get_by_text("Controls and limits let this pass.").wait_for()
        ticket.get_by_label("Quantity").fill("10")
        ticket.get_by_text("buying power").wait_for()
        assert ticket.locator(".refuses").count() == 0

        ticket.get_by_text("Sell", exact=True).click()
        ticket.locator(".unknown").get_by_text(f"The account holds no {name} to sell").wait_for()
        ticket.get_by_label("Quantity").press("Enter")
        outcome.get_by_text(
            "because the account holds less than it sells (no_position_to_sell)"
        ).wait_for()
        ticket.get_by_text("Buy", exact=True).click()

        screen.order(name, "5", "0.01")
        outcome.get_by_text(f"Working: Buy 5 {name} at 0.01").wait_for()
        screen.page.get_by_role("row").filter(has_text="0.01").click()
        screen.page.get_by_role("button", name="Cancel this order").click()
        screen.page.get_by_role("dialog").locator("dd").get_by_text("Cancelled").wait_for()
        screen.page.keyboard.press("Escape")
        outcome.get_by_text(f"Cancelled: Buy 5 {name}").wait_for()
        screen.order(name, "7")
        outcome.get_by_text(f"Filled: Buy 7 {name} at ").wait_for()

        screen.view("Positions")
        send(tenants, account, other, "3")
        notice.get_by_text(f"Filled: Buy 3 {other} at ").wait_for()
        send(tenants, account, other, "88888888")
        notice.get_by_text("(insufficient_buying_power)").wait_for()


def test_a_broker_that_is_away_and_a_halt_are_seen_in_every_view(
    screens: Screens, tenants: Tenants
) -> None:
    headers = tenants.callers["key_all"]
    body = {"name": "far away", "broker": "remote", "environment": "paper"}
    account = tenants.client.post("/v1/accounts", json=body, headers=headers).json()["id"]
    name = symbol()
    trading = make_account(tenants, "not halted")
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        state = screen.page.locator(".connection")
        trouble = screen.page.locator(".trouble")
        ticket = screen.page.locator("form.ticket")
        state.get_by_text("No credential").wait_for()
        trouble.get_by_text("the broker wants a credential, and none is stored").wait_for()

        secrets = {"secrets": {"api_key_id": "i", "api_secret": "s"}}
        assert (
            tenants.client.post(
                f"/v1/accounts/{account}/credentials", json=secrets, headers=headers
            ).status_code
            == 201
        )
        state.get_by_text("Broker away").wait_for()
        ticket.get_by_label("Symbol").fill(name)
        ticket.get_by_text("The broker is not connected: an order is accepted, waits").wait_for()
        screen.order(name, "1")
        ticket.locator(".outcome").get_by_text(
            f"Accepted: Buy 1 {name}. It waits: the broker is not conn"
        ).wait_for()

        halt = {"reason": "the model is wrong", "cancel_orders": False}
        halts = f"/v1/controls/accounts/{account}"
        assert tenants.client.post(f"{halts}/halt", json=halt, headers=headers).status_code == 202
        for view in VIEWS:
            screen.view(view)
            state.get_by_text("Halted").wait_for()
            assert "HALTED since" in trouble.inner_text()
            assert "the model is wrong" in trouble.inner_text()
        screen.page.get_by_label("Account", exact=True).select_option(trading)
        state.get_by_text("Up to date").wait_for()
        assert trouble.is_hidden()
        choose(screen, account)
        # As a page sees it that is opened later.
        trouble.get_by_text("the model is wrong").wait_for()
        assert tenants.client.post(f"{halts}/resume", headers=headers).status_code == 200
        state.get_by_text("Broker away").wait_for()
