"""Brokers come from installed packages: a good one is served, a broken one is left out and stops
nothing."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path

import pytest

from tests.brokers.fix.venue import write_profile
from tests.conftest import Urls
from tests.platform import environment, serving
from trading_intents.brokers.fix.broker import read_venue
from trading_intents.brokers.port import ENTRY_POINT_GROUP, Capabilities
from trading_intents.brokers.registry import (
    Registry,
    broker_command_groups,
    installed_brokers,
    unknown_settings,
)
from trading_intents.config import PREFIX, owner_of
from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card

GOOD = """
from dataclasses import replace
from tests.installed.remote_broker import CAPABILITIES, connect
from trading_intents.brokers.port import Capabilities, Integration, Integrations, Setting

def named(name, **changes):
    return Integration(name, replace(CAPABILITIES, name=name, **changes), connect)

GOOD = named("acme")
OTHER = named("other")
PAPER = named("paper")
WRONG_TYPE = named("wrong_type", routes=("NOWHERE",))
NUMBER = 7
COMMANDS = {"log": named}

def made(settings):
    yield named("first")
    yield replace(named("second"), settings=(Setting(name="SECOND_URL", meaning="Its own."),))
    raise ValueError(f"the third is wrong: {settings}")

SETTINGS = (
    Setting(name="SEVERAL_X", meaning="A number.", default="7"),
    Setting(name="SEVERAL_TOKEN", meaning="A secret.", is_secret=True),
)
several = Integrations(made, SETTINGS)
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


def discover(**variables: str) -> tuple[Registry, dict[str, str]]:
    """The brokers that are found, and the reasons why others were left out."""
    out = StringIO()
    secrets = {name: Secret(value) for name, value in variables.items()}
    registry = installed_brokers(make_log("error", out), secrets)
    registry.all()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return registry, {line["broker"]: line["reason"] for line in lines}


def run_anew(environ: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """By an interpreter that has imported nothing, nor looked for packages."""
    arguments = [sys.executable, "-m", "trading_intents", *command]
    return subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)


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
    registry, left_out = discover(SEVERAL_X="1")
    assert left_out.keys() == BROKEN.keys() | {"several"}
    assert "the third is wrong: {'SEVERAL_X': '1', 'SEVERAL_TOKEN': ''}" in left_out["several"]
    assert "on purpose" in left_out["crashing"]
    assert [each.name for each in registry.all()] == ["acme", "alpaca", "first", "paper", "second"]
    assert registry.find("paper") == ours, "another's broker replaced ours"
    integration = registry.integration("acme")
    assert integration
    assert integration.capabilities == registry.find("acme")


def test_commands_are_loaded_when_one_is_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = broker_command_groups(make_log("error"))["fix"]
    out = StringIO()
    monkeypatch.syspath_prepend(str(folder))
    found = broker_command_groups(make_log("error", out))
    assert set(found) == {"fix", "acme", "crashing"}
    assert found["fix"] == ours, "another's command replaced ours"
    assert [json.loads(line)["broker"] for line in out.getvalue().splitlines()] == ["fix"]
    monkeypatch.setenv("PYTHONPATH", str(folder))
    environ = environment(tmp_path / "data", {})
    assert "Sessions with CRASHING venues" in run_anew(environ, "--help").stdout
    broken = run_anew(environ, "crashing", "log")
    assert broken.returncode == 1
    assert "crashing:X cannot be loaded: RuntimeError: on purpose" in broken.stderr
    assert "reset" in run_anew(environ, "fix", "--help").stdout


def test_an_integration_is_imported_when_it_is_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("third_party", "crashing"):
        (folder / f"{module}.py").write_text("import sys; print('imported', file=sys.stderr)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    settings = {"ACME_URL": "https://acme", "ACNE_URL": "https://acme"}
    done = run_anew(environment(tmp_path / "data", settings), "admin", "--help")
    assert done.returncode == 0, done
    done = run_anew(environment(tmp_path / "data", settings), "vault", "rotate")
    assert "imported" not in done.stderr, done
    assert "ACNE_URL" in done.stderr
    assert "ACME_URL" not in done.stderr, "it is for the integration to know"


def test_settings_go_to_the_integration_that_declares_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    variables = {"SEVERAL_TOKEN": "t", "SECOND_URL": "u", "ACME_URL": "a", "PAPER_SEED": "9"}
    registry, _ = discover(**variables)
    assert registry.settings_of("first") == {"SEVERAL_X": "7", "SEVERAL_TOKEN": "t"}
    shared = registry.settings_of("first")
    assert registry.settings_of("second") == {"SECOND_URL": "u"} | shared
    # Passed on, and called unknown, as it may be mistyped.
    assert registry.settings_of("acme") == {"ACME_URL": "a"}
    assert registry.settings_of("paper") == {
        "PAPER_CASH": "1000000",
        "PAPER_MAX_OPEN_ORDERS": "1000",
        "PAPER_SEED": "9",
    }


def test_a_setting_that_its_integration_does_not_declare_is_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    variables = ("SEVERAL_X", "SEVERAL_Y", "ACME_URL", "PAPER_SEDE", "HTTP_PORT", "CRASHING_X")
    assert unknown_settings(dict.fromkeys(variables, Secret("hidden"))) == {
        f"{PREFIX}SEVERAL_Y": f"{PREFIX}SEVERAL_X",
        f"{PREFIX}ACME_URL": "",
        f"{PREFIX}PAPER_SEDE": f"{PREFIX}PAPER_SEED",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAPER_SEED", "many"),
        ("PAPER_CASH", "-1"),
        ("PAPER_MAX_OPEN_ORDERS", "1.5"),
        ("PAPER_SEED", "٨٠"),
        ("ALPACA_PAPER_URL", "http://alpaca.example"),
        ("ALPACA_LIVE_URL", "https://user:hidden@alpaca.example"),
    ],
)
def test_a_wrong_setting_of_ours_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(StartupRefused) as caught:
        discover(**{name: value})
    assert caught.value.detail.startswith(f"{PREFIX}{name}: ")
    assert value not in caught.value.detail


def test_every_setting_of_ours_says_what_it_means() -> None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        for each in point.load().settings:
            assert each.meaning.endswith(".")
            assert each.name.startswith(f"{point.name.upper()}_")


def test_integrations_names_may_begin_with_each_others() -> None:
    assert owner_of("MY_BROKER_URL", ["my", "my_broker"]) == "my_broker"
    assert owner_of("MY_URL", ["my", "my_broker"]) == "my"
    assert owner_of("MYSELF", ["my", "my_broker"]) is None


def test_an_installation_without_our_own_broker_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trading_intents.brokers.registry.entry_points", lambda group: ())
    with pytest.raises(StartupRefused, match="install it again"):
        installed_brokers(make_log("error")).all()


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
