"""Secrets in OpenBao or HashiCorp Vault (KV version 2); the database keeps only where. Repeats no
request, follows no redirect, and lets no HTTP error out: it has the token and the secret."""

import asyncio
import re
import secrets as random
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import httpx
import msgspec

from trading_intents.accounts.model import SecretRef
from trading_intents.accounts.vault.port import (
    MAX_FIELDS_BYTES,
    decode_fields,
    encode_fields,
)
from trading_intents.config import PREFIX, Settings
from trading_intents.errors import SecretUnreadable, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.telemetry import Log

CONNECT_SECONDS = 1.0
TOTAL_SECONDS = 3.0  # name look-up to last byte
MAX_ANSWER_BYTES = 8 * MAX_FIELDS_BYTES  # the server may write one character as six
MAX_TOKEN_CHARACTERS = 8 * 1024

# A sealed value: 1 byte format, 16 random bytes that name the secret among its row's. The row's own
# ids are the rest of the path, so that on another row it names nothing.
FORMAT = 2
NAME_BYTES = 16


class OpenBaoVault:
    def __init__(self, settings: Settings, client: httpx.AsyncClient, log: Log) -> None:
        self._engine = f"{settings.vault_url.rstrip('/')}/v1/{settings.vault_mount}"
        self._settings = settings
        self._client = client
        self._log = log
        if settings.vault_token and not _is_token(settings.vault_token.reveal()):
            raise StartupRefused(f"{PREFIX}VAULT_TOKEN: not a token")

    async def seal(self, ref: SecretRef, secrets: Mapping[str, Secret]) -> bytes:
        sealed = bytes([FORMAT]) + random.token_bytes(NAME_BYTES)
        # cas 0: made, never replaced. An engine can demand that it is said.
        body = msgspec.json.encode(
            {"data": msgspec.Raw(encode_fields(secrets)), "options": {"cas": 0}}
        )
        status, answer = await self._ask("POST", "data", ref, sealed, body)
        if status not in (200, 204):
            self._refuse("seal", status, answer)
        return sealed

    async def open(self, ref: SecretRef, sealed: bytes) -> dict[str, Secret]:
        status, answer = await self._ask("GET", "data", ref, sealed)
        if _is_absent(status, answer):
            raise SecretUnreadable("not in the vault: deleted there, or sealed for another row")
        fields = _read_fields(answer) if status == 200 else None
        if fields is None:
            self._refuse("open", status, answer)
        return fields

    async def forget(self, ref: SecretRef, sealed: bytes) -> None:
        if not _is_ours(sealed):
            return  # from before the settings named this vault
        status, answer = await self._ask("DELETE", "metadata", ref, sealed)
        if status not in (200, 204) and not _is_absent(status, answer):
            self._refuse("forget", status, answer)

    async def _ask(
        self, method: str, part: str, ref: SecretRef, sealed: bytes, body: bytes | None = None
    ) -> tuple[int, bytes]:
        if not _is_ours(sealed):
            raise SecretUnreadable("not sealed by this kind of vault")
        row = f"{ref.organization_id}/{ref.account_id}/{ref.credential_id}"
        url = f"{self._engine}/{part}/{self._settings.vault_prefix}/{row}/{sealed[1:].hex()}"
        headers = self._headers()
        try:
            async with asyncio.timeout(TOTAL_SECONDS):
                return await self._fetch(method, url, headers, body)
        except (httpx.HTTPError, OSError) as error:  # httpx lets errors of TLS out
            failure = type(error).__name__
        self._log.warning("vault unreachable", method=method, error=failure)
        raise Unavailable("the vault cannot be reached")

    async def _fetch(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        limits = httpx.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS)
        answer = bytearray()
        async with self._client.stream(
            method, url, headers=headers, content=body, timeout=limits, follow_redirects=False
        ) as response:
            async for chunk in response.aiter_raw():
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    raise httpx.DecodingError("larger than an answer can be")
        return response.status_code, bytes(answer)

    def _headers(self) -> dict[str, str]:
        # Authorization, not X-Vault-Token: httpx hides it when it shows a request.
        headers = {
            "authorization": f"Bearer {self._current_token()}",
            "accept-encoding": "identity",
        }
        headers |= {"content-type": "application/json", "x-vault-request": "true"}
        namespace = self._settings.vault_namespace
        return headers | ({"x-vault-namespace": namespace} if namespace else {})

    def _current_token(self) -> str:
        """From the file each time, as an agent replaces it before it expires."""
        if self._settings.vault_token:
            return self._settings.vault_token.reveal()
        try:
            token = Path(self._settings.vault_token_file).read_text("ascii").strip()
        except (OSError, ValueError):
            token = ""
        if not _is_token(token):
            self._log.error("vault token unreadable", path=self._settings.vault_token_file)
            raise Unavailable("the vault cannot be used: its token cannot be read")
        return token

    def _refuse(self, action: str, status: int, answer: bytes) -> NoReturn:
        # The server's own words only for a refusal: what comes with a 200 may hold the secret.
        causes = _causes(answer) if status >= 400 else None
        self._log.error("vault refused", action=action, status=status, causes=causes)
        raise Unavailable("the vault cannot be used: it refuses the request")


class _Version(msgspec.Struct):
    data: msgspec.Raw


class _Read(msgspec.Struct):
    data: _Version


class _Errors(msgspec.Struct):
    errors: list[str] = []


def _is_ours(sealed: bytes) -> bool:
    return len(sealed) == 1 + NAME_BYTES and sealed[0] == FORMAT


def _read_fields(answer: bytes) -> dict[str, Secret] | None:
    try:
        return decode_fields(msgspec.json.decode(answer, type=_Read).data.data)
    except (ValueError, RecursionError):
        return None


def _causes(answer: bytes) -> list[str] | None:
    try:
        return msgspec.json.decode(answer, type=_Errors).errors
    except (ValueError, RecursionError):
        return None


def _is_absent(status: int, answer: bytes) -> bool:
    """A 404 that gives a cause is about the mount or the namespace, and one without JSON is
    somebody else's."""
    return status == 404 and _causes(answer) == []


def _is_token(text: str) -> bool:
    """Whether a header can hold it: an error about one that it cannot would show it."""
    return bool(re.fullmatch(rf"[!-~]{{1,{MAX_TOKEN_CHARACTERS}}}", text))
