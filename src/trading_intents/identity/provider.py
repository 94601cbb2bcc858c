"""The embedded identity provider `local`: its signing key, its tokens, its public documents. Stores
and looks up nothing."""

import base64
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt import PyJWK
from jwt.algorithms import OKPAlgorithm

from trading_intents.clock import Clock
from trading_intents.config import Settings
from trading_intents.errors import DatabaseMissing, StartupRefused
from trading_intents.identity import tokens
from trading_intents.identity.model import Scope
from trading_intents.ids import IdMaker
from trading_intents.secret import Secret, make_file
from trading_intents.telemetry import Log
from trading_intents.trading import FrozenStruct

KEY_FILE = "identity-key.pem"
ISSUER_FILE = "identity-issuer"
TOKEN_SECONDS = 900
TOKEN_PATH = "/oauth/token"  # noqa: S105 - a path
KEYS_PATH = "/.well-known/jwks.json"


class Issuer(FrozenStruct):
    name: str
    key: Ed25519PrivateKey


class EmbeddedProvider:
    def __init__(self, settings: Settings, issuer: Issuer, clock: Clock, make_id: IdMaker) -> None:
        self.issuer = issuer.name
        self._base_url = settings.identity_issuer or settings.http_url
        self._audience = settings.identity_audience
        self._names = tokens.ClaimNames()
        self._key = issuer.key
        self._clock = clock
        self._make_id = make_id
        self._jwk = _published(issuer.key)
        self._verification_key = PyJWK(self._jwk)

    async def find(self, kid: str) -> PyJWK | None:
        return self._verification_key if kid == self._jwk["kid"] else None

    def verifier(self, log: Log) -> tokens.TokenVerifier:
        rules = tokens.TokenRules(
            self.issuer, self._audience, self._names, tokens.ACCESS_TOKEN_TYPES
        )
        return tokens.TokenVerifier(rules, self, self._clock, log)

    def issue_user_token(self, subject: str, organization: str | None, role: str | None) -> Secret:
        names = self._names
        return self._issue(
            {"sub": subject, names.kind: "user", names.organization: organization, names.role: role}
        )

    def issue_service_token(self, client_id: str, scopes: Iterable[Scope]) -> Secret:
        names = self._names
        granted = " ".join(sorted(scopes))
        return self._issue(
            {
                "sub": client_id,
                "client_id": client_id,
                names.kind: names.kind_service,
                names.scopes: granted,
            }
        )

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self._jwk]}

    def discovery(self) -> dict[str, Any]:
        """RFC 8414 metadata."""
        return {
            "issuer": self.issuer,
            "token_endpoint": self._base_url + TOKEN_PATH,
            "jwks_uri": self._base_url + KEYS_PATH,
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": ["none"],  # a required field, though no user logs in here
            "subject_types_supported": ["public"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "id_token_signing_alg_values_supported": ["EdDSA"],
            "scopes_supported": list(Scope),
        }

    def _issue(self, own_claims: dict[str, str | None]) -> Secret:
        # With its fraction, so that tokens from before and after a user's deletion differ within a
        # second.
        now = self._clock.now().timestamp()
        claims = {
            "iss": self.issuer,
            "aud": self._audience,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "jti": str(self._make_id()),
            **{name: value for name, value in own_claims.items() if value is not None},
        }
        header = {"typ": "at+jwt", "kid": self._jwk["kid"]}
        return Secret(jwt.encode(claims, self._key, algorithm="EdDSA", headers=header))


def load_issuer(settings: Settings, may_create: bool = True) -> Issuer:
    """The data folder's one key, and the issuer's name beside it: IDENTITY_ISSUER, else the first
    process's address. The others, on other ports or on none, issue and accept under that name
    too."""
    key_path = settings.data_dir / KEY_FILE
    name_path = settings.data_dir / ISSUER_FILE
    try:
        if not may_create and not (
            key_path.exists() and (settings.identity_issuer or name_path.exists())
        ):
            raise DatabaseMissing(
                f"no {KEY_FILE} and {ISSUER_FILE} in {settings.data_dir.absolute()}: set "
                "TRADING_INTENTS_DATA_DIR to the data folder of the process that serves"
            )
        if not key_path.exists():
            make_file(key_path, _new_key())
        if not (settings.identity_issuer or name_path.exists()):
            make_file(name_path, settings.http_url.encode())
        return Issuer(settings.identity_issuer or _read_name(name_path), _read_key_file(key_path))
    except OSError as error:
        raise StartupRefused(f"{error.filename}: {error.strerror}") from error


def _new_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read_name(path: Path) -> str:
    name = path.read_bytes().decode(errors="replace").strip()
    if not re.fullmatch(rf"[ -~]{{1,{tokens.MAX_TEXT_CHARACTERS}}}", name):
        raise StartupRefused(f"{path}: not an issuer's name; remove it to have a new one made")
    return name


def _read_key_file(path: Path) -> Ed25519PrivateKey:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise StartupRefused(f"{path}: others may read it; make it yours alone (chmod 600)")
        pem = file.read()
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise StartupRefused(
            f"{path}: not an Ed25519 private key; remove it to have a new one made"
        )
    return key


def _published(key: Ed25519PrivateKey) -> dict[str, Any]:
    public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    # RFC 7638: the name is computed from the key, so that processes agree on it.
    needed = {name: public[name] for name in ("crv", "kty", "x")}
    text = json.dumps(needed, separators=(",", ":"))
    thumbprint = hashlib.sha256(text.encode()).digest()
    kid = base64.urlsafe_b64encode(thumbprint).rstrip(b"=").decode()
    return {**public, "kid": kid, "alg": "EdDSA", "use": "sig"}
