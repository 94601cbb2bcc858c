"""Rate limits: exactly the burst passes, the headers are honest, the memory is bounded."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import ManualClock
from tests.web.conftest import Site
from trading_intents.config import Rate
from trading_intents.errors import RateLimited, StartupRefused
from trading_intents.identity.model import (
    ApiKeyPrincipal,
    Caller,
    KeyId,
    OrganizationRecord,
    Principal,
    ServicePrincipal,
    UserPrincipal,
)
from trading_intents.ids import OrganizationId
from trading_intents.telemetry import Metrics
from trading_intents.trading import Environment
from trading_intents.web import limits as limits_module
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.request import Answer, Incoming

ADA = {"x-name": "ada"}
BOB = {"x-name": "bob"}


async def test_exactly_the_burst_passes_and_retry_after_is_honest(site: Site) -> None:
    answers = [await site.client.get("/v1/limited", headers=ADA) for _ in range(11)]
    assert [a.status_code for a in answers] == [200] * 10 + [429]
    assert answers[0].headers["ratelimit-policy"] == '"reads";q=10;w=2'
    assert answers[0].headers["ratelimit"] == '"reads";r=9;t=1'
    refused = answers[-1]
    assert refused.json()["code"] == "rate_limited"
    assert refused.headers["ratelimit"] == '"reads";r=0;t=2'
    site.clock.advance(int(refused.headers["retry-after"]))
    assert (await site.client.get("/v1/limited", headers=ADA)).status_code == 200


async def test_one_callers_limit_is_not_anothers(site: Site) -> None:
    for _ in range(11):
        last = await site.client.get("/v1/limited", headers=ADA)
    assert last.status_code == 429
    assert (await site.client.get("/v1/limited", headers=BOB)).status_code == 200


async def test_all_callers_of_an_organization_share_its_limit_and_the_refusal_says_so(
    site: Site,
) -> None:
    ours = {"x-organization": "ours"}
    theirs = {"x-organization": "theirs"}
    first = await site.client.get("/v1/limited", headers=ADA | ours)
    assert first.headers["ratelimit-policy"] == '"reads";q=10;w=2, "organization_reads";q=15;w=2'
    assert first.headers["ratelimit"] == '"reads";r=9;t=1, "organization_reads";r=14;t=1'
    answers = [
        await site.client.get("/v1/limited", headers={"x-name": f"{n}"} | ours) for n in range(15)
    ]
    assert [a.status_code for a in answers] == [200] * 14 + [429]
    refused = answers[-1]
    assert (refused.json()["limit"], "organization" in refused.json()["detail"]) == (
        "organization",
        True,
    )
    assert refused.headers["ratelimit"] == '"reads";r=10;t=0, "organization_reads";r=0;t=2'
    assert (await site.client.get("/v1/limited", headers=ADA | theirs)).status_code == 200
    assert (await site.client.get("/v1/limited", headers=BOB)).status_code == 200
    counted = (await site.client.get("/metrics")).text
    assert 'ti_rate_limited_total{bucket="organization_reads"} 1.0' in counted
    site.clock.advance(int(refused.headers["retry-after"]))
    assert (
        await site.client.get("/v1/limited", headers={"x-name": "14"} | ours)
    ).status_code == 200


async def test_a_refused_request_takes_no_token_of_the_other_limit(site: Site) -> None:
    ours = {"x-organization": "ours"}
    answers = [await site.client.get("/v1/limited", headers=ADA | ours) for _ in range(20)]
    assert [a.status_code for a in answers] == [200] * 10 + [429] * 10
    assert answers[-1].json()["limit"] == "principal"
    others = [await site.client.get("/v1/limited", headers=BOB | ours) for _ in range(6)]
    assert [a.status_code for a in others] == [200] * 5 + [429]
    site.clock.advance(1)
    left = [
        (await site.client.get("/v1/limited", headers=BOB | ours)).status_code for _ in range(11)
    ]
    assert left == [200] * 10 + [429], "what the organization refused cost the caller nothing"


async def test_without_a_caller_the_address_counts(site: Site) -> None:
    for _ in range(11):
        last = await site.client.get("/v1/limited-address")
    assert (last.status_code, last.json()["limit"]) == (429, "address")
    assert (await site.client.get("/v1/limited", headers=ADA)).status_code == 200


async def test_failed_credentials_stop_the_address_before_the_next_look(site: Site) -> None:
    answers = [await site.client.get("/v1/limited", headers={"x-name": "bad"}) for _ in range(11)]
    assert [a.status_code for a in answers] == [401] * 10 + [429]
    refused = await site.client.get("/v1/limited", headers=ADA)
    assert refused.status_code == 429
    site.clock.advance(int(refused.headers["retry-after"]))
    assert (await site.client.get("/v1/limited", headers=ADA)).status_code == 200


async def ask(site: Site, name: str, path: bytes = b"/v1/limited", method: str = "GET") -> int:
    """Without a connection between."""
    incoming = Incoming(
        method=method,
        raw_path=path,
        query_string=b"",
        headers=[(b"x-name", name.encode())],
        body=b"",
        peer="127.0.0.1",
        keep_alive=True,
    )
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    site.app.begin(incoming, answered.set_result)
    return (await answered).status


async def test_failed_credentials_side_by_side_share_no_token(site: Site) -> None:
    statuses = await asyncio.gather(*(ask(site, "bad") for _ in range(50)))
    assert Counter(statuses) == {401: 10, 429: 40}


async def test_a_credential_that_does_not_fail_gives_its_token_back(site: Site) -> None:
    for name, status in (("ada", 200), ("weak", 403), ("broken", 503)):
        assert await asyncio.gather(*(ask(site, name) for _ in range(10))) == [status] * 10
    assert [await ask(site, "bad") for _ in range(11)] == [401] * 10 + [429]


async def test_a_caller_of_another_kind_uses_up_its_own_limit(site: Site) -> None:
    assert [await ask(site, "other") for _ in range(11)] == [401] * 10 + [429]
    assert await ask(site, "bad") == 401


async def test_a_credential_that_was_verified_passes_the_limit_of_failures(site: Site) -> None:
    assert [await ask(site, "bad") for _ in range(11)][-1] == 429
    assert await asyncio.gather(*(ask(site, "friend") for _ in range(11))) == [200] * 10 + [429]
    assert [await ask(site, name) for name in ("ada", "key", "bad")] == [429] * 3


async def test_beyond_the_limit_of_failures_only_what_stops_trading_verifies_keys_at_a_rate(
    site: Site,
) -> None:
    async def stop(name: str) -> int:
        return await ask(site, name, b"/v1/stops", "POST")

    assert [await ask(site, "bad") for _ in range(11)][-1] == 429
    assert [await stop(name) for name in ("ada", "bad", "key", "friend")] == [429, 429, 200, 200]
    guesses = await asyncio.gather(*(stop(f"key {number}") for number in range(30)))
    assert guesses == [401] * 9 + [429] * 21, "the key took one of ten"
    site.clock.advance(1)
    assert await stop("key") == 200


async def test_health_is_never_limited(site: Site) -> None:
    assert {(await site.client.get("/healthz")).status_code for _ in range(50)} == {200}


@pytest.mark.parametrize(
    ("size", "tokens"), [(14, 1), (8192, 1), (8193, 2), (65_536, 8), (65_537, 9), (200_000, 9)]
)
async def test_a_large_body_takes_more_tokens(site: Site, size: int, tokens: int) -> None:
    body = b'{"symbol":"A"}'.ljust(size)
    headers = ADA | {"content-type": "application/json", "x-organization": "ours"}
    answer = await site.client.post("/v1/places/here/orders", content=body, headers=headers)
    assert answer.status_code == (201 if size <= 65_536 else 413)
    assert answer.headers["ratelimit"].startswith(f'"writes";r={10 - tokens};')
    assert f'"organization_writes";r={15 - tokens};' in answer.headers["ratelimit"]


async def test_a_large_body_waits_for_all_its_tokens(site: Site) -> None:
    large = b'{"symbol":"A"}'.ljust(65_536)
    headers = ADA | {"content-type": "application/json"}
    assert (
        await site.client.post("/v1/places/here/orders", content=large, headers=headers)
    ).status_code == 201
    refused = await site.client.post("/v1/places/here/orders", content=large, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert (
        await site.client.post("/v1/places/here/orders", json={"symbol": "A"}, headers=ADA)
    ).status_code == 201
    site.clock.advance(2)
    assert (
        await site.client.post("/v1/places/here/orders", content=large, headers=headers)
    ).status_code == 201


def test_no_request_costs_more_than_a_bucket_holds() -> None:
    limits = make_limits(Rate(1, 5), ManualClock())
    limits.take(Bucket.READS, "ada", "ours", tokens=9)
    with pytest.raises(RateLimited) as refused:
        limits.take(Bucket.READS, "ada", "ours")
    assert refused.value.limit == "principal"
    limits.take(Bucket.READS, "bob", "ours")


def make_limits(rate: Rate, clock: ManualClock) -> Limits:
    return Limits({Bucket.READS: rate}, {Bucket.READS: Rate(5, 10)}, clock, Metrics().rate_limited)


def test_reserved_tokens_come_one_after_the_other() -> None:
    clock = ManualClock()
    keys = ("ada", "ours")
    limits = make_limits(Rate(10, 2), clock)
    waits = [limits.reserve(Bucket.READS, *keys) for _ in range(4)]
    assert waits == pytest.approx([0, 0, 0.1, 0.2], abs=1e-4)
    others = [limits.reserve(Bucket.READS, f"{n}", "ours") for n in range(8)]
    assert others == pytest.approx([0] * 6 + [0.2, 0.4], abs=1e-4), "the organization's"
    assert limits.reserve(Bucket.READS, "bob", None) == 0
    clock.advance(1)
    assert limits.reserve(Bucket.READS, *keys) == 0


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_the_burst_is_exact_for_every_rate(per_second: int, burst: int) -> None:
    clock = ManualClock()
    limits = make_limits(Rate(per_second, burst), clock)
    for _ in range(burst):
        limits.take(Bucket.READS, "ada", None)
    with pytest.raises(RateLimited) as refused:
        limits.take(Bucket.READS, "ada", None)
    clock.advance(int(refused.value.headers["retry-after"]))
    limits.take(Bucket.READS, "ada", None)


def test_memory_is_bounded_and_a_spent_bucket_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_CALLERS", 100)
    clock = ManualClock()
    limits = make_limits(Rate(1, 1), clock)
    for n in range(1000):
        clock.advance(0.02)
        limits.take(Bucket.READS, f"caller {n}", None)
    assert len(limits._buckets[Bucket.READS]._full_at) <= 100
    with pytest.raises(RateLimited):
        limits.take(Bucket.READS, "caller 999", None)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("1.2.3.4", b"9.9.9.9", "1.2.3.4"),
        ("10.0.0.1", b"9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", b"9.9.9.9, 10.0.0.2", "9.9.9.9"),
        ("10.0.0.1", b"6.6.6.6, 9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", b"nonsense", "10.0.0.1"),
        ("10.0.0.1", b"nonsense, 10.0.0.2", "10.0.0.2"),
        ("::ffff:1.2.3.4", b"9.9.9.9", "1.2.3.4"),
        ("::1", b"9.9.9.9", "::/64"),
        ("2001:db8:1:2:3:4:5:6", b"", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", b"", "fe80::/64"),
        ("10.0.0.1", b"2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("10.0.0.1", b"9.9.9.9" + b", 10.0.0.2" * 15, "9.9.9.9"),
        ("10.0.0.1", b"9.9.9.9" + b", 10.0.0.2" * 16, "10.0.0.2"),
    ],
)
def test_only_a_trusted_proxy_may_name_the_address(
    peer: str, forwarded: bytes, address: str
) -> None:
    headers = [(b"x-forwarded-for", forwarded)] if forwarded else []
    incoming = Incoming(
        method="GET",
        raw_path=b"/",
        query_string=b"",
        headers=headers,
        body=b"",
        peer=peer,
        keep_alive=True,
    )
    assert ClientAddress(("10.0.0.0/8",)).address(incoming) == address


def test_a_bad_network_is_refused_at_start() -> None:
    with pytest.raises(StartupRefused, match="TRUSTED_PROXIES"):
        ClientAddress(("not a network",))


def test_keys_share_a_limit_by_environment_and_users_have_one_apart() -> None:
    organization = OrganizationRecord(
        id=OrganizationId(UUID(int=1)),
        provider="local",
        external_id="o",
        name="o",
        entitlements=frozenset(),
        disabled=False,
        created_at=datetime.now(UTC),
    )

    def shared(principal: Principal) -> str | None:
        return Caller(principal, organization).organization_limit_key

    paper, again, live = (
        shared(ApiKeyPrincipal(KeyId(UUID(int=number)), organization.id, environment, frozenset()))
        for number, environment in enumerate(
            (Environment.PAPER, Environment.PAPER, Environment.LIVE)
        )
    )
    users = {shared(UserPrincipal(subject, "o", "admin")) for subject in ("ada", "bob")}
    assert paper == again
    assert len({paper, live} | users) == 3
    assert shared(ServicePrincipal("reporter", frozenset())) is None
    assert Caller(UserPrincipal("ada", None, None), None).organization_limit_key is None
