"""Numbers are shown whole, at every size of window: text gives way to them."""

from typing import Any

import pytest

from tests.console.conftest import DESKTOP, PHONE, Screen, Screens
from tests.console.page_steps import bearer, choose, make_account, symbol
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "laptop": {"width": 1280, "height": 720},
    "desktop": {"width": 1440, "height": 900},
    "large": {"width": 1920, "height": 1080},
    "phone": PHONE,
}
QUANTITIES = ("1", "1.2345678", "100000000")
# Cells whose text is wider than they are, but for those that give way.
CUT = """
() => [...document.querySelectorAll(".grid .cell")]
    .filter((cell) => cell.offsetParent !== null && cell.closest(".list"))
    .filter((cell) => !/c-(reason|reference|who|hash|why|name|switch|window)/.test(cell.className))
    .filter((cell) => cell.scrollWidth > cell.clientWidth)
    .map((cell) => `${cell.className}: ${cell.textContent}`)
"""
DRAW = """
async () => {
    const { LineChart, Samples } = await import("/console/chart.js");
    const { showAmount } = await import("/console/amounts.js");
    const chart = new LineChart("Equity", (value) => showAmount(value.toFixed(2)));
    document.querySelector("main").append(chart.element);
    const samples = new Samples("Equity");
    [1000007.5, -100000007.25].forEach((value, index) => samples.add(index * 1000, value));
    chart.draw([samples]);
}
"""
OUTSIDE = """
() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
    const frame = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text")]
        .filter((text) => text.getBoundingClientRect().right > frame.right + 0.5)
        .map((text) => text.textContent);
})
"""


@pytest.mark.parametrize("size", SIZES)
def test_no_number_of_a_list_is_cut(screens: Screens, tenants: Tenants, size: str) -> None:
    account = make_account(tenants, f"numbers {size}")
    with screens(tenants.platform, SIZES[size]) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        for quantity in QUANTITIES:
            name = symbol()
            screen.order(name, quantity, "0.01")
            screen.row(name).first.wait_for()
        shows_whole(screen, "100,000,000")
        screen.view("Log")
        screen.row("100,000,000" if size != "phone" else "Create").first.wait_for()
        assert screen.page.evaluate(CUT) == []


def test_no_number_of_positions_or_a_chart_is_cut(screens: Screens, tenants: Tenants) -> None:
    account = make_account(tenants, "held numbers")
    with screens(tenants.platform, DESKTOP) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        for quantity in ("1", "1.2345678", "123456"):
            name = symbol()
            screen.order(name, quantity)
            screen.row(name).first.wait_for()
        screen.view("Positions")
        shows_whole(screen, "1.2345678")
        screen.page.evaluate(DRAW)
        screen.page.get_by_text("\u2212100,000,007.25", exact=True).first.wait_for()
        assert screen.page.evaluate(OUTSIDE) == []


def shows_whole(screen: Screen, text: str) -> None:
    screen.page.locator(".grid .cell.number").filter(has_text=text).first.wait_for()
    assert screen.page.evaluate(CUT) == []


@pytest.mark.parametrize("size", ["laptop", "desktop"])
def test_the_tickets_verdict_and_button_stay_in_sight(
    screens: Screens, tenants: Tenants, size: str
) -> None:
    account = make_account(tenants, f"ticket {size}")
    with screens(tenants.platform, SIZES[size]) as screen:
        screen.sign_in(bearer(tenants, "key_all"))
        choose(screen, account)
        ticket = screen.page.locator("form.ticket")
        ticket.get_by_text("Exits, or a stop beside it").click()
        ticket.get_by_label("Order type").select_option("StopLimit")
        for field in ("Limit price", "Stop price"):
            ticket.get_by_label(field, exact=True).fill("1")
        ticket.get_by_label("Symbol").fill(symbol())
        ticket.get_by_label("Quantity").fill("2")
        for shown in (ticket.locator(".verdict p"), ticket.get_by_role("button", name="Buy")):
            shown.first.wait_for()
            box = shown.first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= SIZES[size]["height"]
