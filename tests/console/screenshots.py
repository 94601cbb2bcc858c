"""Takes the pictures of the console for `make screenshots`: every view, light and dark, on a
desktop and a phone."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from tests.console.conftest import DESKTOP, PHONE, Screen, open_browser
from tests.console.demo_trading import live_account, submit_some, trade
from tests.platform import Platform, serving

VIEWS = ("Blotter", "Positions", "Controls", "Accounts", "Operator", "Log")
SIZES = {"desktop": DESKTOP, "phone": PHONE}
SETTLE_MILLIS = 2_500  # for two readings of what is read every two seconds
CHART_MILLIS = 8_000
COLOURS = 256


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        serving(Path(data)) as platform,
        open_browser() as browser,
    ):
        trade(platform)
        for size, viewport in SIZES.items():
            for scheme in ("light", "dark"):
                picture(
                    browser=browser,
                    platform=platform,
                    viewport=viewport,
                    scheme=scheme,
                    folder=folder,
                    suffix=f"{size}-{scheme}",
                )
        key = live_account(platform)
        with tab(browser, platform, DESKTOP, "light") as screen:
            screen.sign_in(key)
            screen.page.locator("#ticket-symbol").fill("AAPL")
            keep(screen, folder / "live-desktop-light.png")


@contextmanager
def tab(browser: Any, platform: Platform, viewport: Any, scheme: str) -> Iterator[Screen]:
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    yield Screen(context.new_page(), platform)
    context.close()


def picture(
    browser: Any, platform: Platform, viewport: Any, scheme: str, folder: Path, suffix: str
) -> None:
    with tab(browser, platform, viewport, scheme) as screen:
        screen.open()
        screen.page.get_by_role("button", name="Sign in").wait_for()
        keep(screen, folder / f"signin-{suffix}.png")
        screen.sign_in_to_demo()
        for view in VIEWS:
            screen.view(view)
            if view == "Blotter":
                screen.page.locator("#ticket-symbol").fill("AAPL")
                screen.page.locator("#ticket-quantity").fill("25")
            if view == "Operator":
                submit_some(platform)
                screen.page.wait_for_timeout(CHART_MILLIS)
            keep(screen, folder / f"{view.lower()}-{suffix}.png")
        screen.view("Blotter")
        screen.page.locator("#blotter-filter").fill("MSFT")
        screen.row("MSFT").first.click()
        screen.page.get_by_role("region", name="Actions").wait_for()
        keep(screen, folder / f"story-{suffix}.png")


def keep(screen: Screen, file: Path) -> None:
    screen.page.wait_for_timeout(SETTLE_MILLIS)
    screen.page.evaluate("window.scrollTo(0, 0)")
    screen.page.screenshot(path=file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
