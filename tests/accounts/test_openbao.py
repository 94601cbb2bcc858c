"""Secrets in a real OpenBao, and in servers that answer badly: nothing leaks, and everything ends
in time."""

import asyncio
import contextlib
import dataclasses
import io
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec import structs

from tests.accounts.bao_server import (
    HOW_TO_GET,
    Answering,
    Bao,
    answering,
    certified,
    find_program,
    response,
    running_bao,
)
from tests.fakes import ManualClock
from trading_intents import config
from trading_intents.accounts.vault import OpenBaoVault, SecretRef, embedded_vault, open_vault
from trading_intents.accounts.vault.openbao import MAX_ANSWER_BYTES, TOTAL_SECONDS
from trading_intents.config import Settings
from trading_intents.errors import PlatformError, SecretUnreadable, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log

MARKER = "s3cret-marker"
TOKEN = "t0ken-marker"
ROW = SecretRef(UUID(int=1), UUID(int=2), UUID(int=3))
SECRETS = {"api_key": Secret("AK<" + MARKER), "api_secret": Secret(MARKER + "ß\n")}
SEALED = b"\x02" + bytes(16)
RULES = (
    'path "secret/data/trading-intents/*" { capabilities = ["create", "read"] }',
    'path "secret/metadata/trading-intents/*" { capabilities = ["delete"] }',
)


@pytest.fixture
def logged() -> io.StringIO:
    return io.StringIO()


@contextlib.asynccontextmanager
async def opened(
    settings: Settings, logged: io.StringIO | None = None
) -> AsyncIterator[OpenBaoVault]:
    async with open_vault(
        settings, ManualClock(), make_log("debug", logged or io.StringIO())
    ) as vault:
        assert isinstance(vault, OpenBaoVault)
        yield vault


def at(server: Answering) -> Settings:
    return Settings(vault_url=server.url, vault_token=Secret(TOKEN))


def answered(error: PlatformError) -> str:
    """All that a log line, an answer or a traceback could show of it."""
    assert error.__context__ is None
    return f"{error!r} {error} {vars(error)} {''.join(traceback.format_exception(error))}"


# A real server


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bao]:
    program = find_program()
    if program is None:
        pytest.skip(HOW_TO_GET)
    with running_bao(program, tmp_path_factory.mktemp("bao")) as server:
        yield server


@pytest.fixture(scope="module")
def token(bao: Bao) -> str:
    return bao.make_token(*RULES)


@pytest.fixture
def settings(bao: Bao, token: str) -> Settings:
    return Settings(vault_url=bao.url, vault_token=Secret(token))


async def test_a_secret_goes_to_the_server_and_comes_back(settings: Settings, bao: Bao) -> None:
    async with opened(settings) as vault:
        sealed = await vault.seal(ROW, SECRETS)
        assert await vault.open(ROW, sealed) == SECRETS
    assert MARKER.encode() not in sealed
    path = f"trading-intents/{ROW.organization_id}/{ROW.account_id}/{ROW.credential_id}/{sealed[1:].hex()}"
    kept = bao.call("GET", f"secret/data/{path}")["data"]["data"]
    assert kept == {name: secret.reveal() for name, secret in SECRETS.items()}


async def test_the_largest_secrets_fit(settings: Settings) -> None:
    largest = {f"field_{n}": Secret("<" * 8 * 1024) for n in range(8)}
    async with opened(settings) as vault:
        assert await vault.open(ROW, await vault.seal(ROW, largest)) == largest


@pytest.mark.parametrize("part", ["organization_id", "account_id", "credential_id"])
async def test_on_another_row_it_does_not_open(settings: Settings, part: str) -> None:
    async with opened(settings) as vault:
        other = structs.replace(ROW, **{part: uuid4()})
        sealed = await vault.seal(ROW, SECRETS)
        await vault.seal(other, SECRETS)
        with pytest.raises(SecretUnreadable):
            await vault.open(other, sealed)


async def test_a_forgotten_secret_is_gone_and_may_be_forgotten_again(
    settings: Settings, bao: Bao
) -> None:
    async with opened(settings) as vault:
        sealed = await vault.seal(ROW, SECRETS)
        other = await vault.seal(ROW, SECRETS)
        for _ in range(2):
            await vault.forget(ROW, sealed)
        with pytest.raises(SecretUnreadable):
            await vault.open(ROW, sealed)
        assert await vault.open(ROW, other) == SECRETS


async def test_a_secret_deleted_on_the_server_is_unreadable(settings: Settings, bao: Bao) -> None:
    async with opened(settings) as vault:
        sealed = await vault.seal(ROW, SECRETS)
        row = f"{ROW.organization_id}/{ROW.account_id}/{ROW.credential_id}"
        bao.call("DELETE", f"secret/data/trading-intents/{row}/{sealed[1:].hex()}")
        with pytest.raises(SecretUnreadable):
            await vault.open(ROW, sealed)


@pytest.mark.parametrize(
    "changes",
    [{"vault_token": Secret(TOKEN)}, {"vault_prefix": "elsewhere"}, {"vault_mount": "nowhere"}],
    ids=["token", "prefix", "mount"],
)
async def test_a_wrong_setting_is_not_taken_for_a_lost_secret(
    settings: Settings, bao: Bao, changes: dict[str, Any], logged: io.StringIO
) -> None:
    async with (
        opened(settings) as right,
        opened(dataclasses.replace(settings, **changes), logged) as wrong,
    ):
        sealed = await right.seal(ROW, SECRETS)
        for failing in (
            wrong.seal(ROW, SECRETS),
            wrong.open(ROW, sealed),
            wrong.forget(ROW, sealed),
        ):
            with pytest.raises(Unavailable) as caught:
                await failing
            for value in (MARKER, TOKEN, settings.vault_token.reveal()):
                assert value not in answered(caught.value) + logged.getvalue()
        assert await right.open(ROW, sealed) == SECRETS


async def test_a_strict_engine_at_another_mount_is_served(bao: Bao) -> None:
    bao.call("POST", "sys/mounts/team/kv", {"type": "kv", "options": {"version": "2"}})
    bao.call("POST", "team/kv/config", {"cas_required": True})
    token = bao.make_token('path "team/kv/*" { capabilities = ["create", "read", "delete"] }')
    async with opened(
        Settings(
            vault_url=f"{bao.url}/",
            vault_token=Secret(token),
            vault_mount="team/kv",
            vault_prefix="a/b",
        )
    ) as vault:
        sealed = await vault.seal(ROW, SECRETS)
        assert await vault.open(ROW, sealed) == SECRETS
        await vault.forget(ROW, sealed)


async def test_a_namespace_is_a_world_of_its_own(settings: Settings, bao: Bao) -> None:
    bao.call("POST", "sys/namespaces/inner")
    bao.call("POST", "inner/sys/mounts/secret", {"type": "kv", "options": {"version": "2"}})
    root = dataclasses.replace(settings, vault_token=Secret(bao.root_token))
    async with (
        opened(dataclasses.replace(root, vault_namespace="inner")) as inside,
        opened(root) as outside,
    ):
        sealed = await inside.seal(ROW, SECRETS)
        assert await inside.open(ROW, sealed) == SECRETS
        with pytest.raises(SecretUnreadable):
            await outside.open(ROW, sealed)


async def test_a_token_in_a_file_may_be_replaced(bao: Bao, token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with opened(Settings(vault_url=bao.url, vault_token_file=str(file))) as vault:
        for content in (None, "", "two words", "é", TOKEN):
            if content is not None:
                file.write_text(content)
            with pytest.raises(Unavailable):
                await vault.seal(ROW, SECRETS)
        file.write_text(f"{token}\n")
        assert await vault.open(ROW, await vault.seal(ROW, SECRETS)) == SECRETS


async def test_a_server_that_stops_is_unavailable_and_answered_in_time(
    tmp_path: Path, logged: io.StringIO
) -> None:
    program = find_program()
    if program is None:
        pytest.skip(HOW_TO_GET)
    with running_bao(program, tmp_path) as bao:
        async with opened(
            Settings(vault_url=bao.url, vault_token=Secret(bao.root_token)), logged
        ) as vault:
            sealed = await vault.seal(ROW, SECRETS)
            bao.stop()
            started = time.monotonic()
            for failing in (
                vault.seal(ROW, SECRETS),
                vault.open(ROW, sealed),
                vault.forget(ROW, sealed),
            ):
                with pytest.raises(Unavailable) as caught:
                    await failing
                assert bao.root_token not in answered(caught.value) + logged.getvalue()
            assert time.monotonic() - started < TOTAL_SECONDS


# Servers that answer badly


BAD_ANSWERS = {
    "nonsense": b"nonsense\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nconte",
    "half a body": response("200 OK", b'{"data": {"da', 100),
    "chunk cut": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nab",
    "redirect": response("307 Temporary Redirect", b"", None, "location: http://127.0.0.1:1/"),
    "bad request": response("400 Bad Request", b'{"errors":["no"]}'),
    "forbidden": response("403 Forbidden", b'{"errors":["permission denied"]}'),
    "a proxy's 404": response("404 Not Found", b"<html>"),
    "another's 404": response("404 Not Found", b'{"errors":["no handler for route"]}'),
    "rate limited": response("429 Too Many Requests", b'{"errors":["slow"]}'),
    "broken": response("500 Internal Server Error", b'{"errors":["oh"]}'),
    "sealed": response("503 Service Unavailable", b'{"errors":["Vault is sealed"]}'),
    "too large": response("500 No", b" " * (MAX_ANSWER_BYTES + 1)),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_means_away(answer: bytes, logged: io.StringIO) -> None:
    async with answering(answer) as server:
        async with opened(at(server), logged) as vault:
            for failing in (
                vault.seal(ROW, SECRETS),
                vault.open(ROW, SEALED),
                vault.forget(ROW, SEALED),
            ):
                with pytest.raises(Unavailable) as caught:
                    await failing
                for value in (MARKER, TOKEN):
                    assert value not in answered(caught.value) + logged.getvalue()
        assert len(server.requests) == 3, "nothing is repeated or followed"


UNREADABLE_ANSWERS = [
    MARKER,
    f'"{MARKER}"',
    "{}",
    f'{{"data": "{MARKER}"}}',
    f'{{"data": {{"data": "{MARKER}"}}}}',
    '{"data": {"data": null}}',
    f'{{"data": {{"data": {{"a": ["{MARKER}"]}}}}}}',
    f'{{"errors": ["{MARKER}"]}}',
    "[" * 100_000,
    '{"data": {"data": ' + "[" * 100_000,
]


@pytest.mark.parametrize("body", UNREADABLE_ANSWERS, ids=range(len(UNREADABLE_ANSWERS)))
async def test_an_answer_that_is_no_secret_means_away_and_is_not_shown(
    body: str, logged: io.StringIO
) -> None:
    async with (
        answering(response("200 OK", body.encode())) as server,
        opened(at(server), logged) as vault,
    ):
        with pytest.raises(Unavailable) as caught:
            await vault.open(ROW, SEALED)
    assert MARKER not in answered(caught.value) + logged.getvalue()


async def test_a_redirect_is_not_followed() -> None:
    async with answering(response("200 OK", b"{}")) as other:
        moved = response("307 Temporary Redirect", b"", None, f"location: {other.url}/")
        async with answering(moved) as server, opened(at(server)) as vault:
            with pytest.raises(Unavailable):
                await vault.open(ROW, SEALED)
        assert other.requests == []


@pytest.mark.slow
@pytest.mark.deadline
async def test_a_server_that_says_nothing_is_left_in_time() -> None:
    async with answering(None) as server, opened(at(server)) as vault:
        started = time.monotonic()
        asked = [vault.seal(ROW, SECRETS), vault.open(ROW, SEALED), vault.forget(ROW, SEALED)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert time.monotonic() - started < TOTAL_SECONDS + 1
    assert [type(answer) for answer in answers] == [Unavailable] * 3


@pytest.mark.parametrize(
    "sealed", [b"", b"\x02", SEALED[:-1], SEALED + b"\0", b"\x01" + SEALED[1:], bytes(120)]
)
async def test_what_another_vault_sealed_is_not_even_asked_for(sealed: bytes) -> None:
    async with answering(b"") as server:
        async with opened(at(server)) as vault:
            with pytest.raises(SecretUnreadable):
                await vault.open(ROW, sealed)
            await vault.forget(ROW, sealed)
        assert server.requests == []


async def test_a_proxy_of_the_environment_is_not_shown_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(b"") as proxy, answering(response("204 No Content")) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with opened(at(server)) as vault:
            await vault.seal(ROW, SECRETS)
        assert proxy.requests == []


async def test_only_a_server_that_the_authorities_vouch_for_is_spoken_to(tmp_path: Path) -> None:
    tls, authority = certified(tmp_path)
    async with answering(response("204 No Content"), tls) as server:
        async with opened(at(server)) as wary:
            with pytest.raises(Unavailable):
                await wary.seal(ROW, SECRETS)
        assert server.requests == []
        async with opened(dataclasses.replace(at(server), vault_ca_file=str(authority))) as vault:
            await vault.seal(ROW, SECRETS)


async def test_a_request_that_is_shown_hides_the_token() -> None:
    vault_settings = Settings(vault_url="http://127.0.0.1:1", vault_token=Secret(TOKEN))
    async with opened(vault_settings) as vault:
        assert TOKEN not in repr(httpx.Headers(vault._headers()))
        assert TOKEN not in repr(vars(vault))


# Settings

EXTERNAL = {"VAULT_URL": "https://vault.example", "VAULT_TOKEN": TOKEN}


def load(**settings: str) -> Settings:
    return config.load({config.PREFIX + name: value for name, value in settings.items()})


def refusal(**settings: str) -> str:
    with pytest.raises(StartupRefused) as caught:
        load(**settings)
    for value in (TOKEN, MARKER):
        assert value not in answered(caught.value)
    return caught.value.detail


@pytest.mark.parametrize(
    "url",
    [
        "http://vault.example",
        "vault.example",
        "ftp://vault.example",
        f"https://user:{MARKER}@vault.example",
        f"https://vault.example?x={MARKER}",
        "https://vault.example#x",
        "https://vault.example:99999",
        "https://vault.example:0",
        "http://127.0.0.1.example",
    ],
)
def test_a_wire_that_others_can_read_is_refused(url: str) -> None:
    assert "VAULT_URL" in refusal(**(EXTERNAL | {"VAULT_URL": url}))


@pytest.mark.parametrize("name", ["VAULT_MOUNT", "VAULT_PREFIX", "VAULT_NAMESPACE"])
@pytest.mark.parametrize(
    "path", ["..", "a/../b", "/a", "a/", "a//b", "a b", "a?b", "%2e", ".a", "a\nb", "ä"]
)
def test_a_path_leads_nowhere_else(name: str, path: str) -> None:
    assert name in refusal(**(EXTERNAL | {name: path}))


CONTRADICTIONS = [
    ("VAULT_TOKEN", {"VAULT_URL": "https://vault.example"}),
    ("VAULT_TOKEN", EXTERNAL | {"VAULT_TOKEN_FILE": "/token"}),
    ("VAULT_TOKEN", {"VAULT_TOKEN": TOKEN}),
    ("VAULT_CA_FILE", {"VAULT_CA_FILE": "/ca"}),
    ("VAULT_KEY_FILE", EXTERNAL | {"VAULT_KEY_FILE": "/keys"}),
    ("VAULT_MASTER_KEYS", EXTERNAL | {"VAULT_MASTER_KEYS": MARKER}),
    ("VAULT_MASTER_KEYS", {"VAULT_KEY_FILE": "/keys", "VAULT_MASTER_KEYS": MARKER}),
]


@pytest.mark.parametrize(("name", "settings"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(
    name: str, settings: dict[str, str]
) -> None:
    assert name in refusal(**settings)


async def test_a_token_that_no_header_can_hold_is_refused_unseen() -> None:
    with pytest.raises(StartupRefused, match="VAULT_TOKEN") as caught:
        async with opened(load(**(EXTERNAL | {"VAULT_TOKEN": f"{TOKEN}\n{MARKER}"}))):
            pass
    assert TOKEN not in answered(caught.value)


@pytest.mark.parametrize("content", [None, "", "nonsense"])
async def test_authorities_that_cannot_be_read_are_refused(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartupRefused, match="VAULT_CA_FILE"):
        async with opened(load(**(EXTERNAL | {"VAULT_CA_FILE": str(file)}))):
            pass


def test_its_keys_are_not_ours_to_rotate() -> None:
    with pytest.raises(StartupRefused, match="VAULT_URL"):
        embedded_vault(load(**EXTERNAL), ManualClock(), make_log())
