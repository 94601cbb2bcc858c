"""Runs `oidc-provider` from npm on loopback: an issuer that is none of ours."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.free_port import free_port

CLIENT = ("reporter", "a-secret-of-the-test")
PROGRAM = """
import { Provider } from %(module)s;
const resource = { scope: 'intent:read', audience: 'trading-intents', accessTokenFormat: 'jwt',
                   jwt: { sign: { alg: 'ES256' } } };
const provider = new Provider(%(issuer)s, {
  clients: [{ client_id: %(id)s, client_secret: %(secret)s, grant_types: ['client_credentials'],
              redirect_uris: [], response_types: [], id_token_signed_response_alg: 'ES256' }],
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: { enabled: true, defaultResource: () => 'urn:trading-intents',
                          getResourceServerInfo: () => resource },
  },
  extraTokenClaims: () => ({ kind: 'service' }),
  jwks: { keys: [%(jwk)s] },
});
provider.listen(%(port)d, '127.0.0.1', () => console.log('listening'));
"""


@dataclass(frozen=True)
class OidcProvider:
    issuer: str

    def client_token(self) -> str:
        form = {"grant_type": "client_credentials", "scope": "intent:read"}
        answer = httpx.post(f"{self.issuer}/token", data=form, auth=CLIENT, verify=False)
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["access_token"]
        return token


@contextlib.contextmanager
def running_provider(module_folder: str, folder: Path) -> Iterator[OidcProvider]:
    port = free_port()
    jwk = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True)
    answered = {
        "module": json.dumps(f"{module_folder}/lib/index.js"),
        "issuer": json.dumps(f"http://127.0.0.1:{port}"),
        "id": json.dumps(CLIENT[0]),
        "secret": json.dumps(CLIENT[1]),
        "jwk": json.dumps(jwk | {"kid": "npm", "alg": "ES256", "use": "sig"}),
        "port": port,
    }
    program = folder / "provider.mjs"
    program.write_text(PROGRAM % answered)
    with subprocess.Popen(
        ["node", str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            assert any("listening" in line for line in node.stdout), "oidc-provider did not start"
            yield OidcProvider(f"http://127.0.0.1:{port}")
        finally:
            node.kill()
