"""Today's result as the daily-loss limit counts it, and reasons that are read without opening the
order."""

import pytest

from tests.console.conftest import Screens
from tests.console.page_steps import bearer, choose, make_account, post_quote, send, symbol
from tests.tenants import Tenants

pytestmark = pytest.mark.slow


def test_today_is_what_the_daily_loss_limit_counts(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "to lose")
    name = symbol()
    limits = {"max_daily_loss": "5", "timezone": "America/New_York"}
    controls = f"/v1/controls/accounts/{account}"
    assert (
        tenants.client.put(
            f"{controls}/limits", json=limits, headers=tenants.callers["key_all"]
        ).status_code
        == 200
    )
    post_quote(tenants, name, "100")
    with screens(tenants.platform) as screen:
        page = screen.page
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        send(tenants, account, name, "10")
        screen.row(name).get_by_text("Filled").wait_for()
        post_quote(tenants, name, "99")
        page.get_by_text(
            "max_daily_loss: today's result is a loss of 10, and the limit is 5"
        ).first.wait_for()
        screen.view("Positions")
        today = (
            page.locator(".cards > div")
            .filter(has=page.get_by_text("Today", exact=True))
            .locator("dd")
        )
        today.get_by_text("\N{MINUS SIGN}10.00", exact=True).wait_for()  # nothing of it is realized
        caption = page.get_by_text("realized and unrealized since 00:00 America/New_York")
        assert (
            "A loss of 5.00 halts the account. The limits were changed today"
            in caption.inner_text()
        )
        page.get_by_role("columnheader", name="Realized today, UTC").wait_for()

        # What was made before the day began does not count: here it is found in the hours before,
        # not in the minutes.
        recorded = {
            "at": "2026-01-01T00:00:00Z",
            "equity": "1",
            "realized_pnl": "4",
            "unrealized_pnl": "-1.5",
        }
        page.route("**/equity?*", lambda route: route.fulfill(json={"data": []}))
        page.route(
            "**/equity?resolution=1h*", lambda route: route.fulfill(json={"data": [recorded]})
        )
        page.get_by_label("Equity of").select_option("week")
        today.get_by_text("\N{MINUS SIGN}12.50", exact=True).wait_for()


def test_a_reason_is_read_whole_in_the_blotter(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "to explain")
    name = symbol()
    other = symbol()
    with screens(tenants.platform) as screen:
        page = screen.page
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        send(tenants, account, name, "88888888")
        send(tenants, account, other, "1")
        reason = screen.row(name).locator(".c-reason")
        reason.get_by_text(
            "it costs more than the buying power (insufficient_buying_power)"
        ).wait_for()
        screen.row(other).get_by_text("Filled").wait_for()
        is_cut = (
            "cell => cell.scrollWidth > cell.clientWidth || cell.scrollHeight > cell.clientHeight"
        )
        assert page.viewport_size["width"] == 1280
        assert not reason.evaluate(is_cut)
        assert reason.get_attribute("title") == reason.inner_text()
        rows = {each: screen.row(each).bounding_box() for each in (name, other)}
        assert rows[name]["height"] == 2 * rows[other]["height"]
        assert rows[other]["y"] + rows[other]["height"] <= rows[name]["y"], (
            "the newest is above, and none is covered"
        )
        page.set_viewport_size({"width": 390, "height": 844})
        assert not reason.evaluate(is_cut)
