"""TLS that breaks after the handshake: every client of ours takes it for a lost answer, and none
lets it out."""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.broken_tls import broken_tls
from trading_intents.accounts.vault import OpenBaoVault, SecretRef
from trading_intents.brokers.alpaca.rest import AlpacaRest
from trading_intents.brokers.port import BrokerAccount, IntegrationContext
from trading_intents.brokers.rest_client import AnswerUnclear
from trading_intents.clock import SystemClock
from trading_intents.config import Settings
from trading_intents.errors import Unavailable
from trading_intents.identity.tokens import JwksSource
from trading_intents.identity.users import UserDirectory
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log
from trading_intents.trading import Environment
from trading_intents_client import AsyncTradingClient, ClientCredentials, errors

LOG = make_log("critical")
ROW = SecretRef(UUID(int=1), UUID(int=2), UUID(int=3))
SEALED = b"\x02" + bytes(16)

Ask = Callable[[str, httpx.AsyncClient], Awaitable[Any]]
ASKED: dict[str, Ask] = {
    "identity provider's keys": lambda url, client: JwksSource(
        url, client, SystemClock(), LOG
    ).find("kid"),
    "identity provider's users": lambda url, client: UserDirectory(client, url).delete("ada"),
    "vault": lambda url, client: OpenBaoVault(
        Settings(vault_url=url, vault_token=Secret("t")), client, LOG
    ).open(ROW, SEALED),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_it_is_unavailable(tmp_path: Path, asked: str) -> None:
    with broken_tls(tmp_path) as (url, authority):
        async with httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=authority), trust_env=False
        ) as client:
            with pytest.raises(Unavailable):
                await ASKED[asked](url, client)


async def test_a_request_to_a_broker_may_have_arrived(tmp_path: Path) -> None:
    with broken_tls(tmp_path) as (url, authority):
        account = BrokerAccount(uuid4(), OrganizationId(uuid4()), Environment.PAPER, None)
        secrets = {"api_key_id": Secret("k"), "api_secret": Secret("s")}
        shared: dict[str, object] = {"tls": ssl.create_default_context(cafile=authority)}
        nothing: Any = None
        settings = {"ALPACA_PAPER_URL": url}
        rest = AlpacaRest(
            IntegrationContext(
                account=account,
                secrets=secrets,
                clock=SystemClock(),
                settings=settings,
                database=nothing,
                signals=nothing,
                open_transactions=nothing,
                shared=shared,
            )
        )
        with pytest.raises(AnswerUnclear):
            await rest.read_account(rest.deadline())
        await rest.close()


async def test_a_client_gets_the_key_of_a_command_that_may_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken_tls(tmp_path) as (url, authority):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        async with AsyncTradingClient(url, api_key="k", max_retries=0) as client:
            with pytest.raises(errors.AnswerLost) as lost:
                await client.account("a").buy("AAPL", 1)
            assert lost.value.idempotency_key
            assert lost.value.may_be_recorded
            with pytest.raises(errors.AnswerLost):
                await anext(client.account("a").events())
        credentials = ClientCredentials("id", "secret")
        async with AsyncTradingClient(url, credentials=credentials, max_retries=0) as client:
            with pytest.raises(errors.AnswerLost):
                await client.account("a").get()
