"""The platform goes away and comes back: the page says so, resumes by cursor, and shows nothing
twice."""

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import Screen, Screens
from tests.free_port import free_port
from tests.platform import serving

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)


def test_a_killed_platform_is_shown_and_resumed_without_a_gap(screens: Screens, warm: Path) -> None:
    first, second, third = (f"D{uuid.uuid4().hex[:7].upper()}" for _ in range(3))
    port = str(free_port())
    asked: list[tuple[str, str]] = []
    with serving(warm, HTTP_PORT=port) as platform, screens(platform) as screen:
        screen.page.on(
            "request",
            lambda request: asked.append((request.url, request.headers.get("last-event-id", ""))),
        )
        screen.sign_in_to_demo()
        screen.order(first)
        screen.row(first).get_by_text("Filled").wait_for()
        assert "Up to date" in screen.page.locator(".connection").inner_text()
        platform.process.send_signal(signal.SIGKILL)
        platform.process.wait(20)
        screen.page.locator(".connection.lost").wait_for()
        assert "Disconnected since" in screen.page.locator(".connection").inner_text()
        stripes = "getComputedStyle(document.querySelector('.figures')).backgroundImage"
        assert "gradient" in screen.page.evaluate(stripes), "figures from before are marked"
        asked.clear()
        with serving(warm, HTTP_PORT=port) as again:
            screen.wait_live()
            assert "none" in screen.page.evaluate(stripes)
            assert any(cursor for url, cursor in asked if "/events?" in url), (
                "it resumes after the last event"
            )
            assert not any("/orders?" in url for url, _ in asked), "what it has is not read again"
            headers = {"x-api-key": json.loads((warm / "demo.json").read_text())["api_key"]}
            account = again.client.get("/v1/accounts", headers=headers).json()["data"][0]["id"]
            spec = {"Market": {"quantity": "1"}}
            body = {
                "command": {
                    "type": "CREATE",
                    "payload": {"symbol": second, "order_side": "BUY", "spec": spec},
                }
            }
            assert (
                again.client.post(
                    f"/v1/accounts/{account}/intents", headers=headers, json=body
                ).status_code
                == 202
            )
            screen.row(second).get_by_text("Filled").wait_for()
            screen.order(third)
            screen.row(third).get_by_text("Filled").wait_for()
            assert [screen.row(name).count() for name in (first, second, third)] == [1, 1, 1]


def test_lists_that_cannot_be_read_are_read_again(screen: Screen) -> None:
    failures: list[str] = []

    def fail_twice(route: Any) -> None:
        if len(failures) < 2:
            failures.append(route.request.url)
            route.fulfill(
                status=503, content_type="application/problem+json", body='{"code": "unavailable"}'
            )
        else:
            route.continue_()

    screen.page.route("**/orders?*", fail_twice)
    screen.sign_in_to_demo()
    assert len(failures) == 2
