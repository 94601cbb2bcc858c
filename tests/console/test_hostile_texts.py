"""200 hostile texts through every field that people or brokers write: none runs, none breaks the
page."""

import itertools
import json
import uuid
from typing import Any

import pytest

from tests.console.conftest import Screens
from tests.console.page_steps import make_account
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

TAGS = (
    "<script>{0}</script>",
    "<img src=x onerror={0}>",
    "<svg onload={0}>",
    "<iframe srcdoc='<script>{0}</script>'>",
    "<a href=javascript:{0}>x</a>",
    "<math><mtext></table><img src=x onerror={0}>",
    "<style>*{{display:none}}</style>",
    "<style>*{{color:red}}</style>{0}",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;//evil.example'>{0}",
    "</main></body><b>{0}",
)
CALLS = ("alert(1)", "window.hit=1", "document.title='hit'", "fetch('//evil.example')")
WRAPS = ("{0}", "'{0}", '"{0}', "`${{{0}}}`", "--><!--{0}", "]]>{0}")
PLAIN = (
    "__proto__",
    "constructor",
    "toString",
    "javascript:alert(1)",
    "{{7*7}}",
    "${7*7}",
    "\ue000gnp.exe",
    "A" * 60,
)
MADE = dict.fromkeys(w.format(t.format(c)) for w, t, c in itertools.product(WRAPS, TAGS, CALLS))
TEXTS = [*list(MADE)[:192], *PLAIN]
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def fits(text: str, size: int) -> str:
    return text[:size]


@pytest.fixture(scope="module")
def account(tenants: Tenants) -> tuple[str, int]:
    """With every text in a field: references, reasons, names, labels. And how many orders it
    has."""
    account_id = make_account(tenants, fits(TEXTS[0], 128))
    headers = tenants.callers["key_all"]

    def send(method: str, path: str, body: Any) -> Any:
        answer = tenants.client.request(method, path, json=body, headers=headers)
        assert answer.status_code < 500, answer.text
        return answer

    orders = 0
    for index, text in enumerate(TEXTS):
        symbol = f"X{index}"
        spec = {"Limit": {"quantity": "1", "limit_price": "0.01"}}
        payload = {"symbol": symbol, "order_side": "BUY", "spec": spec}
        command = {
            "command": {"type": "CREATE", "payload": payload},
            "client_reference_id": fits(text, 64),
        }
        orders += send("POST", f"/v1/accounts/{account_id}/intents", command).status_code == 202
        switch = {"manually_disabled": True, "manual_reason": fits(text, 500)}
        send("PUT", f"/v1/controls/accounts/{account_id}/symbols/{symbol}", switch)
    send(
        "PUT",
        f"/v1/controls/accounts/{account_id}",
        {"manually_disabled": True, "manual_reason": TEXTS[1]},
    )
    send(
        "POST",
        f"/v1/controls/accounts/{account_id}/halt",
        {"reason": TEXTS[2], "cancel_orders": False},
    )
    send("PATCH", f"/v1/accounts/{account_id}", {"external_account_id": fits(TEXTS[3], 128)})
    return account_id, orders


def test_no_text_runs_or_breaks_the_page(
    screens: Screens, tenants: Tenants, account: tuple[str, int]
) -> None:
    assert len(TEXTS) == len(set(TEXTS)) == 200
    account_id, orders = account
    admin = tenants.callers["admin"]
    for text in TEXTS[4:8]:
        body = {"name": fits(text, 128), "environment": "paper", "permissions": []}
        tenants.client.post("/v1/api-keys", json=body, headers=admin)
    with screens(tenants.platform) as screen:
        page = screen.page
        left: list[str] = []
        page.on(
            "request",
            lambda request: left.append(request.url) if "evil.example" in request.url else None,
        )
        screen.sign_in(
            tenants.callers["key_all"]["x-api-key"], admin["authorization"].removeprefix("Bearer ")
        )
        page.get_by_label("Account", exact=True).select_option(account_id)
        screen.wait_live()
        seen = set[str]()
        page.locator(f".grid.blotter[aria-rowcount='{orders + 1}']").focus()
        page.keyboard.press("Home")
        for _ in range(orders):
            page.wait_for_function(TWO_FRAMES)
            seen |= set(page.locator(".grid.blotter .body .c-reference").all_text_contents())
            if page.locator(f".grid.blotter .active[aria-rowindex='{orders + 1}']").count():
                break
            page.keyboard.press("PageDown")
        recorded = tenants.client.get(
            f"/v1/accounts/{account_id}/orders?limit=100", headers=tenants.callers["key_all"]
        )
        kept = {order["client_reference_id"] for order in recorded.json()["data"]}
        assert len(kept) > 50
        assert kept <= seen, "each is shown as the text that it is"
        screen.row("X5").first.click()
        page.keyboard.press("Escape")
        for view in ("Positions", "Controls", "Accounts", "Operator", "Log", "Blotter"):
            screen.view(view)
        screen.view("Controls")
        page.get_by_text(TEXTS[2]).first.wait_for()
        for text in TEXTS[:20]:
            page.locator("form.ticket, form.symbol").first.wait_for()
            page.get_by_label("Symbol", exact=True).fill(text[:32])
        assert page.evaluate("window.hit") is None
        assert "hit" not in page.title()
        assert left == []
        assert (
            page.locator("main script, main img, main iframe, main base, main style").count() == 0
        )


def test_a_brokers_texts_are_shown_as_texts(screens: Screens, tenants: Tenants) -> None:
    """A proxy plays the stream's events, as no broker here can be made to report such texts."""
    account = make_account(tenants, "reported by a broker")
    order = {
        "order_id": str(uuid.uuid4()),
        "account_id": account,
        "order_state": "ORDER_STATE_REJECTED",
    }
    order |= {
        "order_status": "ORDER_STATUS_REJECTED",
        "order_side": "ORDER_SIDE_BUY",
        "order_type": "ORDER_TYPE_LIMIT",
    }

    def story(route: Any) -> None:
        lines = ["event: status\ndata: {}\n\n"]
        for index, text in enumerate(TEXTS):
            answered: dict[str, Any] = order | {
                "order_id": str(uuid.UUID(int=index)),
                "version": "1",
                "received_at": "2026-01-01T00:00:00Z",
            }
            answered |= {
                "symbol": text[:32],
                "reason": text,
                "quantity": "1",
                "filled_quantity": "0",
                "flags": [text],
            }
            answered |= {"external_order_id": text, "client_reference_id": text}
            lines.append(
                f"event: broker_order\nid: c{index}\ndata: "
                f"{json.dumps({'broker_order': answered})}\n\n"
            )
        route.fulfill(status=200, content_type="text/event-stream", body="".join(lines))

    with screens(tenants.platform) as screen:
        screen.page.route("**/events?*", story)
        screen.open()
        screen.page.get_by_label("API key or user's token").fill(
            tenants.callers["key_all"]["x-api-key"]
        )
        screen.page.get_by_role("button", name="Sign in").click()
        screen.page.get_by_label("Account", exact=True).select_option(account)
        screen.page.locator(".grid.blotter .body .row").first.wait_for()
        screen.page.get_by_text("200 orders").wait_for()
        screen.page.locator(".grid.blotter .body .row").first.click()
        screen.page.get_by_role("dialog").wait_for()
        assert screen.page.evaluate("window.hit") is None
        assert (
            screen.page.locator(
                "main script, main img, main iframe, dialog img, dialog script"
            ).count()
            == 0
        )
