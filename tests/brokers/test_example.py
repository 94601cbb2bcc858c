"""The example of a broker is one: it plays the cards that are meant for it, trades on after a
restart of the worker, and an entry point adds it."""

import importlib.util
import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.accounts.provisioned import settings_of
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.execution.in_process_execution import executing, open_in_process
from tests.platform import run_command, serving
from tests.waiting import eventually
from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerAdapter,
    Capabilities,
    Integration,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.config import PREFIX
from trading_intents.ids import OrganizationId
from trading_intents.telemetry import Metrics
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, StageFault, play
from trading_intents.trading import Environment, Symbol

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_broker.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("my_broker", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE: Any = load()


@dataclass(kw_only=True)
class Stage:
    folder: Path
    forgets: bool = False  # the venue's book is lost whenever a session is made
    capabilities: Capabilities = MODULE.CAPABILITIES
    symbol: Symbol = Symbol("ACME")
    faults: frozenset[StageFault] = frozenset()
    account: UUID = field(default_factory=uuid4)
    session: Any = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def client_order_id(self) -> str:
        return f"c{next(self._numbers)}"

    async def connect(self) -> BrokerAdapter:
        if self.forgets:
            (self.folder / f"{self.account}.json").unlink(missing_ok=True)
        account = BrokerAccount(self.account, OrganizationId(uuid4()), Environment.PAPER, None)
        settings = {"MY_BROKER_FOLDER": str(self.folder)}
        nothing: Any = None
        context = IntegrationContext(
            account=account,
            secrets={},
            clock=SystemClock(),
            settings=settings,
            database=nothing,
            signals=nothing,
            open_transactions=nothing,
            shared={},
        )
        self.session = MODULE.INTEGRATION.connect(context)
        session: BrokerAdapter = self.session
        return session

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.session.venue.quote(bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        raise NotImplementedError


MEANT = [card for card in CARDS if card.needs(MODULE.CAPABILITIES) and card.fault is None]


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_the_example_plays_the_card(card: Card, tmp_path: Path) -> None:
    await play(card, Stage(folder=tmp_path))


async def test_a_venue_that_forgets_does_not_play_the_card_of_restarts(tmp_path: Path) -> None:
    (card,) = (card for card in MEANT if card.number == 63)
    with pytest.raises(AssertionError, match="a key came again"):
        await play(card, Stage(folder=tmp_path, forgets=True))


async def test_the_example_trades_on_after_a_restart(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    capabilities = replace(MODULE.CAPABILITIES, name="paper", credential_fields=())
    integration = Integration("paper", capabilities, MODULE.connect)
    metrics = Metrics()
    async with open_in_process(urls) as in_process:
        MODULE.Venue(tmp_path / f".data/my_broker/{in_process.account}.json").quote(
            Decimal(99), Decimal(100), Decimal(1000)
        )
        orders = []
        for _ in range(3):
            async with executing(in_process, integration=integration, metrics=metrics):
                orders.append(await in_process.create())
                await in_process.until_status(orders[-1], "FILLED")
        assert [(await in_process.order(order))["flags"] for order in orders] == [[], [], []]
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM positions")
            == 30
        )
    (alerts,) = metrics.execution_alerts.collect()
    assert [
        sample for sample in alerts.samples if sample.name.endswith("_total") and sample.value
    ] == []


def test_a_trial_of_the_example_says_what_it_cannot(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces no order, and reports nothing while it is not open."""
    package = tmp_path / "installed" / "my_broker-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-broker\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[trading_intents.brokers]\nmy_broker = my_broker:INTEGRATION\n"
    )
    (package.parent / EXAMPLE.name).write_text(EXAMPLE.read_text())
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    permissions = ["account:read", "credential:edit", "intent:edit", "intent:read", "stream:read"]
    account = {"name": "a", "broker": "my_broker", "environment": "paper"}
    key = {"name": "k", "environment": "paper", "permissions": permissions}
    monkeypatch.chdir(tmp_path)  # where the venue is
    with serving(tmp_path / "data", **settings_of(urls)) as platform:
        document = {
            "organizations": [{"external_id": "o", "accounts": [account], "api_keys": [key]}]
        }
        (made,) = platform.apply(document)["organizations"]
        url = f"/v1/accounts/{made['accounts'][0]['id']}"
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        stored = platform.client.post(
            f"{url}/credentials", json={"secrets": {"token": "t"}}, headers=headers
        )
        assert stored.status_code == 201, stored.text
        eventually(
            lambda: platform.client.get(url, headers=headers).json()["connection"] == "connected",
            20,
        )
        environ = platform.environ | {
            f"{PREFIX}URL": platform.url,
            f"{PREFIX}API_KEY": headers["x-api-key"],
        }
        done = run_command(environ, "doctor", "--account", made["accounts"][0]["id"], "--try")
        lines = lines_of(done.stdout)
        assert "BUY 1 AAPL at 1 DAY: NEW" in lines["create"], done
        assert lines["look-up"].startswith("wrong: by client order id: the session is down (")
        assert lines["replace"].startswith("ok: to 1.01: the broker cannot, and nothing was sent (")
        assert lines["cancel"].startswith("ok: CANCEL: CANCELLED (")


def test_the_example_is_an_integration() -> None:
    assert isinstance(MODULE.INTEGRATION, Integration)
    assert 'my_broker = "my_broker:INTEGRATION"' in EXAMPLE.read_text()
