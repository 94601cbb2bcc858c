"""The session on a real database: commands, the stream, look-ups, snapshots, and the market that
runs by itself."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from tests.brokers.paper.market import ACME, named, terms
from tests.brokers.paper.venue import (
    EVENTS,
    SETTINGS,
    Venue,
    add_organization,
    assert_books_balance,
    deadline,
    said,
)
from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.broker import PaperBroker
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperHolding,
    PostedQuote,
)
from trading_intents.brokers.paper.prices import walk_middle_cents
from trading_intents.brokers.paper.venue.model import VenueReply, VenueRequest
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    BrokerEvent,
    BrokerUnavailable,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
    Outcome,
)
from trading_intents.errors import OutcomeUnknown, Unavailable
from trading_intents.trading import Symbol

AAPL = Symbol("AAPL")


async def test_a_market_order_on_the_walk_is_filled_at_once(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    result = await session.submit("one", "buy 10 market", AAPL)
    assert (result.outcome, [event.kind for event in result.updates]) == (
        Outcome.ACKED,
        ["ACCEPTED", "FILL"],
    )
    streamed = [await session.event(), await session.event()]
    assert streamed == list(result.updates), "the stream and the answer have the same events"
    await assert_books_balance(venue.owner, account)


async def test_a_resting_order_on_the_walk_is_filled_when_it_comes_by(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    assert said((await session.submit("one", "buy 1500 market", AAPL)).updates[0]) == "accepted"
    assert await session.events(1) == ["accepted"]
    filled = Decimal(0)
    while filled < 1500:  # more than any tick shows: the rest waits for the next ones
        event = await session.event()
        assert isinstance(event, BrokerEvent)
        assert event.quantity is not None
        filled += event.quantity
    assert filled == 1500
    assert session.has_no_event()
    await assert_books_balance(venue.owner, account)


async def test_posted_quotes_are_each_worked_in_their_order(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await session.submit("one", "buy 10 limit 100")
    await session.submit("two", "buy 5 stop 105")
    assert await session.events(2) == ["accepted", "accepted"]
    for quote in ("98x10 100x4", "99x10 101x10", "98x10 99x6", "104x9 106x3", "90x9 91x2"):
        await venue.post(quote)
    assert await session.events(5) == [
        "fill 4@100",
        "fill 6@100",
        "triggered",
        "fill 3@106",
        "fill 2@91",
    ]
    await assert_books_balance(venue.owner, account)


async def test_a_quote_whose_signal_was_lost_is_worked_all_the_same(venue: Venue) -> None:
    await venue.post("99x10 101x10")
    session = await venue.open_session(uuid4())
    await session.submit("one", "buy 10 limit 100")
    await venue.owner.execute(
        "UPDATE paper_symbols SET number = 2 WHERE organization_id = $1", venue.organization
    )
    await venue.owner.execute(
        "INSERT INTO paper_quotes (organization_id, symbol, number, bid, ask, bid_size, ask_size)"
        " VALUES ($1, 'ACME', 2, 98, 99, 10, 10)",
        venue.organization,
    )
    assert await session.events(2) == ["accepted", "fill 10@100"]


async def test_a_quote_holds_for_its_organization_and_symbol_only(venue: Venue) -> None:
    await venue.post("9.99x10 10x10")
    other = await add_organization(venue.owner)
    ours = await venue.open_session(uuid4())
    theirs = await venue.open_session(uuid4(), other)
    assert said((await ours.submit("one", "buy 1 market")).updates[-1]) == "fill 1@10"
    for result in (
        await theirs.submit("one", "buy 1 market"),
        await ours.submit("two", "buy 1 market", AAPL),
    ):
        price = result.updates[-1].price
        assert price is not None
        assert price > 20, "the walk's"


async def test_from_the_first_posted_quote_on_there_are_no_other_prices(venue: Venue) -> None:
    session = await venue.open_session(uuid4())
    assert said((await session.submit("one", "buy 1 limit 1")).updates[-1]) == "accepted"
    await venue.post("2x10 3x10")
    await venue.post("0.5x10 0.6x10")
    assert await session.events(2) == ["accepted", "fill 1@1"]
    await venue.owner.execute(
        """
            UPDATE paper_quotes SET posted_at = posted_at - interval '16 seconds'
            WHERE organization_id = $1
        """,
        venue.organization,
    )
    result = await session.submit("two", "buy 1 market")
    assert [said(event) for event in result.updates] == ["accepted"], "an old quote: it waits"
    await venue.post("2x10 3x10")
    assert await session.events(2) == ["accepted", "fill 1@3"]


async def test_nothing_is_written_while_nothing_happens(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await session.submit("one", "buy 1 limit 1 gtc")
    await session.submit("two", "buy 1 limit 1 gtc", AAPL)
    assert await session.events(2) == ["accepted", "accepted"]
    query = (
        "SELECT xmin::text || xmax::text FROM paper_accounts WHERE account_id = $1"
        " UNION ALL SELECT xmin::text || xmax::text FROM paper_holdings WHERE account_id = $1"
    )
    before = await venue.owner.fetch(query, account)
    for _ in range(20):
        await venue.post("99x10 101x10")
    await session.broker._market.look()
    assert await venue.owner.fetch(query, account) == before, "neither written nor locked"
    await venue.post("1x1 1x1")
    assert await session.events(1) == ["fill 1@1"]
    assert await venue.owner.fetch(query, account) != before


async def test_orders_expire_by_the_databases_time(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await session.submit("one", "buy 1 limit 1")
    assert await session.events(1) == ["accepted"]
    await session.broker.close()
    await venue.owner.execute(
        """
        UPDATE paper_working SET state =
            (state::jsonb || jsonb_build_object('expires_at', now() - interval '1 second'))::json
        WHERE account_id = $1
        """,
        account,
    )
    snapshot = await (await venue.open_session(account)).broker.snapshot(
        await venue.value("SELECT now() - interval '1 s'")
    )
    assert [said(event) for event in snapshot.executions] == ["accepted", "expired day_ended"]


async def test_an_id_that_was_used_is_no_licence_to_send_again(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await session.submit("one", "buy 1 limit 1")
    again = await session.submit("one", "buy 1 limit 1")
    assert (again.outcome, again.code, again.updates) == (Outcome.UNKNOWN, DUPLICATE_ID, ())
    cancel = await session.cancel("one", "one")
    assert (cancel.outcome, cancel.code) == (Outcome.UNKNOWN, DUPLICATE_ID)
    assert await venue.journal(account) == ["SUBMIT one", "SUBMIT one", "CANCEL one"]
    assert (
        await venue.value("SELECT count(*) FROM paper_working WHERE account_id = $1", account) == 1
    )


async def test_commands_find_their_order_by_any_id_it_had(venue: Venue) -> None:
    await venue.post("99x10 101x10")
    session = await venue.open_session(uuid4())
    first = await session.submit("one", "buy 1 limit 1")
    assert (await session.replace("two", "one", "buy 2 limit 1")).outcome is Outcome.ACKED
    assert (await session.replace("three", "one", "buy 3 limit 1")).outcome is Outcome.ACKED
    cancelled = await session.cancel("x", None, broker_order_id=first.broker_order_id)
    assert (cancelled.outcome, cancelled.broker_order_id) == (Outcome.ACKED, first.broker_order_id)
    late = await session.cancel("y", "three")
    assert (late.outcome, late.code) == (Outcome.REJECTED, "too_late")
    unknown = await session.cancel("z", "nobody")
    assert (unknown.outcome, unknown.code) == (Outcome.REJECTED, "unknown_order")
    assert await session.events(6) == [
        *("accepted", "replaced", "replaced", "cancelled"),
        *("cancel_rejected too_late", "cancel_rejected unknown_order"),
    ]


async def test_a_look_up_finds_every_order_for_ever(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    first = (await session.submit("one", "buy 20 limit 102")).updates
    reported = list((await session.replace("two", "one", "buy 11 limit 102")).updates)
    assert reported[: len(first)] == list(first), "an answer has all events, wherever the stream is"
    refused = await session.submit("three", "sell 100 market")
    assert refused.outcome is Outcome.REJECTED
    await session.broker.close()
    session = await venue.open_session(account)
    for client_order_id in ("one", "two"):
        found = await session.broker.lookup(client_order_id, None, deadline())
        assert isinstance(found, OrderSnapshot)
        assert (found.client_order_id, found.quantity, list(found.events)) == (
            "two",
            Decimal(11),
            reported,
        )
    found = await session.broker.lookup("three", None, deadline())
    assert isinstance(found, OrderSnapshot)
    assert list(found.events) == list(refused.updates)
    assert (
        await session.broker.lookup("nobody", reported[0].broker_order_id, deadline()) == Absent()
    )
    assert isinstance(await session.broker.lookup("one", None, deadline(-1)), LookupUnknown)


async def test_a_snapshot_has_open_orders_executions_and_positions(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    start = await venue.value("SELECT clock_timestamp()")
    filled = await session.submit("one", "buy 4 market")
    rests = await session.submit("two", "buy 9 limit 101")
    await session.submit("three", "buy 1 limit 1")
    ended = await session.cancel("x", "three")
    snapshot = await session.broker.snapshot(start)
    (order,) = snapshot.open_orders
    assert (order.client_order_id, order.events) == ("two", rests.updates)
    assert {*filled.updates, *rests.updates, *ended.updates} <= set(snapshot.executions)
    assert len(snapshot.executions) == 6
    assert snapshot.positions is not None
    assert [(each.symbol, each.quantity) for each in snapshot.positions] == [(ACME, Decimal(10))]
    assert (await session.broker.snapshot(snapshot.taken_at)).executions == ()


async def test_a_ticket_that_is_too_old_is_not_sent(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    late = await session.submit("one", "buy 1 market", not_after=deadline(-0.001))
    assert late.outcome is Outcome.NOT_SENT
    result = await session.broker.submit(named(terms("buy 1 market"), "two"), deadline(0))
    assert result.outcome is Outcome.NOT_SENT
    assert await venue.journal(account) == []
    assert (
        await session.submit("one", "buy 1 market", not_after=deadline(60))
    ).outcome is Outcome.ACKED


@pytest.mark.parametrize(
    ("error", "outcome"), [(Unavailable(), Outcome.NOT_SENT), (OutcomeUnknown(), Outcome.UNKNOWN)]
)
async def test_a_database_that_goes_away_is_reported_as_the_outcome_that_it_means(
    venue: Venue, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: Outcome
) -> None:
    session = await venue.open_session(uuid4())

    def away(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(venue.database.worker, "transaction", away)
    monkeypatch.setattr(session.broker._venue._transactions, "transaction", away)
    assert (await session.submit("one", "buy 1 market")).outcome is outcome
    assert isinstance(await session.broker.lookup("one", None, deadline()), LookupUnknown)
    with pytest.raises(BrokerUnavailable):
        await session.broker.snapshot(datetime.now(UTC))
    with pytest.raises(BrokerUnavailable):
        await PaperBroker(venue.context(uuid4(), venue.organization)).open()


async def test_an_order_that_was_taken_without_an_answer_is_worked(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await venue.post("99x10 101x10")
    session = await venue.open_session(uuid4())
    broker = session.broker
    take = broker._venue.take

    async def unanswered(request: VenueRequest) -> VenueReply:
        monkeypatch.setattr(broker._venue, "take", take)
        on_rows = broker._books.on_rows
        broker._books.on_rows = lambda *_: None
        await take(request)
        broker._books.on_rows = on_rows
        broker._books.clear()  # the commit was all: nothing here knows of it
        raise OutcomeUnknown

    monkeypatch.setattr(broker._venue, "take", unanswered)
    assert (await session.submit("one", "buy 10 limit 100")).outcome is Outcome.UNKNOWN
    assert await session.events(1) == ["accepted"]
    await venue.post("99x10 100x10")
    assert await session.events(1) == ["fill 10@100"]


async def test_commands_that_wait_for_their_account_hold_one_connection(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    async with venue.owner.transaction():
        await venue.owner.execute(
            "SELECT FROM paper_accounts WHERE account_id = $1 FOR UPDATE", account
        )
        asked = [named(terms("buy 1 market"), f"c{n}") for n in range(20)]
        waiting = [
            asyncio.create_task(session.broker.submit(each, deadline(0.5))) for each in asked
        ]
        assert await venue.database.worker.healthy()
        outcomes = [(await each).outcome for each in waiting]
        assert await venue.database.worker.healthy()
    assert outcomes == [Outcome.NOT_SENT] * 20
    assert (await session.submit("later", "buy 1 market")).outcome is Outcome.ACKED
    assert await venue.journal(account) == ["SUBMIT later"]


async def test_a_closed_session_sends_nothing_and_its_stream_has_ended(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await session.broker.close()
    assert (await session.submit("one", "buy 1 market")).outcome is Outcome.NOT_SENT
    assert await session.event() is None
    assert await venue.journal(account) == []


async def test_two_sessions_of_one_account_cannot_break_its_book(venue: Venue) -> None:
    """Leases overlap when a worker was paused."""
    account = uuid4()
    await venue.post("99x1000 101x1000")
    sessions = [await venue.open_session(account), await venue.open_session(account)]
    results = await asyncio.gather(
        *(sessions[n % 2].submit(f"c{n // 2}", f"buy {n // 2 + 1} market") for n in range(40))
    )
    outcomes = [result.outcome for result in results]
    assert (outcomes.count(Outcome.ACKED), outcomes.count(Outcome.UNKNOWN)) == (20, 20)
    for session in sessions:
        session.broker._check_soon()
        assert sorted(await session.events(40)).count("accepted") == 20
    await assert_books_balance(venue.owner, account)


async def test_a_run_can_be_replayed_from_what_is_recorded(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await session.submit("a", "buy 15 limit 101")
    await venue.post("98x10 100x3")
    await session.submit("b", "buy 3 stop 103")
    await venue.post("101x10 104x2 103x1")
    await session.replace("c", "a", "buy 14 limit 104")
    await session.submit("d", "sell 3 market ioc")
    await session.cancel("e", "b")
    await session.cancel("f", "b")
    rows = await venue.owner.fetch(
        f"SELECT * FROM ({EVENTS}) AS e WHERE account_id = $1 ORDER BY seq", account
    )
    quotes = await venue.owner.fetch(
        """
        SELECT posted_at AS at, symbol, number, bid, ask, bid_size, ask_size, last, last_size
        FROM paper_quotes WHERE organization_id = $1 ORDER BY number
        """,
        venue.organization,
    )
    commands = await venue.owner.fetch(
        "SELECT * FROM paper_journal WHERE account_id = $1 AND command <> '' ORDER BY seq", account
    )
    start = PaperAccount(cash=Decimal(SETTINGS["PAPER_CASH"]))
    book = OrderBook(
        seed=int(SETTINGS["PAPER_SEED"]),
        account_id=str(account),
        symbol=ACME,
        account=start,
        holding=PaperHolding(),
        orders={},
    )
    for row in sorted([*quotes, *commands], key=lambda row: row["at"]):
        replay(book, row)
    replayed = [
        (str(h.event.kind), h.event.exec_id, h.event.quantity, h.event.price) for h in book.events
    ]
    assert len(replayed) > 10
    assert replayed == [
        (row["kind"], row["exec_id"], row["quantity"], row["price"]) for row in rows
    ]


def replay(book: OrderBook, row: asyncpg.Record) -> None:
    if row.get("bid"):
        book.feed(PostedQuote(**row))
        return
    asked = msgspec.json.decode(row["ticket"], type=OrderTicket)
    book.execute(row["command"], book.orders.get(row["number"]), asked, row["at"])


async def test_the_walk_is_asked_only_when_it_can_have_come_near(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resting orders cost by their distance from the market, not by the ticks that went by while
    nobody looked."""
    account = uuid4()
    symbols = 50
    session = await venue.open_session(account)
    for number in range(symbols):
        assert (
            await session.submit(f"c{number}", "buy 1 limit 1 gtc", Symbol(f"S{number}"))
        ).outcome is Outcome.ACKED
    await session.broker.close()
    await venue.owner.execute(
        "UPDATE paper_holdings SET number = number - 1000 WHERE account_id = $1", account
    )
    asked = Counter[str]()

    def counted(seed: int, symbol: Symbol, tick: int) -> int:
        asked[symbol] += 1
        return walk_middle_cents(seed, symbol, tick)

    monkeypatch.setattr("trading_intents.brokers.paper.book.matching.walk_middle_cents", counted)
    session = await venue.open_session(account)
    for _ in range(20):
        await session.broker._market.look()
    assert sum(asked.values()) <= 4 * symbols
    assert len((await session.broker.snapshot(datetime.now(UTC))).open_orders) == symbols


async def test_an_account_has_so_many_working_orders_and_no_more(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    session.broker._venue._max_working_orders = 3
    for number in range(3):
        assert (await session.submit(f"c{number}", "buy 1 limit 1")).outcome is Outcome.ACKED
    refused = await session.submit("c3", "buy 1 limit 1")
    assert (refused.outcome, refused.code) == (Outcome.REJECTED, "too_many_working_orders")
    assert (await session.cancel("x", "c0")).outcome is Outcome.ACKED
    assert (await session.submit("c4", "buy 1 limit 1")).outcome is Outcome.ACKED


async def test_a_look_at_nothing_new_fills_no_order_from_quotes_of_before_it(venue: Venue) -> None:
    """A check that ran beside a command asks for no symbol: it works no book, shows none the walk,
    and the next request feeds no quote that the order's acceptance had seen."""
    account = uuid4()
    session = await venue.open_session(account)
    for bid in ("110x50 110.05x50", "90x50 90.05x50", "100x50 100.05x50"):
        await venue.post(bid)
    await session.submit("rests", "buy 3 limit 95")
    assert await session.events(1) == ["accepted"]
    books = session.broker._books
    for symbols in (frozenset[Symbol](), frozenset({ACME})):
        await session.broker._venue.take(VenueRequest(books=books, symbols=symbols))
    await venue.post("100x50 100.05x50")
    await session.broker._venue.take(VenueRequest(books=books, symbols=frozenset({ACME})))
    [order] = books.books[ACME].working()
    assert order.filled == 0
    assert books.books[ACME].holding.posted_number == 4
    assert session.has_no_event()


async def test_an_order_is_filled_by_no_quote_that_it_found(venue: Venue) -> None:
    """The order itself knows which quotes came before it, whatever the holding's number says."""
    account = uuid4()
    session = await venue.open_session(account)
    for bid in ("90x50 90.05x50", "100x50 100.05x50"):
        await venue.post(bid)
    await session.submit("rests", "buy 3 limit 95")
    books = session.broker._books
    book = books.books[ACME]
    book.holding = msgspec.structs.replace(book.holding, number=0)
    await session.broker._venue.take(VenueRequest(books=books, symbols=frozenset({ACME})))
    [order] = books.books[ACME].working()
    assert order.filled == 0


async def test_a_cancel_that_comes_with_the_fill_is_too_late(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is read before the batch's own transaction works the quote that fills it."""
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await session.submit("one", "buy 10 limit 100")
    monkeypatch.setattr(session.broker._market, "look", asyncio.Event().wait)
    await venue.post("99x10 100x10")
    late = await session.cancel("x", "one")
    assert (late.outcome, late.code) == (Outcome.REJECTED, "too_late")
    assert [said(event) for event in late.updates][1:] == [
        "fill 10@100",
        "cancel_rejected too_late",
    ]
    await assert_books_balance(venue.owner, account)
