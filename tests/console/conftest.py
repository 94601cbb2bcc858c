"""Chromium for the console's tests, by its headless shell if there is one, which takes a third less
of the processor. Without either, or without playwright, they are skipped and say how to get both."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.platform import Platform

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOW = (
    "`make browser` installs playwright, and `apt-get install chromium-headless-shell` the browser"
)
# As root there is no sandbox; and the browser shall look for nothing outside this machine.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
DESKTOP: Any = {"width": 1280, "height": 800}
PHONE: Any = {"width": 390, "height": 844}
LIMIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """For each file anew: playwright's event loop runs as long as it does, and other files' tests
    have their own."""
    with open_browser() as browser:
        yield browser


@contextmanager
def open_browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api", reason=f"playwright is missing; {HOW}")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip(f"chromium is missing; {HOW}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Screen:
    """A tab with the console in it, and what went wrong there."""

    page: "Page"
    platform: Platform
    faults: list[str] = field(default_factory=list)

    def open(self, address: str = "/console") -> None:
        self.page.goto(f"{self.platform.url}{address}")

    def sign_in(self, *credentials: str) -> None:
        """Each pasted into the form; then the first account's stream is live."""
        self.open()
        for index, credential in enumerate(credentials):
            if index:
                self.page.get_by_role("button", name="Add a credential").click()
            self.page.get_by_label("API key or user's token").last.fill(credential)
            self.page.get_by_role("button", name="Sign in").last.click()
            self.wait_signed_in(index + 1)
        self.wait_live()

    def sign_in_to_demo(self) -> None:
        done = self.platform.run("console", "--url", self.platform.url)
        self.page.goto(done.stdout.strip())
        self.wait_signed_in(2)
        self.wait_live()

    def wait_signed_in(self, credentials: int) -> None:
        """Until the view offers what so many credentials may do: each that is added opens it
        anew."""
        # A phone hides them.
        self.page.locator(".chip").nth(credentials - 1).wait_for(state="attached")
        self.page.locator("main:not([aria-busy])").wait_for()

    def wait_live(self) -> None:
        self.page.locator(".connection.live").wait_for()

    def view(self, title: str) -> None:
        self.page.get_by_role("link", name=title, exact=True).click()
        self.wait_view(title)

    def wait_view(self, title: str) -> None:
        """The view before it has fields of the same names."""
        self.page.get_by_role("heading", name=title, exact=True, level=1).wait_for()

    def order(self, symbol: str, quantity: str = "10", limit: str = "") -> None:
        ticket = self.page.locator("form.ticket")
        ticket.get_by_label("Symbol").fill(symbol)
        ticket.get_by_label("Order type").select_option("Limit" if limit else "Market")
        ticket.get_by_label("Quantity").fill(quantity)
        if limit:
            ticket.get_by_label("Limit price").fill(limit)
        ticket.get_by_label("Quantity").press("Enter")
        ticket.locator(".outcome").get_by_text(symbol).wait_for()

    def row(self, text: str) -> Any:
        return self.page.get_by_role("row").filter(has_text=text)


Screens = Callable[..., Any]


@pytest.fixture
def screens(browser: "Browser") -> Iterator[Screens]:
    """Opens tabs. A policy violation or an uncaught error in any of them fails the test."""
    opened: list[Screen] = []

    @contextmanager
    def open_screen(
        platform: Platform, viewport: Any = None, scheme: Any = "light"
    ) -> Iterator[Screen]:
        context = browser.new_context(viewport=viewport or DESKTOP, color_scheme=scheme)
        context.set_default_timeout(LIMIT_SECONDS * 1000)
        screen = Screen(context.new_page(), platform)
        opened.append(screen)
        screen.page.on("pageerror", lambda error: screen.faults.append(str(error)))
        screen.page.on("console", lambda message: _note(screen, message.text))
        screen.page.on("dialog", lambda dialog: screen.faults.append(f"dialog: {dialog.message}"))
        yield screen
        context.close()

    yield open_screen
    assert [fault for screen in opened for fault in screen.faults] == []


def _note(screen: Screen, text: str) -> None:
    if "Content Security Policy" in text or "TrustedHTML" in text or "TrustedScript" in text:
        screen.faults.append(text)


@pytest.fixture
def screen(screens: Screens, platform: Platform) -> Iterator[Screen]:
    with screens(platform) as opened:
        yield opened
