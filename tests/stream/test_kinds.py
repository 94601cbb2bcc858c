"""Balances and halts on the stream from outside: asked for by kind, and an organization's halt in
every scope."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.intents.http_client import Tables, TradingClient, create, limit, pointers
from tests.stream.client import ACTION, BALANCE, HALT, POSITION, Client, kind_of
from tests.stream.conftest import OpenClient, read_page
from tests.stream.sse_reader import LIMIT_SECONDS, following
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Database
from trading_intents.stream.log import append
from trading_intents.stream.model import Event, EventType, make_payload
from trading_intents.stream.subscription_filter import EventPage, Subscription, SubscriptionFilter
from trading_intents.trading import Environment

NOW = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
LATER_KIND = 9


def halt_of(organization_id: str, account_id: str | None = None) -> bytes:
    return make_payload(
        EventType.HALT,
        id=str(uuid4()),
        organization_id=organization_id,
        account_id=account_id,
        state="cancelling",
        reason="news",
        orders=0,
        orders_done=0,
        positions=0,
        positions_done=0,
        principal_type="USER",
        principal_id="someone",
        created_at=NOW,
        updated_at=NOW,
    )


def append_event(
    tables: Tables, account: dict[str, Any], kind: int, payload: bytes, whose: str = "id"
) -> None:
    """As another process would: the hub's poll finds it."""
    tables.execute(
        """
        WITH head AS (
            INSERT INTO stream_heads AS head (organization_id, seq) VALUES ($1::text::uuid, 1)
            ON CONFLICT (organization_id) DO UPDATE SET seq = head.seq + 1
            RETURNING organization_id, seq
        )
        INSERT INTO stream_events (organization_id, seq, account_id, environment, kind, symbol,
            payload)
        SELECT organization_id, seq, $2::text::uuid, $3, $4, '', $5 FROM head
        """,
        account["organization_id"],
        account[whose],
        account["environment"],
        kind,
        payload,
    )


def append_balance(tables: Tables, account: dict[str, Any]) -> None:
    ids = {"account_id": account["id"], "organization_id": account["organization_id"]}
    append_event(
        tables,
        account,
        EventType.BALANCE,
        make_payload(EventType.BALANCE, **ids, broker="paper", cash="5", as_of=NOW),
    )


def await_first_balance(tables: Tables, *accounts: dict[str, Any]) -> None:
    """The paper broker reports what its accounts start with; nothing else comes by itself after
    that."""
    query = "SELECT count(*) FROM balances WHERE account_id = ANY ($1::text[]::uuid[])"
    ids = [account["id"] for account in accounts]
    eventually(lambda: bool(tables.value(query, ids) == len(ids)), LIMIT_SECONDS)


def test_sse_sends_the_first_four_kinds_unless_others_are_named(
    tenants: Tenants, tables: Tables, trading_client: TradingClient
) -> None:
    account = trading_client.account
    await_first_balance(tables, account)
    with (
        following(tenants, trading_client.headers, account["id"]) as silent,
        following(
            tenants, trading_client.headers, account["id"], kinds="balance,intent_action"
        ) as named,
    ):
        silent.until("primed")
        named.until("status")
        append_balance(tables, account)
        trading_client.accepted(create(limit()))
        assert [one.kind for one in silent.take(2)] == ["intent_action", "broker_order"]
        balance, action = named.take(2)
    assert (balance.kind, action.kind) == ("balance", "intent_action")
    assert balance.data["balance"] == {
        "account_id": account["id"],
        "organization_id": account["organization_id"],
        "broker": "paper",
        "cash": "5",
        "as_of": "2026-03-04T15:30:00.000000Z",
    }


@pytest.mark.parametrize("kinds", ["", "balances", "balance,", "BALANCE", "balance,heartbeat"])
def test_an_unknown_kind_is_refused(
    tenants: Tenants, trading_client: TradingClient, kinds: str
) -> None:
    url = f"/v1/accounts/{trading_client.account['id']}/events"
    answer = tenants.client.get(url, params={"kinds": kinds}, headers=trading_client.headers)
    assert pointers(answer) == ["?kinds"]


def test_an_organizations_halt_reaches_every_scope_and_environment(
    tenants: Tenants, tables: Tables, client: Client, open_client: OpenClient
) -> None:
    paper = open_client().account
    stranger = open_client(admin="other_admin", caller="other_key").account
    callers = tenants.callers
    followers = [
        client.follow(callers["key_all"], "", (HALT,)).subscribed(),
        client.follow(callers["key_live"], "", (HALT,)).subscribed(),
        client.follow(callers["member"], paper["id"], (HALT,), instrument_key="AAPL").subscribed(),
    ]
    other = client.follow(callers["other_key"], "", (HALT,)).subscribed()
    with following(tenants, callers["member"], paper["id"], kinds="halt") as text:
        text.until("status")
        append_event(
            tables, paper, EventType.HALT, halt_of(paper["organization_id"]), "organization_id"
        )
        append_event(
            tables,
            stranger,
            EventType.HALT,
            halt_of(stranger["organization_id"]),
            "organization_id",
        )
        (received,) = text.take(1)
    found = [follower.take(1)[0] for follower in followers]
    assert {event.halt.organization_id for event in found} == {paper["organization_id"]}
    assert len({event.cursor for event in found} | {received.id}) == 1
    assert other.take(1)[0].halt.organization_id == stranger["organization_id"]


def test_an_accounts_halt_and_balance_stay_in_its_scope(
    tenants: Tenants, tables: Tables, client: Client, open_client: OpenClient
) -> None:
    one = open_client().account
    other = open_client().account
    await_first_balance(tables, one, other)
    narrow = client.follow(tenants.callers["key_all"], one["id"], (HALT, BALANCE)).subscribed()
    live = client.follow(tenants.callers["key_live"], "", (HALT, BALANCE)).subscribed()
    for account in (other, one):
        append_balance(tables, account)
        append_event(
            tables, account, EventType.HALT, halt_of(account["organization_id"], account["id"])
        )
    append_event(tables, one, EventType.HALT, halt_of(one["organization_id"]), "organization_id")
    assert [kind_of(event) for event in narrow.take(3)] == ["balance", "halt", "halt"]
    assert not live.take(1)[0].halt.HasField("account_id")


def test_balances_and_halts_are_not_primed(
    tables: Tables, client: Client, trading_client: TradingClient
) -> None:
    await_first_balance(tables, trading_client.account)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (POSITION, BALANCE, HALT, ACTION)
    )
    status, primed = follower.take(2)
    assert (kind_of(status), primed.primed.event_type) == ("status", POSITION)
    trading_client.accepted(create(limit()))
    assert kind_of(follower.take(1)[0]) == "intent_action"


async def test_a_page_keeps_the_organizations_events_in_their_order(
    database: Database, organizations: list[OrganizationId]
) -> None:
    organization = organizations[0]
    one = uuid4()
    other = uuid4()
    third = uuid4()
    accounts: list[UUID] = [one, organization, other, one, organization, other]
    events = [
        Event(
            organization_id=str(organization),
            account_id=str(account),
            environment=Environment.PAPER,
            kind=EventType.HALT,
            symbol="",
            payload=bytes([n + 1]),
        )
        for n, account in enumerate(accounts)
    ]
    async with database.worker.transaction() as tx:
        await append(tx, events)
        page = EventPage(await read_page(tx, organization, 0, 10))

    def seqs(*scopes: UUID | None) -> list[int]:
        wanted = [Subscription(scope, None, frozenset({EventType.HALT}), None) for scope in scopes]
        return [entry.seq for entry in SubscriptionFilter(wanted).select(page)]

    assert seqs(one) == [1, 2, 4, 5]
    assert seqs(other) == [2, 3, 5, 6]
    assert seqs(third) == [2, 5]
    assert seqs(one, other) == seqs(None) == seqs(None, one) == [1, 2, 3, 4, 5, 6]
    assert seqs(one, third) == [1, 2, 4, 5]


def test_a_kind_of_a_later_version_is_passed_over(
    tenants: Tenants, tables: Tables, client: Client, trading_client: TradingClient
) -> None:
    """Two versions run at once during an upgrade: what the older does not know must not stop its
    streams."""
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,)
    ).subscribed()
    tables.execute("ALTER DOMAIN event_kind DROP CONSTRAINT valid")
    try:
        append_event(tables, trading_client.account, LATER_KIND, b"")
        intent_id = trading_client.accepted(create(limit()))["intent_id"]
        assert follower.take(1)[0].intent_action.intent_id == intent_id
    finally:
        tables.execute(
            "ALTER DOMAIN event_kind ADD CONSTRAINT valid CHECK (VALUE BETWEEN 1 AND 6) NOT VALID"
        )
