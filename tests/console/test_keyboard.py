"""A trader's five minutes without a mouse."""

import uuid
from typing import Any

import pytest

from tests.console.conftest import Screen, Screens
from tests.console.page_steps import make_account
from tests.tenants import Tenants

pytestmark = pytest.mark.slow

MAX_TABS = 80


class Keyboard:
    """Reaches an element with Tab only, as a person does who sees the focus."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.page = screen.page

    def focused(self) -> tuple[str, str]:
        """The element with the focus and its name, as a screen reader reads it."""
        kind, name = self.page.evaluate(
            """() => {
                const at = document.activeElement;
                const label = at.labels?.[0]?.textContent ?? at.getAttribute("aria-label")
                    ?? at.textContent ?? "";
                return [at.tagName, label.trim()];
            }"""
        )
        return kind, name

    def go(self, name: str, kind: str = "") -> None:
        for _ in range(MAX_TABS):
            at = self.focused()
            if at[1] == name and kind in ("", at[0]):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab never reaches {name!r}; the last was {self.focused()!r}")

    def choose(self, name: str, text: str) -> None:
        """By arrows: what is typed into a list is forgotten if the machine is slow between two
        letters."""
        self.go(name, "SELECT")
        self.press("Home")
        chosen = "() => document.activeElement.selectedOptions?.[0]?.textContent.trim()"
        for _ in range(self.page.evaluate("document.activeElement.options.length")):
            if self.page.evaluate(chosen) == text:
                return
            self.press("ArrowDown")
            self.go(name, "SELECT")
        raise AssertionError(f"no arrow reaches {text!r}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, name: str, text: str) -> None:
        self.go(name, "INPUT")
        self.press("Control+a")
        self.page.keyboard.type(text)

    def send(self) -> None:
        """The answer moves the focus to the quantity, and may come after the first events of the
        order."""
        self.press("Enter")
        self.page.locator("form.ticket .outcome:not(:empty)").wait_for()


def test_a_trader_works_by_keyboard_alone(screens: Screens, tenants: Tenants) -> None:
    """Signs in, buys, sees it filled, places a limit, replaces it, cancels it, sets a window,
    halts, resumes."""
    make_account(tenants, "aaa keyboard")  # the first of the list by no rule: it is chosen below
    filled, resting = (f"K{uuid.uuid4().hex[:7].upper()}" for _ in range(2))
    with screens(tenants.platform) as screen:
        keys = Keyboard(screen)
        page = screen.page
        screen.open()
        page.get_by_label("API key or user's token").wait_for()
        page.keyboard.type(tenants.callers["key_all"]["x-api-key"])  # the form has the focus
        keys.press("Enter")
        page.get_by_role("button", name="Sign out").wait_for()
        keys.choose("Account", "paper · aaa keyboard")
        screen.wait_live()

        keys.type("Symbol", filled)
        keys.type("Quantity", "3")
        keys.send()
        screen.row(filled).get_by_text("Filled").wait_for()

        keys.press("Escape")
        keys.type("Symbol", resting)
        keys.go("Order type")
        keys.press("ArrowDown")
        keys.type("Quantity", "5")
        keys.type("Limit price", "0.01")
        keys.send()
        screen.row(resting).get_by_text("New", exact=True).wait_for()

        keys.go("Orders")
        keys.press("Home", "Enter")
        story = page.get_by_role("dialog")
        story.get_by_text(f"Buy 5 {resting}").wait_for()
        keys.type("New total quantity", "8")
        keys.press("Enter")
        story.get_by_text(f"Buy 8 {resting}").wait_for()
        keys.go("Cancel this order")
        keys.press("Enter")
        story.locator("dd").get_by_text("Cancelled").wait_for()
        keys.press("Escape")
        screen.row(resting).get_by_text("Cancelled").wait_for()

        keys.press("Alt+3")
        screen.wait_view("Controls")
        set_window_and_halt(keys, page, filled)


def set_window_and_halt(keys: Keyboard, page: Any, symbol: str) -> None:
    keys.type("Symbol", symbol)
    keys.press("Enter")
    dialog = page.get_by_role("dialog")
    # Tab passes over the fields while their values are being read.
    dialog.locator("button:enabled", has_text="Set the window").wait_for()
    keys.type("Trading from", "09:30:00")
    keys.type("Until", "16:00:00")
    keys.press("Enter")
    dialog.get_by_text("Saved, version 1.").wait_for()
    keys.press("Escape")
    page.get_by_text("09:30:00 to 16:00:00 UTC").wait_for()

    keys.press("Alt+3")
    keys.type("Reason", "done for today")
    keys.press("Enter")
    page.get_by_text("HALTED: Done").wait_for()
    keys.go("Resume account aaa keyboard")
    keys.press("Enter")
    page.get_by_text("Not halted. The last halt was resumed").wait_for()
