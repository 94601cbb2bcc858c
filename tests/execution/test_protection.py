"""An entry is unprotected while its position is more than all working orders that close it, and
every reader learns of a change from the transaction that made it."""

from uuid import uuid4

import pytest

from tests.execution.api_only_platform import ApiOnlyPlatform
from tests.execution.linked_orders import group_orders
from tests.execution.recorded_orders import Books, Sent, fill, reported
from trading_intents.brokers.port import EventKind
from trading_intents.ids import OrganizationId
from trading_intents.orders.events import retained_orders
from trading_intents.stream import trading_pb2
from trading_intents.trading import EXITS, Leg

E = EventKind


async def bare_entry(books: Books, side: str = "BUY") -> Sent:
    """Bought (or sold) 100, and then its exits were cancelled; nothing else closes them."""
    closes = "SELL" if side == "BUY" else "BUY"
    entry = await books.create("100", limit="10", side=side)
    exits = {leg: await books.create("100", limit="20", side=closes) for leg in EXITS}
    legs = {leg: sent.order_id for leg, sent in exits.items()}
    await group_orders(books.owner, entry.order_id, legs)
    await books.record(*(reported(E.ACCEPTED, each) for each in (entry, *exits.values())))
    await books.record(fill(entry, uuid4().hex, "100"))
    await books.record(*(reported(E.CANCELLED, each) for each in exits.values()))
    await books.wait_until_uncovered()
    return entry


async def flagged_entry(books: Books, side: str = "BUY") -> Sent:
    entry = await bare_entry(books, side)
    await books.record(reported(E.STATUS, entry, key=uuid4().hex))
    assert await books.unprotected() == {str(entry.order_id)}
    return entry


async def is_unprotected(books: Books) -> bool:
    return bool(await books.unprotected())


@pytest.mark.parametrize(("side", "closes"), [("BUY", "SELL"), ("SELL_SHORT", "BUY")])
async def test_it_ends_and_begins_with_what_works_to_close_the_position(
    books: Books, side: str, closes: str
) -> None:
    entry = await flagged_entry(books, side)
    version = (await books.order(entry))["version"]
    stop = await books.create("100", limit="9", side=closes)
    assert await is_unprotected(books), "the broker does not work it yet"
    await books.record(reported(E.ACCEPTED, stop, broker_order_id="b1"))
    assert not await is_unprotected(books)
    assert (await books.order(entry))["version"] == version + 1
    smaller = await books.replace(stop, "60", limit="9")
    assert not await is_unprotected(books), "the version before still works"
    await books.record(reported(E.REPLACED, smaller, replaces=stop.client_order_id))
    assert await is_unprotected(books)
    larger = await books.replace(stop, "100", limit="9")
    await books.record(reported(E.REPLACED, larger, replaces=smaller.client_order_id))
    assert not await is_unprotected(books)
    await books.record(fill(larger, "f1", "40"))
    assert not await is_unprotected(books), "60 are left of both"
    await books.cancel(stop)
    assert not await is_unprotected(books), "a pending cancel works"
    recorded = await books.record(reported(E.CANCELLED, larger))
    assert await is_unprotected(books)
    assert [
        each.row.order_id for each in recorded.orders.values() if each.is_newly_unprotected
    ] == [str(entry.order_id)]


async def test_a_pair_covers_a_position_once(books: Books) -> None:
    await flagged_entry(books)
    limit = await books.create("60", limit="12", side="SELL")
    stop = await books.create("60", limit="9", side="SELL")
    await group_orders(books.owner, limit.order_id, {Leg.ONE_CANCELS_OTHER: stop.order_id})
    await books.record(reported(E.ACCEPTED, limit), reported(E.ACCEPTED, stop))
    assert await is_unprotected(books), "the one or the other sells 60 of 100"
    rest = await books.create("40", limit="12", side="SELL")
    await books.record(reported(E.ACCEPTED, rest))
    assert not await is_unprotected(books)


async def test_it_ends_for_good_once_the_position_is_closed(books: Books) -> None:
    entry = await flagged_entry(books)
    close = await books.create("100", side="SELL")
    await books.record(reported(E.ACCEPTED, close), fill(close, "f1", "100"))
    assert not await is_unprotected(books)
    assert (await books.order(entry))["uncovered_since"] is None
    more = await books.create("30")
    await books.record(fill(more, "f2", "30"))
    await books.wait_until_uncovered()
    await books.record(reported(E.STATUS, more, key="again"))
    assert not await is_unprotected(books), "what the entry bought is sold"


async def test_it_ends_where_the_position_turns_round(books: Books) -> None:
    await flagged_entry(books)
    turned = await books.create("150", side="SELL")
    await books.record(fill(turned, "f1", "150"))
    assert not await is_unprotected(books)


async def test_one_that_others_cover_after_five_seconds_is_not_shown(books: Books) -> None:
    entry = await bare_entry(books)
    stop = await books.create("100", limit="9", side="SELL")
    await books.record(reported(E.ACCEPTED, stop))
    version = (await books.order(entry))["version"]
    await books.record(reported(E.STATUS, entry, key="again"))
    assert not await is_unprotected(books)
    assert (await books.order(entry))["version"] == version
    await books.record(reported(E.EXPIRED, stop))
    assert await is_unprotected(books)


async def test_a_fee_in_the_symbol_itself_counts(books: Books) -> None:
    await flagged_entry(books)
    stop = await books.create("99", limit="9", side="SELL")
    await books.record(reported(E.ACCEPTED, stop))
    assert await is_unprotected(books)
    await books.record(reported(E.FEE, None, "fee/1", symbol="AAPL", quantity="1"))
    assert not await is_unprotected(books), "99 are left, and 99 work"


async def test_another_symbol_and_account_change_nothing(books: Books) -> None:
    await flagged_entry(books)
    other = await books.create("100", limit="9", side="SELL", symbol="MSFT")
    await books.record(reported(E.ACCEPTED, other))
    assert await is_unprotected(books)


async def test_a_new_subscriber_is_shown_it(books: Books) -> None:
    entry = await flagged_entry(books)
    flags = {}
    async with books.database.worker.transaction(read_only=True) as tx:
        organization = OrganizationId(books.organization)
        async for page in retained_orders(tx, organization, None, None):
            for event in page:
                order = trading_pb2.TradingEvent.FromString(event.payload).broker_order
                flags[order.order_id] = list(order.flags)
    assert flags.pop(str(entry.order_id)) == ["unprotected"]
    assert list(flags.values()) == [[], []]


async def test_lists_and_reads_show_it_and_find_it(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    entry = await flagged_entry(shown)
    (account,) = shown.accounts
    (found,) = api_platform.pages(account, "orders", flag="unprotected")
    assert found == api_platform.read(account, f"orders/{entry.order_id}")
    assert (found["order_id"], found["flags"]) == (str(entry.order_id), ["unprotected"])
    assert found in list(api_platform.pages(account, "orders", limit=1))
    assert list(api_platform.pages(account, "orders", flag="unprotected", state="OPEN")) == []
    stop = await shown.create("100", limit="9", side="SELL")
    await shown.record(reported(E.ACCEPTED, stop))
    assert list(api_platform.pages(account, "orders", flag="unprotected")) == []
    assert api_platform.read(account, f"orders/{entry.order_id}")["flags"] == []
