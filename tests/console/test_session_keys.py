"""A person who signs in trades by a session key: made for the tab, held in memory, ended by signing
out."""

import httpx
import pytest

from tests.console.conftest import LIMIT_SECONDS, Screens
from tests.console.page_steps import Held, bearer, choose, make_account, send, symbol
from tests.tenants import Tenants
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def test_a_signed_in_user_trades_by_a_session_key_until_signing_out(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "for people")
    mine = symbol()
    others = symbol()
    send(tenants, account, others, "2")
    used: list[str] = []
    with screens(tenants.platform) as screen:
        page = screen.page
        page.on(
            "request",
            lambda asked: (
                used.append(asked.headers.get("x-api-key", "")) if asked.method == "POST" else None
            ),
        )
        screen.sign_in(bearer(tenants, "admin"))
        choose(screen, account)
        page.locator("form.ticket").get_by_text("Uses the session key of acme-admin.").wait_for()
        screen.order(mine, "4")
        page.locator(".outcome").get_by_text(f"Filled: Buy 4 {mine}").wait_for()
        assert page.locator(".chip").count() == 1, (
            "the key is the person's, and goes with the person"
        )
        screen.view("Log")
        screen.row(mine).get_by_text("you (acme-admin)").wait_for()
        screen.row(others).get_by_role("gridcell", name="all", exact=True).wait_for()
        secret = next(key for key in used if key.startswith("tip_paper_"))
        assert secret not in page.evaluate(
            "JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])"
        )
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key or user's token").wait_for()

        def has_ended() -> bool:
            page.evaluate("true")
            return (
                httpx.get(
                    f"{tenants.platform.url}/v1/caller", headers={"x-api-key": secret}
                ).status_code
                == 401
            )

        eventually(has_ended, LIMIT_SECONDS)
        screen.sign_in(bearer(tenants, "member"))
        choose(screen, account)
        page.get_by_text("Orders need an API key").wait_for()
        screen.view("Log")
        assert "you" not in screen.row(mine).inner_text(), "a member sees the key's id"
        page.reload()
        page.get_by_label("API key or user's token").wait_for()


def test_what_is_typed_while_the_session_key_is_made_stays(
    screens: Screens, tenants: Tenants
) -> None:
    account = make_account(tenants, "typed early")
    wanted = symbol()
    with screens(tenants.platform) as screen:
        made = Held(screen, "**/v1/api-keys/session")
        screen.sign_in(bearer(tenants, "admin"))
        choose(screen, account)
        made.wait()
        ticket = screen.page.locator("form.ticket")
        ticket.get_by_text("A session key is being made.").wait_for()
        ticket.get_by_label("Symbol").fill(wanted)
        listed = Held(screen, "**/v1/accounts?*")
        made.release()
        ticket.get_by_text("Uses the session key of acme-admin.").wait_for()
        ticket.get_by_label("Quantity").fill("3")
        listed.release()
        screen.wait_signed_in(1)
        assert ticket.get_by_label("Symbol").input_value() == wanted
        ticket.get_by_label("Quantity").press("Enter")
        screen.page.locator(".outcome").get_by_text(f"Filled: Buy 3 {wanted}").wait_for()
