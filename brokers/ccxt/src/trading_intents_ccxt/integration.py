"""The integrations of this package, one for each venue of the table that an operator chose."""

from collections.abc import Iterator, Mapping
from functools import partial

from trading_intents.brokers.port import Integration, Integrations, Setting
from trading_intents.brokers.rest_client import url_setting
from trading_intents.trading import Environment
from trading_intents_ccxt.session import CcxtBroker
from trading_intents_ccxt.venues import VENUES, Venue

CHOSEN = "CCXT_VENUES"


def _settings() -> Iterator[Setting]:
    offered = ",".join(VENUES)
    yield Setting(
        name=CHOSEN, meaning="The venues to offer, by ccxt's names of them.", default=offered
    )
    for venue in VENUES.values():
        for environment, url in (
            (Environment.PAPER, venue.paper_url),
            (Environment.LIVE, venue.url),
        ):
            meaning = f"Where {venue.id} is for {environment} accounts: https, or http on loopback."
            yield url_setting(venue.setting(environment), meaning, url)


def make_integrations(settings: Mapping[str, str]) -> Iterator[Integration]:
    """A venue that is not in the table is refused by name, after the others are made."""
    chosen = [name.strip() for name in settings[CHOSEN].split(",") if name.strip()]
    for name in chosen:
        if name in VENUES:
            yield integration_of(VENUES[name])
    if strangers := [name for name in chosen if name not in VENUES]:
        raise ValueError(
            f"{CHOSEN}: {', '.join(strangers)}: no simulator proves the adapter there; "
            f"offered are {', '.join(VENUES)}"
        )


def integration_of(venue: Venue) -> Integration:
    return Integration(venue.name, venue.capabilities, partial(CcxtBroker, venue))


INTEGRATIONS = Integrations(make_integrations, tuple(_settings()))
