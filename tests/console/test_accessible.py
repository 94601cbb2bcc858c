"""axe-core finds no serious violation in any view, in light and dark, on a desktop and on a
phone."""

from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import DESKTOP, PHONE, Screens
from tests.platform import Platform

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)

AXE = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def violations(page: Any) -> list[str]:
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("(rules) => axe.run(document, rules)", RULES)["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is missing; `make browser` installs it by npm"
)
@pytest.mark.parametrize(
    ("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_no_view_has_a_serious_violation(
    screens: Screens, platform: Platform, size: Any, scheme: str
) -> None:
    with screens(platform, size, scheme) as screen:
        screen.open()
        screen.page.get_by_role("button", name="Sign in").wait_for()
        found = {"sign in": violations(screen.page)}
        screen.sign_in_to_demo()
        screen.order("AXE", "1")
        screen.order("AXE", "1", "0.01")
        screen.row("AXE").first.wait_for()
        for view in ("Blotter", "Positions", "Controls", "Accounts", "Operator", "Log"):
            screen.view(view)
            found[view] = violations(screen.page)
        screen.view("Blotter")
        screen.row("AXE").first.click()
        screen.page.get_by_role("dialog").get_by_role("region", name="Actions").wait_for()
        found["story"] = violations(screen.page)
    assert {view: wrong for view, wrong in found.items() if wrong} == {}
