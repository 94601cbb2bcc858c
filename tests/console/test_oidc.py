"""Signing in at an external issuer: authorization code with PKCE, against `oidc-provider` from
npm."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.conftest import Databases
from tests.console.conftest import Screen, Screens
from tests.free_port import free_port
from tests.platform import Platform, serving

pytestmark = pytest.mark.slow

MODULE = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / "oidc-provider"
TOKEN_SECONDS = 65  # the console renews a minute before the end: within five seconds
PROGRAM = """
import { Provider } from %(module)s;
const resource = { scope: 'openid', audience: 'trading-intents', accessTokenFormat: 'jwt',
                   jwt: { sign: { alg: 'ES256' } } };
const provider = new Provider(%(issuer)s, {
  clients: [{ client_id: 'console', token_endpoint_auth_method: 'none',
              redirect_uris: [%(callback)s], response_types: ['code'],
              grant_types: ['authorization_code', 'refresh_token'],
              application_type: 'web', id_token_signed_response_alg: 'ES256' }],
  clientBasedCORS: () => true,
  issueRefreshToken: () => true,
  pkce: { required: () => true },
  ttl: { AccessToken: %(seconds)d, Grant: 3600, Session: 3600, Interaction: 3600, IdToken: 3600,
         RefreshToken: 3600 },
  features: { devInteractions: { enabled: true },
              resourceIndicators: { enabled: true, defaultResource: () => 'urn:trading-intents',
                                    useGrantedResource: () => true,
                                    getResourceServerInfo: () => resource } },
  findAccount: (context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: () => ({ organization: 'o1', role: 'admin' }),
  jwks: { keys: [%(jwk)s] },
});
provider.listen(%(port)d, '127.0.0.1', () => console.log('listening'));
"""


@contextlib.contextmanager
def running_issuer(folder: Path, callback: str) -> Iterator[str]:
    if shutil.which("node") is None or not MODULE.exists():
        pytest.skip(
            "oidc-provider is missing; `make browser` installs it by npm (apt-get install "
            "nodejs npm)"
        )
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    jwk = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True)
    answered = {
        "module": json.dumps(str(MODULE / "lib" / "index.js")),
        "issuer": json.dumps(issuer),
        "callback": json.dumps(callback),
        "seconds": TOKEN_SECONDS,
        "jwk": json.dumps(jwk | {"kid": "npm", "alg": "ES256", "use": "sig"}),
        "port": port,
    }
    program = folder / "issuer.mjs"
    program.write_text(PROGRAM % answered)
    with subprocess.Popen(
        ["node", str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as node:
        assert node.stdout is not None
        try:
            assert any("listening" in line for line in node.stdout), "oidc-provider did not start"
            yield issuer
        finally:
            node.kill()


@pytest.fixture
def platform(databases: Databases, tmp_path: Path) -> Iterator[Platform]:
    """With a database that is made without an event loop: the browser has one in this thread."""
    port = free_port()
    with (
        databases() as urls,
        running_issuer(tmp_path, f"http://127.0.0.1:{port}/console") as issuer,
    ):
        settings = {
            "DATABASE_URL": urls.login.reveal(),
            "DATABASE_OWNER_URL": urls.owner.reveal(),
            "HTTP_PORT": str(port),
            "IDENTITY_PROVIDER_NAME": "acme-id",
            "IDENTITY_ISSUER": issuer,
            "IDENTITY_JWKS_URL": f"{issuer}/jwks",
            "CONSOLE_OIDC_CLIENT_ID": "console",
        }
        with serving(tmp_path / "data", **settings) as platform:
            account = {"name": "sim", "broker": "paper", "environment": "paper"}
            platform.apply(
                {"organizations": [{"external_id": "o1", "name": "One", "accounts": [account]}]}
            )
            yield platform


def sign_in_at_issuer(screen: Screen) -> None:
    page = screen.page
    screen.open()
    page.get_by_role("button", name="Sign in with your organization").click()
    page.locator("input[name=login]").fill("ada")
    page.locator("input[name=password]").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    screen.wait_live()


def test_a_user_signs_in_at_the_issuer_trades_and_stays_over_a_reload(
    screens: Screens, platform: Platform
) -> None:
    policy = platform.client.get("/console").headers["content-security-policy"]
    issuer = platform.client.get("/console/config.json").json()["issuer"]
    assert f"connect-src 'self' {issuer};" in policy
    with screens(platform) as screen:
        sign_in_at_issuer(screen)
        chip = screen.page.locator(".chip")
        first = chip.inner_text()
        assert "admin ada, until" in first
        assert screen.page.url.split("#")[0] == f"{platform.url}/console", (
            "the code leaves the address"
        )
        stored = screen.page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
        assert stored == '[{"trading-intents-issuer":"1"},{}]', (
            "that somebody signed in there, and no credential"
        )
        screen.page.evaluate(
            "Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })"
        )
        screen.page.wait_for_function(
            "(before) => document.querySelector('.chip').innerText !== before", arg=first
        )
        screen.view("Accounts")
        screen.row("sim").wait_for()
        screen.page.reload()
        screen.wait_view("Accounts")  # without a question, in the same view
        screen.row("sim").wait_for()
        screen.view("Blotter")
        screen.page.locator("form.ticket").get_by_text("Uses the session key of ada.").wait_for()
        screen.order("AAPL", "1")
        screen.page.locator(".outcome").get_by_text("Filled: Buy 1 AAPL").wait_for()
        screen.page.get_by_role("button", name="Sign out").click()
        screen.page.reload()
        screen.page.get_by_role("button", name="Sign in with your organization").wait_for()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("code=x&state=forged", "belongs to no sign-in"),
        ("error=access_denied&state=forged", "belongs to no sign-in"),
    ],
)
def test_a_return_that_nobody_began_is_refused(
    screens: Screens, platform: Platform, query: str, said: str
) -> None:
    with screens(platform) as screen:
        asked: list[str] = []
        screen.page.on("request", lambda request: asked.append(request.url))
        screen.open(f"/console?{query}")
        screen.page.get_by_role("alert").get_by_text(said).wait_for()
        assert not any("/token" in url for url in asked)
        assert "code=" not in screen.page.url
