"""Brokers come from installed packages: a good one is served, a broken one is left out and stops
nothing."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

from tests.brokers.fix.venue import write_profile
from tests.conftest import Urls
from tests.platform import serving
from trading_intents.brokers.fix.broker import read_venue
from trading_intents.brokers.port import Capabilities
from trading_intents.brokers.registry import Registry, broker_commands, installed_brokers
from trading_intents.errors import StartupRefused
from trading_intents.telemetry import make_log
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card

GOOD = """
from dataclasses import replace
from tests.installed.remote_broker import CAPABILITIES, connect
from trading_intents.brokers.port import Capabilities, Integration

def named(name, **changes):
    return Integration(name, replace(CAPABILITIES, name=name, **changes), connect)

GOOD = named("acme")
OTHER = named("other")
PAPER = named("paper")
WRONG_TYPE = named("wrong_type", routes=("NOWHERE",))
NUMBER = 7
COMMANDS = {"log": named}

def several(settings):
    yield named("first")
    yield named("second")
    raise ValueError(f"the third is wrong: {settings}")
"""
BROKEN = {
    "missing_module": "no_such_module:X",
    "missing_name": "third_party:NOTHING",
    "number": "third_party:NUMBER",
    "misnamed": "third_party:OTHER",
    "wrong_type": "third_party:WRONG_TYPE",
    "crashing": "crashing:X",
    "leaving": "leaving:X",
    "paper": "third_party:PAPER",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of installed packages, with one that names good and broken integrations."""
    (tmp_path / "third_party.py").write_text(GOOD)
    (tmp_path / "crashing.py").write_text("raise RuntimeError('on purpose')")
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(3)")
    about = tmp_path / "a_third_party-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-third-party\nVersion: 1.0\n")
    points = {"acme": "third_party:GOOD", "several": "third_party:several"} | BROKEN
    (about / "entry_points.txt").write_text(
        "[trading_intents.brokers]\n"
        + "".join(f"{name} = {value}\n" for name, value in points.items())
        + "[trading_intents.broker_commands]\nacme = third_party:COMMANDS\ncrashing = crashing:X\n"
        + "fix = third_party:COMMANDS\n"
    )
    return tmp_path


def discover() -> tuple[Registry, dict[str, str]]:
    """The brokers that are found, and the reasons why others were left out."""
    out = StringIO()
    registry = installed_brokers(make_log("error", out), lambda name: {f"{name.upper()}_X": "1"})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return registry, {line["broker"]: line["reason"] for line in lines}


def test_our_own_brokers_are_installed_ones() -> None:
    """Only brokers that can trade are listed: these, and those that a package adds."""
    registry, left_out = discover()
    assert [each.name for each in registry.all()] == ["alpaca", "paper"]
    assert left_out == {}
    assert registry.find("nonsense") is None
    assert registry.integration("nonsense") is None


def test_a_broken_integration_is_logged_and_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = installed_brokers(make_log("error")).find("paper")
    monkeypatch.syspath_prepend(str(folder))
    registry, left_out = discover()
    assert left_out.keys() == BROKEN.keys() | {"several"}
    assert "the third is wrong: {'SEVERAL_X': '1'}" in left_out["several"]
    assert "on purpose" in left_out["crashing"]
    assert [each.name for each in registry.all()] == ["acme", "alpaca", "first", "paper", "second"]
    assert registry.find("paper") == ours, "another's broker replaced ours"
    integration = registry.integration("acme")
    assert integration
    assert integration.capabilities == registry.find("acme")


def test_commands_of_a_broken_integration_are_logged_and_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = broker_commands(make_log("error"))["fix"]
    out = StringIO()
    monkeypatch.syspath_prepend(str(folder))
    found = broker_commands(make_log("error", out))
    assert {name: list(commands) for name, commands in found.items()} == {
        "fix": ["log", "reset"],
        "acme": ["log"],
    }
    assert found["fix"] is ours, "another's command replaced ours"
    assert [json.loads(line)["broker"] for line in out.getvalue().splitlines()] == [
        "crashing",
        "fix",
    ]


def test_an_installation_without_our_own_broker_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trading_intents.brokers.registry.entry_points", lambda group: ())
    with pytest.raises(StartupRefused, match="install it again"):
        installed_brokers(make_log("error"))


async def test_an_installed_package_adds_a_broker(
    folder: Path, tmp_path: Path, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    document = {
        "organizations": [
            {
                "external_id": "o",
                "api_keys": [
                    {"name": "k", "environment": "paper", "permissions": ["account:edit"]}
                ],
            }
        ]
    }
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    with serving(tmp_path / "data", **settings) as platform:
        (organization,) = platform.apply(document)["organizations"]
        headers = {"x-api-key": organization["api_keys"][0]["api_key"]}
        brokers = platform.client.get("/v1/brokers", headers=headers).json()["data"]
        names = [broker["name"] for broker in brokers]
        assert names == ["acme", "alpaca", "first", "paper", "remote", "second"]
        for broker, status in (("acme", 201), ("misnamed", 422)):
            body = {"name": "a", "broker": broker, "environment": "paper"}
            assert (
                platform.client.post("/v1/accounts", json=body, headers=headers).status_code
                == status
            )
    assert sum("broker left out" in line for line in platform.logs) == len(BROKEN) + 1


def test_the_documents_show_what_each_broker_plays(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text()
    versions = {"fix 4.2": "generic42", "fix 4.4": "generic44"}
    venues = [
        read_venue(write_profile(tmp_path, 1, profile)).capabilities(n)
        for n, profile in versions.items()
    ]
    assert support_matrix(CARDS, [*installed_brokers(make_log("error")).all(), *venues]) in text


def support_matrix(cards: Sequence[Card], brokers: Sequence[Capabilities]) -> str:
    """A table in Markdown: which card is meant for which broker."""
    head = ["| Card |", *(f" {broker.name} |" for broker in brokers)]
    lines = ["".join(head), "|---" * (len(brokers) + 1) + "|"]
    for card in cards:
        marks = (" yes |" if card.needs(broker) else " - |" for broker in brokers)
        lines.append(f"| {card.name} |" + "".join(marks))
    return "\n".join(lines)
