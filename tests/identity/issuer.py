"""An OpenID Connect issuer on loopback for tests: its own keys, its key set over HTTP, a count of
what was fetched."""

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt import get_algorithm_by_name

from trading_intents.clock import Clock

AUDIENCE = "trading-intents"
KEYS_PATH = "/jwks"
MAX_HOLD_SECONDS = 10.0


@dataclass(frozen=True)
class SigningKey:
    kid: str
    algorithm: str
    private: Any

    def sign(self, message: bytes) -> bytes:
        signature: bytes = get_algorithm_by_name(self.algorithm).sign(message, self.private)
        return signature

    def public(self) -> dict[str, Any]:
        jwk = get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        return {**jwk, "kid": self.kid, "alg": self.algorithm, "use": "sig"}


def ed25519_key(kid: str = "ed") -> SigningKey:
    return SigningKey(kid, "EdDSA", Ed25519PrivateKey.generate())


def p256_key(kid: str = "ec") -> SigningKey:
    return SigningKey(kid, "ES256", ec.generate_private_key(ec.SECP256R1()))


def rsa_key(kid: str = "rsa", bits: int = 2048) -> SigningKey:
    return SigningKey(kid, "RS256", rsa.generate_private_key(65537, bits))


def encode(header: Mapping[str, Any], claims: object, sign: Callable[[bytes], bytes]) -> str:
    """A token with exactly this header, whatever it says. Claims given as bytes are taken as they
    are."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    message = _base64(json.dumps(header).encode()) + b"." + _base64(payload)
    return (message + b"." + _base64(sign(message))).decode()


class Issuer:
    def __init__(self, clock: Clock, *keys: SigningKey) -> None:
        self.keys = keys or (ed25519_key(),)
        self.published: list[Any] = [key.public() for key in self.keys]
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None  # in place of the key set
        self.paths: list[str] = []  # every path that anyone asked for
        self.open = threading.Event()  # cleared: answers wait
        self.open.set()
        self._clock = clock
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.jwks_url = self.url + KEYS_PATH

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """From here on connections are refused. May be called again."""
        self.open.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def fetches(self) -> int:
        return self.paths.count(KEYS_PATH)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Those of an acceptable access token of a user; `None` leaves one out."""
        now = int(self._clock.now().timestamp())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 900}
        claims |= {"organization": "org_acme", "role": "admin"}
        return {name: value for name, value in (claims | changes).items() if value is not None}

    def token(self, claims: object = None, key: SigningKey | None = None, **header: Any) -> str:
        """Signed by the first key unless another is given; `None` leaves a header out."""
        key = key or self.keys[0]
        full = {"alg": key.algorithm, "typ": "JWT", "kid": key.kid} | header
        answered = {name: value for name, value in full.items() if value is not None}
        return encode(answered, self.claims() if claims is None else claims, key.sign)


def _handler_of(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.paths.append(self.path)
            issuer.open.wait(MAX_HOLD_SECONDS)
            body = (
                json.dumps({"keys": issuer.published}).encode()
                if issuer.body is None
                else issuer.body
            )
            self.send_response(issuer.status)
            for name, value in issuer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
