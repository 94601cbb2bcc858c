"""Reports find their orders, also when two workers get the same report at once."""

import asyncio

from tests.execution.recorded_orders import Books, D, fill, ours, record_account, reported
from tests.journal import COUNT_MESSAGES, FACTS
from trading_intents.brokers.port import CommandResult, Outcome
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import CommandKind
from trading_intents.orders.facts import FactKind as F
from trading_intents.orders.ledger.recording import answer_facts
from trading_intents.stream.model import SILENT


async def count(books: Books, what: str) -> int:
    found: int = await books.owner.fetchval(f"SELECT count(*) FROM {what}")
    return found


async def test_an_order_that_we_did_not_send_is_kept_and_attached_to_nothing(books: Books) -> None:
    sent = await books.create("10")
    await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    before = await books.order(sent)
    strange = [
        fill(None, "x1", "5", client_order_id="SOMEBODYELSES", broker_order_id="b9"),
        reported(E.CANCELLED, None, "x2", broker_order_id="b9"),
    ]
    recorded = await books.record(*strange)
    assert [event.payload for event, _ in recorded.events] == [SILENT, SILENT]
    assert await books.order(sent) == before
    assert await count(books, f"{FACTS} WHERE order_id IS NULL") == 2
    assert await count(books, "trades") == 0
    assert not (await books.record(*strange, *strange[::-1])).events
    assert await count(books, FACTS) == 3


async def test_a_report_is_found_by_the_brokers_id_alone(books: Books) -> None:
    sent = await books.create("10")
    await books.record(own=(ours(sent, F.ACCEPTED, broker_order_id="b1"),))
    await books.record(fill(None, "e1", "10", broker_order_id="b1"))
    assert (await books.order(sent))["order_status"] == "FILLED"


async def test_a_report_by_the_old_id_of_a_chain_is_found(books: Books) -> None:
    sent = await books.create("10", limit="5")
    await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    first = await books.replace(sent, "20", limit="6")
    await books.record(
        reported(E.REPLACED, None, "r1", client_order_id="NEWNAME", replaces=sent.client_order_id)
    )
    await books.record(
        reported(E.REPLACED, first, replaces=sent.client_order_id, broker_order_id="b2")
    )
    await books.record(fill(None, "e1", "20", broker_order_id="b2"))
    assert (await books.order(sent))["order_status"] == "FILLED"


async def test_reports_from_before_the_brokers_id_was_known_are_booked_then(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(None, "e1", "4", broker_order_id="b1"))
    assert (await books.order(sent))["order_status"] == "PENDING_NEW"
    recorded = await books.record(own=(ours(sent, F.ACCEPTED, broker_order_id="b1"),))
    assert recorded.events
    assert (await books.order(sent))["filled_quantity"] == D(4)
    assert await books.filled(sent) == [("e1", "4", "10")]


async def test_a_report_that_is_repeated_with_our_id_is_booked(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(None, "e1", "4", broker_order_id="b1"))
    await books.record(fill(sent, "e1", "4"))
    assert (await books.order(sent))["filled_quantity"] == D(4)
    assert await count(books, f"{FACTS} WHERE order_id IS NOT NULL") == 1
    recorded = await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    assert not recorded.trades
    assert await count(books, f"{FACTS} WHERE order_id IS NOT NULL") == 2


async def test_a_report_that_one_order_took_is_not_given_to_another(books: Books) -> None:
    first = await books.create("10")
    second = await books.create("10")
    await books.record(fill(None, "e1", "4", broker_order_id="b1"))
    for sent in (first, second, first):
        await books.record(
            reported(E.ACCEPTED, sent, broker_order_id="b1"),
            reported(E.STATUS, sent, f"status/{sent.seq}"),
        )
    assert await books.filled(first) == [("e1", "4", "10")]
    assert await books.filled(second) == []


async def test_a_brokers_id_that_is_used_again_is_the_later_orders(books: Books) -> None:
    old = await books.create("10")
    await books.record(reported(E.ACCEPTED, old, broker_order_id="1"), fill(old, "e1", "10"))
    await books.record(fill(None, "stray", "7", broker_order_id="2"))
    new = await books.create("10")
    newer = await books.create("10")
    await books.record(reported(E.ACCEPTED, new, broker_order_id="1"))
    await books.record(reported(E.ACCEPTED, newer, broker_order_id="2"))
    await books.record(fill(None, "e2", "3", broker_order_id="1"))
    assert (await books.order(old))["filled_quantity"] == D(10)
    assert (await books.order(new))["filled_quantity"] == D(3)
    # Reported before it was sent: of another order.
    assert (await books.order(newer))["filled_quantity"] == 0


async def test_two_workers_that_get_the_same_report_book_it_once(books: Books) -> None:
    orders = [
        await books.create("10", symbol=symbol) for symbol in ("AAPL", "MSFT", "AAPL", "GOOG")
    ]
    events = [
        event
        for index, sent in enumerate(orders)
        for event in (
            reported(E.ACCEPTED, sent, broker_order_id=f"b{index}"),
            fill(sent, f"e{index}", "4", fee="0.25"),
            fill(None, f"x{index}", "1", broker_order_id=f"strange{index}"),
        )
    ]
    before = await books.owner.fetchval(COUNT_MESSAGES)
    await asyncio.gather(
        *(books.record(*(events if turn % 2 else events[::-1])) for turn in range(4))
    )
    assert await count(books, FACTS) == len(events)
    assert await count(books, "trades") == 4
    assert await books.owner.fetchval(COUNT_MESSAGES) == before + 4 + 4 + 3
    assert [(await books.order(sent))["version"] for sent in orders] == [2, 2, 2, 2]
    assert (await books.position("AAPL"))["quantity"] == D(8)
    assert (await books.position("MSFT"))["fees"] == D("0.25")


async def test_reports_of_one_symbol_by_many_at_once_add_up(books: Books) -> None:
    orders = [
        await books.create("10", side="BUY" if index % 2 else "SELL_SHORT") for index in range(8)
    ]
    await asyncio.gather(
        *(books.record(fill(sent, f"e{index}", "10")) for index, sent in enumerate(orders))
    )
    position = await books.position()
    assert (position["quantity"], position["value_bought"], position["value_sold"]) == (
        0,
        D(400),
        D(400),
    )


async def test_a_transaction_that_fails_leaves_nothing(books: Books) -> None:
    sent = await books.create("10")
    before = await books.everything()
    try:
        async with books.database.worker.transaction() as tx:
            await record_account(tx, books.trading_client(), [fill(sent, "e1", "10")])
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert await books.everything() == before
    await books.record(fill(sent, "e1", "10"))
    assert (await books.order(sent))["order_status"] == "FILLED"


async def test_an_acceptance_that_an_answer_has_twice_is_one_fact(books: Books) -> None:
    sent = await books.create("10")
    bare = await books.create("10")
    accepted = reported(E.ACCEPTED, sent, broker_order_id="b1", at=1)
    answer = CommandResult(outcome=Outcome.ACKED, broker_order_id="b1", updates=(accepted,))
    own = answer_facts(sent.order_id, CommandKind.SUBMIT, sent.client_order_id, answer)
    for _ in range(2):
        await books.record(accepted, own=own)
    await books.record(own=own)
    # Without the event the outcome itself is the fact; the event adds the broker's time to it
    # later.
    await books.record(own=(ours(bare, F.ACCEPTED, broker_order_id="b2"),))
    assert (await books.order(bare))["order_status"] == "NEW"
    await books.record(reported(E.ACCEPTED, bare, broker_order_id="b2", at=2))
    assert (await books.order(bare))["broker_sent_at"].second == 2
    facts = await books.owner.fetch(f"SELECT * FROM {FACTS}")
    assert [row["key"].split(":")[0] for row in facts] == ["venue", "own", "venue"]
    assert [row["order_id"] for row in facts] == [sent.order_id, bare.order_id, bare.order_id]


async def test_an_event_that_has_the_key_of_another_orders_is_not_that_one(books: Books) -> None:
    first = await books.create("10")
    second = await books.create("10")
    await books.record(reported(E.ACCEPTED, first, "same"))
    await books.record(
        reported(E.ACCEPTED, second, "same"), own=(ours(second, F.ACCEPTED, broker_order_id="b2"),)
    )
    await books.record(fill(first, "e1", "4"), fill(second, "e1", "3"))
    for sent, filled in ((first, D(4)), (second, D(3))):
        order = await books.order(sent)
        assert (order["order_status"], order["flags"]) == ("PARTIALLY_FILLED", [])
        assert order["filled_quantity"] == filled
    assert (await books.position())["quantity"] == 7
