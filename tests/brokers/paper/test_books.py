"""The books that a session keeps in memory are those of the tables."""

import asyncio
from uuid import uuid4

import pytest

from tests.brokers.paper.market import ACME, legs, named, terms
from tests.brokers.paper.venue import PaperSession, Venue, deadline
from trading_intents.brokers.paper.venue.batches import PaperVenue
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueRequest
from trading_intents.trading import ZERO

STEPS = (
    "buy 15 limit 101",
    "buy 3 limit 95 gtc with profit 110,loss 90",
    "short 2 limit 120",
    "buy 5 trail 2",
    "98x10 100x3",
    "sell 4 limit 110 gtc with or 96 gtc",
    "105x10 107x2 106x1",
    "94x10 95x10",
    "replace 0 buy 20 limit 96",
    "buy 2000000 limit 96",
    "replace 5 sell 4 limit 111 gtc",
    "cancel 5",
    "111x10 112x10",
    "99x10 121x10",
    "89x10 90x10",
)


async def do(venue: Venue, session: PaperSession, number: int, step: str) -> None:
    word, _, rest = step.partition(" ")
    if word in ("buy", "short", "sell"):
        text, _, linked = step.partition(" with ")
        asked = terms(text)
        name = f"c{number}"
        sent = named(asked, name, legs=legs(linked, asked, name))
        await session.broker.submit(sent, deadline())
    elif word == "replace":
        order, _, text = rest.partition(" ")
        await session.replace(f"c{number}", f"c{order}", text)
    elif word == "cancel":
        await session.cancel(f"c{number}", f"c{rest}")
    else:
        await venue.post(step)
        books = session.broker._books
        await session.broker._venue.take(VenueRequest(books=books, symbols=frozenset({ACME})))


def content(books: AccountBooks) -> tuple[object, ...]:
    orders = {symbol: book.orders for symbol, book in books.books.items()}
    return books.totals, dict(books.holdings), orders


async def test_after_each_batch_the_books_are_those_of_the_tables(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    monkeypatch.setattr(session.broker._market, "look", asyncio.Event().wait)
    other = PaperVenue(venue.context(account, venue.organization))
    rested = 0
    for number, step in enumerate(STEPS):
        await do(venue, session, number, step)
        books = session.broker._books
        read = AccountBooks(
            seed=books.seed,
            account_id=account,
            organization_id=venue.organization,
            on_rows=lambda *_: None,
        )
        await other.open(read)
        assert content(read) == content(books), step
        rested += len(books.working()) > 0
    assert books.present.events > len(STEPS)
    assert books.holdings[ACME].position != ZERO
    assert rested > len(STEPS) / 2
