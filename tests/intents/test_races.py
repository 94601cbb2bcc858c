"""A change that one process answered holds for the next intent on the other; and clients that hang
up."""

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.background import working
from tests.intents.conftest import OpenClient
from tests.intents.http_client import Tables, TradingClient, cancel, create, dumps, limit
from tests.platform import Platform
from tests.raw_http import QuickClient, RawHttp
from tests.tenants import Tenants
from tests.waiting import eventually

LEAVERS = 500
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@contextmanager
def busy(url: str, trading_client: TradingClient) -> Iterator[None]:
    """Others trade on the same account meanwhile, so that a batch is always under way."""

    def trade(over: threading.Event) -> None:
        with QuickClient(url, headers=trading_client.headers, timeout=10) as client:
            while not over.is_set():
                assert (
                    client.post(trading_client.url, json=create(symbol="BUSY")).status_code == 202
                )

    with working(trade):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [30, pytest.param(250, marks=pytest.mark.chaos)])
def test_a_control_answered_here_is_honoured_there_at_once(
    tenants: Tenants, second: Platform, trading_client: TradingClient, rounds: int
) -> None:
    """Two races a round: it is forbidden, then allowed again."""
    admin = tenants.callers["admin"]
    account = f"/v1/controls/accounts/{trading_client.account['id']}"
    misses = []
    with (
        busy(second.url, trading_client),
        RawHttp(tenants.platform.url) as one,
        RawHttp(second.url) as other,
    ):
        sides = itertools.cycle([(one, other), (other, one)])
        for number in range(rounds):
            here, there = next(sides)
            for disabled, expected in ((True, 409), (False, 202)):
                changed = here.put(f"{account}/symbols/S", {"manually_disabled": disabled}, admin)
                answer = there.post(trading_client.url, create(symbol="s"), trading_client.headers)
                assert changed.status_code == 200
                if answer.status_code != expected:
                    misses.append((number, disabled, answer.text))
    assert misses == []


def keep_in_mind(trading_client: TradingClient, client: httpx.Client) -> None:
    """The process has just read the key and its organization, and would remember them for most of a
    second."""
    assert (
        client.post(trading_client.url, json=create(), headers=trading_client.headers).status_code
        == 202
    )


@pytest.mark.parametrize("change", ["disabled", "permissions", "deleted"])
def test_a_key_changed_here_is_refused_there_at_once(
    tenants: Tenants, second: Platform, trading_client: TradingClient, change: str
) -> None:
    admin = tenants.callers["admin"]
    for number in range(5):
        body = {
            "name": f"{change} {number}",
            "environment": "paper",
            "permissions": ["intent:edit"],
        }
        made = tenants.client.post("/v1/api-keys", json=body, headers=admin).json()
        trader = TradingClient(
            second.client,
            {"x-api-key": made["api_key"]},
            trading_client.account,
            trading_client.tables,
        )
        keep_in_mind(trader, second.client)
        url = f"/v1/api-keys/{made['id']}"
        if change == "deleted":
            assert tenants.client.delete(url, headers=admin).status_code == 204
        else:
            changes = (
                {"disabled": True} if change == "disabled" else {"permissions": ["intent:read"]}
            )
            assert tenants.client.patch(url, json=changes, headers=admin).status_code == 200
        expected = (403, "forbidden") if change == "permissions" else (401, "unauthorized")
        for body in (create(), cancel(made["id"])):
            answer = trader.submit(body)
            assert (answer.status_code, answer.json()["code"]) == expected


@pytest.fixture
def trading_live(plain: Tenants, tables: Tables) -> Iterator[Callable[[str], None]]:
    """Sets a column of `org_plain` as the operator's command does; put back at the end."""

    def set_to(assignment: str) -> None:
        tables.execute(f"UPDATE organizations SET {assignment} WHERE external_id = 'org_plain'")

    set_to("entitlements = '{trading_live}'")
    yield set_to
    set_to("entitlements = '{}', disabled = false")


def test_a_plan_or_organization_that_ends_is_honoured_at_once(
    open_client: OpenClient, second: Platform, trading_live: Callable[[str], None]
) -> None:
    trading_client = open_client(
        caller="plain_live", admin="plain_admin", broker="remote", environment="live"
    )
    clients = (trading_client.client, second.client)
    eventually(
        lambda: (
            trading_client.client.post(
                trading_client.url, json=create(), headers=trading_client.headers
            ).status_code
            == 202
        ),
        10,
    )

    def answered(client: httpx.Client, body: dict[str, Any]) -> tuple[int, str]:
        answer = client.post(trading_client.url, json=body, headers=trading_client.headers)
        return answer.status_code, answer.json().get("code", "")

    def has_noticed(client: httpx.Client) -> bool:
        return client.get("/v1/brokers", headers=trading_client.headers).status_code == 401

    for _ in range(5):
        for client in clients:
            keep_in_mind(trading_client, client)
        intent = second.client.post(
            trading_client.url, json=create(limit()), headers=trading_client.headers
        ).json()["intent_id"]
        trading_live("entitlements = '{}'")
        assert [answered(client, create()) for client in clients] == [
            (403, "entitlement_required")
        ] * 2
        assert answered(second.client, cancel(intent)) == (202, "")
        trading_live("entitlements = '{trading_live}'")
        for client in clients:
            keep_in_mind(trading_client, client)
        trading_live("disabled = true")
        assert [answered(client, create()) for client in clients] == [(401, "unauthorized")] * 2
        for client in clients:
            eventually(lambda client=client: has_noticed(client), 10)  # type: ignore[misc]  # bound now
        trading_live("disabled = false")
        assert [answered(client, create()) for client in clients] == [(202, "")] * 2


def test_an_account_disabled_or_closed_here_is_so_there_at_once(
    tenants: Tenants, second: Platform, open_client: OpenClient
) -> None:
    admin = tenants.callers["admin"]
    for _ in range(10):
        trading_client = open_client()
        keep_in_mind(trading_client, second.client)
        url = f"/v1/accounts/{trading_client.account['id']}"
        assert tenants.client.patch(url, json={"disabled": True}, headers=admin).status_code == 200
        there = TradingClient(
            second.client, trading_client.headers, trading_client.account, trading_client.tables
        )
        assert there.refused(create()) == (409, "account_disabled")


def test_closing_an_account_and_trading_on_it_never_both_succeed(
    tenants: Tenants, second: Platform, open_client: OpenClient
) -> None:
    """Neither order of the two leaves a closed account with an open order."""
    outcomes = set()
    for _ in range(30):
        trading_client = open_client()
        together = threading.Barrier(2)
        answers: dict[str, int] = {}

        def close(
            trading_client: TradingClient = trading_client,
            together: threading.Barrier = together,
            answers: dict[str, int] = answers,
        ) -> None:
            together.wait()
            url = f"/v1/accounts/{trading_client.account['id']}"
            answers["close"] = tenants.client.delete(
                url, headers=tenants.callers["admin"]
            ).status_code

        closing = threading.Thread(target=close)
        closing.start()
        together.wait()
        answer = second.client.post(
            trading_client.url, json=create(), headers=trading_client.headers
        )
        closing.join()
        outcomes.add((answers["close"], answer.status_code))
    assert outcomes <= {(204, 409), (409, 202)}


def test_five_hundred_clients_that_hang_up_leave_nothing_half_written(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    """Reset at every moment: in the headers, in the body, right after it, while the answer is
    awaited."""
    address = urlsplit(tenants.platform.url)
    body = dumps(create(limit()))
    head = f"POST {trading_client.url} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in trading_client.headers.items())
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    cuts = [len(request) * part // 10 for part in (3, 6, 9)] + [len(request)] * 7
    for number in range(LEAVERS):
        with socket.create_connection((str(address.hostname), address.port), 5) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            connection.sendall(request[: cuts[number % len(cuts)]])
    with RawHttp(
        tenants.platform.url, trading_client.headers
    ) as line:  # a new connection: it is taken after all of theirs
        assert line.post(trading_client.url, create()).status_code == 202
    # One statement sees one moment, though some of them may still be on their way.
    (seen,) = trading_client.tables.fetch(
        """
        SELECT array_agg(a.seq ORDER BY a.seq) AS seqs,
            (SELECT count(*) FROM orders WHERE account_id = $1::text::uuid) AS orders,
            (SELECT count(*) FROM commands WHERE account_id = $1::text::uuid) AS queued,
            2 * count(DISTINCT stream_seq) AS events
        FROM actions a WHERE account_id = $1::text::uuid
        """,
        trading_client.account["id"],
    )
    count = len(seen["seqs"])
    assert count > 1
    assert seen == {
        "seqs": list(range(1, count + 1)),
        "orders": count,
        "queued": count,
        "events": 2 * count,
    }
    gauge = 'ti_database_connections_in_use{role="ti_service"} 0.0'
    eventually(lambda: gauge in tenants.client.get("/metrics").text, 10)
