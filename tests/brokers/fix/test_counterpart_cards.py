"""The cards at venues that nobody here wrote: QuickFIX's examples executor and ordermatch. Each
card has an account, a symbol and a session of its own at one program; what a program cannot do is
named."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace as changed

from tests.brokers.fix.counterparts import Counterpart, counterpart, soon
from tests.brokers.fix.orders import a_ticket
from tests.brokers.fix.venue import Connector, write_profile
from tests.conftest import Urls
from trading_intents.brokers.fix.broker import FixBroker, read_venue
from trading_intents.brokers.port import BrokerAdapter, Capabilities, OrderTicket
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, StageFault, play
from trading_intents.trading import OrderSide, Symbol

DOCUMENT = Path(__file__).parents[3] / "docs" / "brokers.md"
# Of both programs: limit orders for the day, no replace and no status.
PROFILE = {
    "times_in_force.Market": [],
    "times_in_force.Stop": [],
    "times_in_force.StopLimit": [],
} | {
    "times_in_force.Limit": ["DAY"],
    "native_replace": False,
    "lookup": "none",
}
FAULTS = frozenset({StageFault.DROP_ANSWER, StageFault.LOSE_COMMAND, StageFault.BREAK_LINK})
RESTS_NONE = "fills every order at once"
NO_ACCEPT = "does not acknowledge an order before its fill"
CANNOT = {
    "executor": dict.fromkeys((12, 14, 15, 22, 23, 29, 40, 41, 42, 45, 46, 60, 65, 70), RESTS_NONE)
    | {63: NO_ACCEPT},
    "ordermatch": {
        22: "knows no money",
        23: "takes an id twice",
        44: "leaves a wrong cancel unanswered",
    },
}
COLUMNS = {"executor 4.2": ("executor", "fix42"), "executor 4.4": ("executor", "fix44")} | {
    "ordermatch 4.2": ("ordermatch", "fix42")
}


def capabilities_of(folder: Path, version: str) -> Capabilities:
    path = write_profile(folder, 1, f"generic{version.removeprefix('fix')}", **PROFILE)
    return read_venue(path).capabilities(version)


def meant(capabilities: Capabilities) -> Iterator[Card]:
    return (
        card
        for card in CARDS
        if card.needs(capabilities) and (card.fault is None or card.fault in FAULTS)
    )


@dataclass
class Maker:
    """Makes the market by orders of its own, from another account."""

    broker: FixBroker
    resting: dict[Symbol, list[OrderTicket]] = field(default_factory=dict)

    async def quote(self, symbol: Symbol, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        for each in self.resting.get(symbol, []):
            cancel = changed(
                each,
                client_order_id=a_ticket().client_order_id,
                orig_client_order_id=each.client_order_id,
            )
            await self.broker.cancel(cancel, soon(1))  # one that is filled is not answered
        terms = changed(a_ticket(), symbol=symbol, quantity=size)
        buy = changed(terms, side=OrderSide.BUY, limit_price=bid)
        sell = changed(
            terms, client_order_id=a_ticket().client_order_id, side=OrderSide.SELL, limit_price=ask
        )
        self.resting[symbol] = [buy, sell]
        for each in self.resting[symbol]:
            await self.broker.submit(each, soon())


@dataclass(kw_only=True)
class CounterpartStage:
    connector: Connector
    maker: Maker | None  # None: the venue fills whatever comes
    symbol: Symbol
    relay: "FaultyRelay"
    faults: frozenset[StageFault] = FAULTS

    def __post_init__(self) -> None:
        self.capabilities = self.connector.integration().capabilities

    async def connect(self) -> BrokerAdapter:
        return self.connector.connect()

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        if self.maker:
            await self.maker.quote(self.symbol, bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        self.relay.fault = fault

    async def book(self) -> None:
        """These programs show none."""


@dataclass
class FaultyRelay:
    """Stands between one session and the program. A fault happens to the next order."""

    socket: Path
    fault: StageFault | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_venue, to_venue = await asyncio.open_unix_connection(self.socket)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._forward(reader, to_venue, writer), self._forward(from_venue, writer)
        )

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        client: asyncio.StreamWriter | None = None,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                is_command = any(b"\x0135=%c\x01" % each in data for each in b"DFG")
                fault = self.fault if client and is_command else None
                self.fault = None if fault else self.fault
                if fault is not StageFault.LOSE_COMMAND:
                    to.write(data)
                    await to.drain()
                if fault in (StageFault.DROP_ANSWER, StageFault.BREAK_LINK) and client:
                    client.transport.abort()
        to.close()


@contextlib.asynccontextmanager
async def staged(
    program: Counterpart, client: str, symbol: Symbol, folder: Path, maker: Maker | None
) -> AsyncIterator[CounterpartStage]:
    relay = FaultyRelay(program.socket)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    own = {
        "client": client,
        "port": server.sockets[0].getsockname()[1],
        "account_id": uuid4(),
        "folder": folder,
    }
    connector = replace(program.connector, **own, more=dict(PROFILE), shared={})
    try:
        yield CounterpartStage(connector=connector, maker=maker, symbol=symbol, relay=relay)
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
async def test_a_counterpart_plays_the_cards_that_are_meant_for_it(
    tenants_database: Urls, tmp_path: Path, column: str
) -> None:
    name, version = COLUMNS[column]
    wanted = [
        card
        for card in meant(capabilities_of(tmp_path, version))
        if card.number not in CANNOT[name]
    ]
    clients = {card: f"{name}-{version}-{card.number}" for card in wanted}
    async with counterpart(
        name, version, tenants_database, tmp_path, tuple(clients.values())
    ) as program:
        maker = None if name == "executor" else Maker((await program.open())[0])

        async def one(card: Card) -> tuple[str, str]:
            folder = tmp_path / str(card.number)
            folder.mkdir()
            try:
                async with staged(
                    program, clients[card], Symbol(f"S{card.number}"), folder, maker
                ) as stage:
                    await play(card, stage)
            except AssertionError as error:
                return card.name, str(error) or "an assertion"
            return card.name, ""

        played = await asyncio.gather(*map(one, wanted))
        if maker:
            await maker.broker.close()
    assert {card: error for card, error in played if error} == {}
    assert len(played) == (6 if name == "executor" else 18)


def test_the_documents_show_which_cards_the_counterparts_play(tmp_path: Path) -> None:
    lines = [
        "".join(["| Card |", *(f" {column} |" for column in COLUMNS)]),
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    columns = {
        column: set(meant(capabilities_of(tmp_path, version)))
        for column, (_, version) in COLUMNS.items()
    }
    for card in CARDS:
        if not any(card in each for each in columns.values()):
            continue
        marks = [
            CANNOT[COLUMNS[column][0]].get(card.number, "yes") if card in columns[column] else "-"
            for column in columns
        ]
        lines.append(f"| {card.name} | {' | '.join(marks)} |")
    assert "\n".join(lines) in DOCUMENT.read_text()
