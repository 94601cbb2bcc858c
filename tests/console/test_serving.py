"""The endpoints of the console: its files with their policy, what a credential may call, demo
links."""

import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.conftest import Urls
from tests.console.conftest import Screen
from tests.platform import Platform, serving
from tests.raw_http import RawHttp
from tests.tenants import Tenants

pytest_plugins = ("tests.started_dirs",)

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "trading_intents" / "console" / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}


def policy_of(answer: httpx.Response) -> dict[str, str]:
    return dict(
        rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";")
    )


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/console", "/console/main.js", "/console/console.css"]
)
def test_every_page_and_file_has_the_policy(platform: Platform, path: str) -> None:
    answer = platform.client.get(path)
    assert answer.status_code == 200
    assert policy_of(answer) == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


@pytest.mark.slow
def test_a_site_that_opened_the_console_has_no_hold_on_it(screen: Screen) -> None:
    """Else it could show its own page in that tab later, and ask for a key there."""
    # Another origin, and a page without our headers.
    site = screen.platform.url.replace("127.0.0.1", "localhost")
    screen.page.goto(f"{site}/openapi.json")
    with screen.page.context.expect_page() as opened:
        screen.page.evaluate(
            "address => { window.held = window.open(address); }", f"{screen.platform.url}/console"
        )
    opened.value.get_by_role("button", name="Sign in").wait_for()
    assert screen.page.evaluate("window.held.closed") is True
    assert opened.value.evaluate("window.open_client") is None


def test_the_browser_gets_the_files_of_the_repository_as_they_are(platform: Platform) -> None:
    for file in STATIC.iterdir():
        answer = platform.client.get(f"/console/{file.name}")
        assert (answer.status_code, answer.content) == (200, file.read_bytes()), file.name
    assert platform.client.get("/console").content == (STATIC / "index.html").read_bytes()
    assert (
        platform.client.get("/console/main.js").headers["content-type"]
        == "text/javascript; charset=utf-8"
    )


@pytest.mark.parametrize("path", ["/console", "/console/main.js", "/docs", "/page.css"])
def test_a_file_that_the_browser_has_is_not_sent_again(platform: Platform, path: str) -> None:
    first = platform.client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = platform.client.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-length" not in again.headers
    assert again.headers["etag"] == first.headers["etag"]
    assert platform.client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fhttp.py", "%2e%2e", "demo.py", ""])
def test_only_the_console_has_files_there(platform: Platform, name: str) -> None:
    assert platform.client.get(f"/console/{name}").status_code == 404


def test_the_first_page_leads_to_the_console(platform: Platform) -> None:
    assert "<a href=/console>" in platform.client.get("/").text


def test_the_console_knows_no_markup() -> None:
    """No framework, nothing from elsewhere, and no way for a text to become markup or code."""
    for script in SCRIPTS:
        text = script.read_text()
        forbidden = (
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new "
            r"Function|createPolicy|https?://"
        )
        found = re.findall(forbidden, text.replace("http://www.w3.org/2000/svg", ""))
        assert found == [], script.name
        for imported in re.findall(r'^import .* from "(.*)";$', text, re.MULTILINE):
            assert (STATIC / imported).resolve().parent == STATIC


@pytest.mark.slow
def test_a_wheel_has_the_console(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flit_core.wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"trading_intents/console/static/{file.name}" for file in STATIC.iterdir()} <= names


# fmt: off
CALLERS = {
    "key_all": {"brokers", "halt_account", "paper_quotes", "read_accounts", "read_caller", "read_controls", "read_halts", "read_intents", "read_key_limits", "read_paper_quotes", "stream", "submit_intent", "write_accounts", "write_controls", "write_credentials", "write_reference_prices"},  # noqa: E501 - a table
    "key_none": {"brokers", "read_caller", "read_key_limits"},
    "read_only": {"brokers", "delete_current_user", "end_session", "organization_by_provider", "read_accounts", "read_caller", "read_controls", "read_halts", "read_intents", "read_paper_quotes", "stream"},  # noqa: E501 - a table
    "no_org": {"brokers", "organization_by_provider", "read_caller"},
    "service_unnamed": {"brokers", "organization_by_provider", "outbox_health", "read_caller"},
}
# fmt: on


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_can_read_what_it_may_call(tenants: Tenants, caller: str) -> None:
    answered = tenants.client.get("/v1/caller", headers=tenants.callers[caller]).json()
    assert set(answered["policies"]) == CALLERS[caller]


def test_a_caller_can_read_who_it_is(tenants: Tenants) -> None:
    def answered(caller: str) -> dict[str, object]:
        answer = tenants.client.get("/v1/caller", headers=tenants.callers[caller])
        assert answer.status_code == 200
        shown: dict[str, object] = answer.json()
        return shown

    acme = tenants.organization("org_acme")["id"]
    key = answered("key_live")
    admin = answered("admin")
    service = answered("service_unnamed")
    assert (key["principal_type"], key["environment"], key["organization_id"]) == (
        "API_KEY",
        "live",
        acme,
    )
    assert (key["organization_name"], key["expires_at"]) == ("Acme", None)
    assert (admin["principal_type"], admin["principal_id"], admin["role"]) == (
        "USER",
        "acme-admin",
        "admin",
    )
    assert re.fullmatch(r"20\d\d-.*Z", str(admin["expires_at"]))
    assert (service["principal_type"], service["principal_id"]) == ("SERVICE", "reader")


def test_without_the_entitlement_controls_are_not_among_what_a_caller_may_call(
    tenants: Tenants,
) -> None:
    policies = tenants.client.get("/v1/caller", headers=tenants.callers["other_admin"]).json()[
        "policies"
    ]
    assert "halt_organization" in policies
    assert not {"read_controls", "write_controls", "write_organization_control"} & set(policies)


def code_of(platform: Platform) -> str:
    done = platform.run("console", "--url", platform.url)
    assert done.returncode == 0, done.stderr
    address, _, code = done.stdout.strip().partition("#code=")
    assert address == f"{platform.url}/console"
    assert len(code) == 22  # 128 bits in base64
    return code


def exchange(platform: Platform, code: str, **headers: str) -> httpx.Response:
    own = {"origin": platform.url} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return platform.client.post("/console/session", json={"code": code}, headers=own)


def test_a_demo_link_gives_a_user_and_a_key_once(platform: Platform) -> None:
    code = code_of(platform)
    folder = Path(platform.environ["TRADING_INTENTS_DATA_DIR"]) / "console-links"
    assert not any(code in file.name or code in file.read_text() for file in folder.iterdir()), (
        "only its digest is kept"
    )
    answer = exchange(platform, code)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    session = answer.json()
    assert session["expires_in"] == 900
    user = platform.client.get(
        "/v1/caller", headers={"authorization": f"Bearer {session['access_token']}"}
    ).json()
    key = platform.client.get("/v1/caller", headers={"x-api-key": session["api_key"]}).json()
    assert (user["principal_id"], user["role"], key["environment"]) == ("demo", "admin", "paper")
    assert user["organization_id"] == key["organization_id"]
    again = exchange(platform, code)
    assert (again.status_code, again.json()["code"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    "moved_seconds", [-61, 3600], ids=["old", "made before the clock was set back"]
)
def test_a_demo_link_holds_for_a_minute(platform: Platform, moved_seconds: int) -> None:
    folder = Path(platform.environ["TRADING_INTENTS_DATA_DIR"]) / "console-links"
    code = code_of(platform)
    other = code_of(platform)
    for file in folder.iterdir():
        os.utime(file, (time.time() + moved_seconds,) * 2)
    assert exchange(platform, code).status_code == 401
    code_of(platform)  # making one removes those that nobody used
    assert all(abs(time.time() - file.stat().st_mtime) < 60 for file in folder.iterdir())
    assert exchange(platform, other).status_code == 401


def test_a_demo_link_is_used_once_by_many_at_once(platform: Platform) -> None:
    code = code_of(platform)
    tries = 20
    together = threading.Barrier(tries)

    def use() -> int:
        with RawHttp(platform.url, {"origin": platform.url}) as connection:
            together.wait()
            return connection.post("/console/session", {"code": code}).status_code

    with ThreadPoolExecutor(tries) as threads:
        answers = [threads.submit(use) for _ in range(tries)]
        assert sorted(answer.result() for answer in answers) == [200] + [401] * (tries - 1)


def test_a_demo_link_is_made_while_another_is_used(platform: Platform) -> None:
    vanished = Path(platform.environ["TRADING_INTENTS_DATA_DIR"]) / "console-links" / "vanished"
    code_of(platform)
    # As a file that is gone between the listing of the folder and the look at it.
    vanished.symlink_to("nowhere")
    assert exchange(platform, code_of(platform)).status_code == 200
    vanished.unlink()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"host": "console.example", "origin": "http://console.example"},
        {"host": "127.0.0.1.example", "origin": "http://127.0.0.1.example"},
        {"host": "127.0.0.1:1@console.example", "origin": "http://127.0.0.1:1@console.example"},
        {"host": "[::1", "origin": "http://[::1"},
        {"host": "[localhost]", "origin": "http://[localhost]"},
        {"x_forwarded_for": "10.0.0.1"},
        {"forwarded": "for=10.0.0.1"},
        {"x_real_ip": "10.0.0.1"},
        {"via": "1.1 proxy"},
        {"x_forwarded_host": "console.example"},
    ],
    ids=lambda headers: "-".join(headers) + str(next(iter(headers.values()))).replace("/", ""),
)
def test_a_demo_link_is_for_a_browser_on_this_machine(
    platform: Platform, headers: dict[str, str]
) -> None:
    code = code_of(platform)
    refused = exchange(platform, code, **headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert exchange(platform, code).status_code == 200, "a refused request does not use the code up"


def test_a_guessed_code_is_refused(platform: Platform) -> None:
    for guess in ("", "..", "../demo.json", "a" * 22, "\ud800" * 3):
        answer = platform.client.post(
            "/console/session",
            content=b'{"code": "%s"}' % guess.encode("unicode-escape"),
            headers={"origin": platform.url, "content-type": "application/json"},
        )
        assert answer.status_code in (400, 401), answer.text


def test_who_serves_others_has_no_demo_links(warm: Path) -> None:
    with serving(warm, HTTP_HOST="0.0.0.0") as platform:
        local = platform.url.replace("0.0.0.0", "127.0.0.1")
        answer = httpx.post(
            f"{local}/console/session", json={"code": "x"}, headers={"origin": local}, verify=False
        )
        assert answer.status_code == 405  # as for any path that has files only
        assert (
            httpx.get(f"{local}/console/config.json", verify=False).json()["has_demo_links"]
            is False
        )
        done = platform.run("console")
        assert done.returncode == 1
        assert "this machine alone" in done.stderr


def test_a_database_of_its_own_has_no_demo_links(urls: Urls, tmp_path: Path) -> None:
    database = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    with serving(tmp_path, **database) as platform:
        done = platform.run("console", "--url", platform.url)
        assert done.returncode == 1
        assert "sign in at /console" in done.stderr
        assert exchange(platform, "x" * 22).status_code == 405
