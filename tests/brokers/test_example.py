"""The example of a broker is one: it plays the cards that are meant for it, trades on after a
restart of the worker, and an entry point adds it."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.provisioned import settings_of
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.execution.in_process_execution import executing, open_in_process
from tests.platform import run_command, serving
from tests.testing.my_venue import EXAMPLE, MyStage, module_of, my_venue
from tests.waiting import eventually
from trading_intents.brokers.port import BrokerAdapter, Integration, IntegrationContext
from trading_intents.config import PREFIX
from trading_intents.secret import Secret
from trading_intents.telemetry import Metrics
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, play

MODULE: Any = module_of(EXAMPLE.read_text())


MEANT = [card for card in CARDS if card.needs(MODULE.CAPABILITIES)]
PLAYED = [card for card in MEANT if card.fault is None or card.fault in MyStage.faults]


@pytest.fixture
def stage() -> Iterator[MyStage]:
    with my_venue() as (venue, url):
        yield MyStage(module=MODULE, venue=venue, url=url)


@pytest.mark.parametrize("card", PLAYED, ids=lambda card: card.name)
async def test_the_example_plays_the_card(card: Card, stage: MyStage) -> None:
    await play(card, stage)


def test_what_the_example_does_not_play_needs_another_channel_for_updates() -> None:
    assert [card.number for card in MEANT if card not in PLAYED] == [74]


async def test_a_venue_that_forgets_does_not_play_the_card_of_restarts(stage: MyStage) -> None:
    (card,) = (card for card in PLAYED if card.number == 63)
    with pytest.raises(AssertionError, match="a key came again"):
        await play(card, replace(stage, forgets=True))


async def test_the_example_trades_on_after_a_restart(urls: Urls, stage: MyStage) -> None:
    def connect(context: IntegrationContext) -> BrokerAdapter:
        own = replace(
            context, secrets={"token": Secret("t")}, settings={"MY_BROKER_URL": stage.url}
        )
        adapter: BrokerAdapter = MODULE.MyBroker(own)
        return adapter

    capabilities = replace(MODULE.CAPABILITIES, name="paper", credential_fields=())
    integration = Integration("paper", capabilities, connect)
    metrics = Metrics()
    stage.venue.quote("AAPL", Decimal(99), Decimal(100), Decimal(1000))
    async with open_in_process(urls) as in_process:
        orders = []
        for _ in range(3):
            async with executing(in_process, integration=integration, metrics=metrics):
                orders.append(await in_process.create())
                await in_process.until_status(orders[-1], "FILLED")
        assert [(await in_process.order(order))["flags"] for order in orders] == [[], [], []]
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 30
        )
    (alerts,) = metrics.execution_alerts.collect()
    assert [
        sample for sample in alerts.samples if sample.name.endswith("_total") and sample.value
    ] == []


def test_a_trial_proves_the_example_by_its_setting(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: MyStage
) -> None:
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
    settings = settings_of(urls) | {"MY_BROKER_URL": stage.url, "MY_BROKER_URI": stage.url}
    stage.venue.quote("AAPL", Decimal(99), Decimal(100), Decimal(1000))
    with serving(tmp_path / "data", **settings) as platform:
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
        assert lines["look-up"].startswith("ok: by client order id: ACCEPTED (")
        assert lines["replace"].startswith("ok: to 1.01: NEW at 1.01 (")
        assert lines["cancel"].startswith("ok: CANCEL: CANCELLED (")
        assert lines["setting"] == f"ok: {PREFIX}MY_BROKER_URL is {stage.url}\n"
        checked = platform.run("doctor").stdout
        mistyped = f"{PREFIX}MY_BROKER_URI means nothing; did you mean {PREFIX}MY_BROKER_URL?"
        assert lines_of(checked)["settings"] == f"warning: {mistyped}\n"
    assert [order.state for order in stage.venue.orders] == ["cancelled"]


def test_the_example_is_an_integration() -> None:
    assert isinstance(MODULE.INTEGRATION, Integration)
    assert 'my_broker = "my_broker:INTEGRATION"' in EXAMPLE.read_text()
