"""Orders that protect: trailing stops, exits and pairs in the ticket, groups in the blotter and the
story."""

import json
from typing import Any

import pytest

from tests.console.conftest import Screen, Screens
from tests.console.page_steps import bearer, choose, make_account, post_quote, symbol
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

EXITS = {"order_sides": ["BUY", "SELL_SHORT"], "order_kinds": ["Market", "Limit"]}
PAIR = {"order_sides": ["BUY", "SELL", "SELL_SHORT"], "order_kinds": ["Limit"]}
TIMES = {"times_in_force": ["DAY", "GOOD_TILL_CANCEL"], "one_time_in_force": False}
ENTRY, PROFIT, LOSS, OTHER = (f"01a1dd48-2166-7b29-aa0c-4afddaa7c20{digit}" for digit in "6789")


def offer_links(screen: Screen) -> None:
    """The paper broker offers exits and pairs."""

    def answer(route: Any) -> None:
        answered = route.fetch().json()
        for broker in answered["data"]:
            broker |= (
                {"exits": EXITS | TIMES, "one_cancels_other": PAIR | TIMES}
                if broker["name"] == "paper"
                else {}
            )
        route.fulfill(json=answered)

    screen.page.route("**/v1/brokers?*", answer)


def test_a_trailing_stop_is_placed_shown_and_replaced(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "to trail")
    name = symbol()
    with screens(tenants.platform) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        screen.order(name, "10")
        screen.row(name).get_by_text("Filled").wait_for()
        ticket = screen.page.locator("form.ticket")
        ticket.get_by_text("Sell", exact=True).click()
        ticket.get_by_label("Order type").select_option("TrailingStop")
        ticket.get_by_label("Trail").fill("30%")
        ticket.get_by_label("Quantity").fill("4")
        ticket.get_by_label("Quantity").press("Enter")
        row = screen.row("trail 30%")
        row.get_by_text("New", exact=True).wait_for()
        row.click()
        dialog = screen.page.get_by_role("dialog")
        assert dialog.get_by_label("Trail").input_value() == "30%"
        dialog.get_by_label("Trail").fill("25.5%")
        dialog.get_by_role("button", name="Replace").click()
        dialog.get_by_text("trail 25.5%").wait_for()


def test_exits_are_prices_or_distances_and_are_sent_with_the_entry(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "to protect")
    name = symbol()
    sent = list[Any]()
    with screens(tenants.platform) as screen:
        page = screen.page
        offer_links(screen)
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        ticket = page.locator("form.ticket")

        def accept(route: Any) -> None:
            sent.append(json.loads(route.request.post_data)["command"]["payload"])
            pointer = "/command/payload/exits/take_profit/limit_price"
            wrong = {
                "errors": [{"pointer": pointer, "detail": "must be above the limit"}],
                "detail": "refused",
            }
            if len(sent) == 1:
                route.fulfill(status=422, json=wrong, content_type="application/problem+json")
            else:
                route.fulfill(status=202, json={"intent_id": ENTRY, "seq": 1})

        page.route("**/intents", accept)
        ticket.get_by_label("Symbol").fill(name)
        ticket.get_by_label("Order type").select_option("Limit")
        ticket.get_by_label("Limit price").fill("99.9")
        ticket.get_by_text("Exits, or a stop beside it").click()
        ticket.get_by_label("Take profit").fill("5%")
        ticket.get_by_label("Stop loss").fill("95")
        ticket.get_by_label("Quantity").fill("10")
        ticket.get_by_text("With take profit at 104.90, stop loss at 95.").wait_for()
        ticket.get_by_label("Quantity").press("Enter")
        ticket.locator("#ticket-take_profit[aria-invalid]").wait_for()
        assert not ticket.locator("#ticket-limit_price[aria-invalid]").count()
        ticket.get_by_label("Quantity").press("Enter")
        ticket.locator(".outcome").get_by_text(name).wait_for()
        assert sent[1]["exits"] == {
            "take_profit": {"limit_price": "104.90"},
            "stop_loss": {"stop_price": "95"},
        }
        assert ticket.get_by_label("Take profit").input_value() == "", (
            "the next order has no exits of this one"
        )

        ticket.get_by_text("Sell", exact=True).click()
        assert ticket.get_by_label("Take profit").is_hidden(), "an exit has no exits"
        ticket.get_by_label("Or stop at").fill("2 %")
        ticket.get_by_label("Quantity").fill("5")
        ticket.get_by_text("or stop at 97.90").wait_for()
        ticket.get_by_label("Quantity").press("Enter")
        ticket.locator(".outcome").get_by_text("Sell 5").wait_for()
        assert (sent[2]["one_cancels_other"], "exits" in sent[2]) == (
            {"stop_price": "97.90"},
            False,
        )
        ticket.get_by_label("Order type").select_option("Stop")
        assert ticket.get_by_label("Or stop at").is_hidden()


def order(order_id: str, name: str, **fields: Any) -> dict[str, Any]:
    at = "2026-11-17T10:00:00.000000Z"
    common = {
        "order_state": "OPEN",
        "order_status": "NEW",
        "order_type": "LIMIT",
        "order_side": "SELL",
        "version": 1,
    }
    amounts = {"quantity": "10", "filled_quantity": "0", "limit_price": None, "stop_price": None}
    rest = {"reason": None, "detail": None, "active": True, "leg": None, "parent_intent_id": None}
    times = {"created_at": at, "received_at": at, "updated_at": at}
    return (
        {"order_id": order_id, "intent_id": order_id, "symbol": name}
        | common
        | amounts
        | rest
        | times
        | {"flags": []}
        | fields
    )


def test_a_group_stays_together_and_an_unprotected_entry_is_loud(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "to group")
    name = symbol()
    entry = order(
        ENTRY,
        name,
        order_side="BUY",
        order_status="FILLED",
        order_state="CLOSED",
        filled_quantity="10",
    )
    link = {"parent_intent_id": ENTRY}
    orders = [
        order(
            LOSS, name, leg="stop_loss", order_type="STOP", stop_price="90", active=False, **link
        ),
        order(OTHER, "A" + name, created_at="2026-11-17T09:00:00.000000Z"),
        order(PROFIT, name, leg="take_profit", limit_price="120", **link),
        entry | {"flags": ["unprotected"]},
    ]
    position = {"symbol": name, "quantity": "10", "received_at": "2026-11-17T10:00:00.000000Z"}
    with screens(tenants.platform) as screen:
        page = screen.page
        screen.sign_in(bearer(tenants, "key_all"))
        page.route(
            f"**/{account}/orders?*",
            lambda route: route.fulfill(json={"data": orders, "next_cursor": None}),
        )
        page.route(
            f"**/{account}/positions?*",
            lambda route: route.fulfill(json={"data": [position], "next_cursor": None}),
        )
        choose(screen, account)
        screen.row("UNPROTECTED: more is held than its exits and other orders close").wait_for()
        page.locator(".connection").get_by_text("Unprotected").wait_for()
        page.locator(".trouble").get_by_text(f"UNPROTECTED: {name}").wait_for()

        def shown() -> list[str]:
            rows = page.locator(".grid.blotter .body > .row:visible").all()
            rows_by_height = sorted(
                (row.bounding_box()["y"], row.locator(".c-type").inner_text()) for row in rows
            )
            return [kind for _, kind in rows_by_height]

        assert shown() in (
            ["Limit", "Take profit", "Stop loss", "Limit"],
            ["Limit", "Stop loss", "Take profit", "Limit"],
        )
        page.get_by_role("columnheader", name="Side").get_by_role("button").click()
        page.locator("[aria-sort=ascending]").wait_for()
        assert set(shown()[1:3]) == {"Take profit", "Stop loss"}, (
            "below their entry, which is a Buy"
        )
        page.get_by_text("works as soon as its entry fills").wait_for()
        screen.row("Take profit").click()
        group = page.get_by_role("dialog").get_by_role("region", name="Linked orders")
        assert group.locator("tbody tr").count() == 3
        group.get_by_text("Take profit (this one)").wait_for()


def test_a_bracket_goes_from_the_ticket_to_its_end_on_the_screen(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "to bracket")
    name = symbol()
    post_quote(tenants, name, "100")
    with screens(tenants.platform) as screen:
        page = screen.page
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        ticket = page.locator("form.ticket")
        ticket.get_by_label("Symbol").fill(name)
        ticket.get_by_label("Order type").select_option("Limit")
        ticket.get_by_label("Limit price").fill("99")
        ticket.get_by_text("Exits, or a stop beside it").click()
        ticket.get_by_label("Take profit").fill("10%")
        ticket.get_by_label("Stop loss").fill("90")
        ticket.get_by_label("Quantity").fill("10")
        ticket.get_by_text("With take profit at 108.90, stop loss at 90.").wait_for()
        ticket.get_by_text("Controls and limits let this pass.").wait_for()
        ticket.get_by_label("Quantity").press("Enter")
        profit = screen.row("Take profit")
        loss = screen.row("Stop loss")
        profit.get_by_text("works as soon as its entry fills").wait_for()
        post_quote(tenants, name, "99")
        screen.row("Limit").get_by_text("Filled").wait_for()
        profit.get_by_text("works as soon as its entry fills").wait_for(state="hidden")
        post_quote(tenants, name, "109")
        profit.get_by_text("Filled").wait_for()
        loss.get_by_text("the other order of its pair was filled (pair_filled)").wait_for()
        loss.click()
        group = page.get_by_role("dialog").get_by_role("region", name="Linked orders")
        group.get_by_text("Stop loss (this one)").wait_for()
        assert group.locator("tbody tr").count() == 3
