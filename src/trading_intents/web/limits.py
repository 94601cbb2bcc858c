"""Rate limits: token buckets for each principal and each organization, by kind of request, in this
process only."""

import ipaddress
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NoReturn, Protocol

from prometheus_client import Counter

from trading_intents.clock import Clock
from trading_intents.config import Rate, Settings
from trading_intents.errors import InvalidRequest, RateLimited, StartupRefused, Unauthorized
from trading_intents.web.request import Headers, Incoming, Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_CALLERS = 100_000
LATE_VERIFICATIONS = Rate(20, 20)
MAX_HOPS = 16  # of X-Forwarded-For, the last ones
ROUNDING = 1e-6  # of a token: sums of 1 / rate drift by some 1e-12, and exactly the burst must pass


class Bucket(StrEnum):
    SUBMITS = "submits"
    CANCELS = "cancels"
    WRITES = "writes"
    READS = "reads"
    MESSAGES = "messages"  # to change the subscriptions of an open stream
    FAILURES = "failures"  # of credentials
    VERIFICATIONS = "verifications"  # of well-formed keys, once FAILURES is empty


def rates(settings: Settings) -> dict[Bucket, Rate]:
    """For each principal, or address."""
    return {
        Bucket.SUBMITS: settings.rate_limit_submits,
        Bucket.CANCELS: settings.rate_limit_cancels,
        Bucket.WRITES: settings.rate_limit_writes,
        Bucket.READS: settings.rate_limit_reads,
        Bucket.MESSAGES: settings.rate_limit_reads,
        Bucket.FAILURES: settings.rate_limit_failures,
        Bucket.VERIFICATIONS: LATE_VERIFICATIONS,
    }


def organization_rates(settings: Settings) -> dict[Bucket, Rate]:
    """For all principals of an organization and environment together."""
    return {
        Bucket.SUBMITS: settings.rate_limit_organization_submits,
        Bucket.CANCELS: settings.rate_limit_organization_cancels,
        Bucket.WRITES: settings.rate_limit_organization_writes,
        Bucket.READS: settings.rate_limit_organization_reads,
        Bucket.MESSAGES: settings.rate_limit_organization_reads,
    }


class Verifier(Protocol):
    """Identifies the callers of an endpoint, and knows some credentials without a look-up."""

    def recognize(self, request: Request) -> None:
        """Sets request.caller if that takes no wait, and the endpoint takes its kind: it need not
        be identified."""

    async def identify(self, request: Request) -> None:
        """Sets request.caller, or raises Unauthorized or InvalidRequest."""

    def is_verified(self, request: Request) -> bool:
        """Whether this process verified the credential lately."""

    def has_well_formed_key(self, request: Request) -> bool: ...


class Limits:
    """`organization` is None for a caller without an organization."""

    def __init__(
        self,
        rates: Mapping[Bucket, Rate],
        organizations: Mapping[Bucket, Rate],
        clock: Clock,
        limited: Counter,
    ) -> None:
        self._clock = clock
        self._buckets = dict[Bucket, TokenBuckets]()
        for bucket, rate in rates.items():
            self._buckets[bucket] = TokenBuckets(bucket.value, rate, limited)
        self._organizations = dict[Bucket, TokenBuckets]()
        for bucket, rate in organizations.items():
            name = f"organization_{bucket.value}"
            self._organizations[bucket] = TokenBuckets(name, rate, limited)

    def take(
        self,
        bucket: Bucket,
        principal: str,
        organization: str | None,
        limit: str = "principal",
        tokens: int = 1,
    ) -> Headers:
        """Takes the tokens of each bucket, or of neither and raises RateLimited; gives the headers
        that say what is left. `limit` says whose the first bucket is."""
        now = self._clock.monotonic()
        buckets = self._buckets[bucket]
        left = buckets.left(principal, now)
        cost = buckets.cost(tokens)
        if organization is None:
            if left < cost:
                buckets.refuse(limit, left, buckets.headers(left), cost)
            buckets.spend(principal, now, cost)
            return buckets.headers(left - cost)
        shared = self._organizations[bucket]
        shared_left = shared.left(organization, now)
        shared_cost = shared.cost(tokens)
        if left < cost or shared_left < shared_cost:
            headers = buckets.headers(left, shared, shared_left)
            if buckets.wait_seconds(left, cost) >= shared.wait_seconds(shared_left, shared_cost):
                buckets.refuse(limit, left, headers, cost)
            shared.refuse("organization", shared_left, headers, shared_cost)
        buckets.spend(principal, now, cost)
        shared.spend(organization, now, shared_cost)
        return buckets.headers(left - cost, shared, shared_left - shared_cost)

    def left(self, bucket: Bucket, principal: str, organization: str | None) -> float:
        """Gives how many tokens there are for `take`. Takes and counts nothing."""
        now = self._clock.monotonic()
        left = self._buckets[bucket].left(principal, now)
        if organization is None:
            return left
        return min(left, self._organizations[bucket].left(organization, now))

    def reserve(self, bucket: Bucket, principal: str, organization: str | None) -> float:
        """Takes the next token of each bucket, and gives the seconds until both are there. Each
        caller waits for its own token, so that many that wait do not all look again for the same
        one."""
        now = self._clock.monotonic()
        own_seconds = self._buckets[bucket].reserve(principal, now)
        if organization is None:
            return own_seconds
        return max(own_seconds, self._organizations[bucket].reserve(organization, now))

    async def identify(
        self,
        verifier: Verifier,
        request: Request,
        bucket: Bucket | None,
        verifies_late: bool = False,
    ) -> None:
        """Identifies the caller. A credential takes a token of its address before it is looked up
        and gives it back unless it fails, so that requests side by side cannot share one. A
        credential that was verified lately needs none. A caller who is known, and refused, counts
        in its own `bucket`."""
        is_token_taken = not verifier.is_verified(request) and self._take_failure(
            verifier, request, verifies_late
        )
        is_failed = False
        try:
            await verifier.identify(request)
        except (Unauthorized, InvalidRequest) as error:
            is_failed = request.caller is None and isinstance(error, Unauthorized)
            if (caller := request.caller) and bucket:
                request.headers_out += self.take(
                    bucket, caller.limit_key, caller.organization_limit_key
                )
            raise
        finally:
            if is_token_taken and not is_failed:
                self._buckets[Bucket.FAILURES].give_back(request.address)

    def _take_failure(self, verifier: Verifier, request: Request, verifies_late: bool) -> bool:
        """Whether it took a token of FAILURES. When that is empty, and the endpoint stops trading,
        a well-formed key is verified by a second bucket."""
        is_empty = self.left(Bucket.FAILURES, request.address, None) < 1
        is_late = verifies_late and is_empty and verifier.has_well_formed_key(request)
        self.take(
            Bucket.VERIFICATIONS if is_late else Bucket.FAILURES, request.address, None, "address"
        )
        return not is_late


class TokenBuckets:
    """All callers' buckets of one kind. Each is kept as the moment at which it will be full
    again."""

    def __init__(self, name: str, rate: Rate, limited: Counter) -> None:
        self._rate = rate
        self._full_at = dict[str, float]()
        self._limited = limited.labels(name)
        self._name = name.encode()
        window = math.ceil(rate.burst / rate.per_second)
        self._token_seconds = 1 / rate.per_second
        self._policy = b'"%s";q=%d;w=%d' % (self._name, rate.burst, window)

    def left(self, key: str, now: float) -> float:
        full_at = self._full_at.get(key, now)
        return self._rate.burst - max(full_at - now, 0.0) * self._rate.per_second + ROUNDING

    def cost(self, tokens: int) -> int:
        """As many, but never more than there can be: such a request would wait for ever."""
        return min(tokens, self._rate.burst)

    def spend(self, key: str, now: float, tokens: int = 1) -> None:
        full_at = self._full_at.get(key)
        if full_at is None and len(self._full_at) >= MAX_CALLERS:
            self._forget(now)
        if full_at is None or full_at < now:
            full_at = now
        self._full_at[key] = full_at + tokens * self._token_seconds

    def give_back(self, key: str) -> None:
        if key in self._full_at:
            self._full_at[key] -= self._token_seconds

    def reserve(self, key: str, now: float) -> float:
        left = self.left(key, now)
        self.spend(key, now)
        if left >= 1:
            return 0.0
        self._limited.inc()
        return (1 - left) * self._token_seconds

    def headers(
        self, left: float, shared: "TokenBuckets | None" = None, shared_left: float = 0.0
    ) -> Headers:
        """Each is a list of policies (draft-ietf-httpapi-ratelimit-headers)."""
        if shared is None:
            return [(b"ratelimit-policy", self._policy), (b"ratelimit", self._state(left))]
        return [
            (b"ratelimit-policy", b"%s, %s" % (self._policy, shared._policy)),
            (b"ratelimit", b"%s, %s" % (self._state(left), shared._state(shared_left))),
        ]

    def _state(self, left: float) -> bytes:
        refill_seconds = math.ceil((self._rate.burst - left) * self._token_seconds)
        return b'"%s";r=%d;t=%d' % (self._name, left if left > 0 else 0, refill_seconds)

    def wait_seconds(self, left: float, cost: int = 1) -> int:
        if left >= cost:
            return 0
        return max(1, math.ceil((cost - left) / self._rate.per_second))

    def refuse(self, limit: str, left: float, headers: Headers, cost: int = 1) -> NoReturn:
        self._limited.inc()
        wait = self.wait_seconds(left, cost)
        sent = {"retry-after": str(wait)}
        for name, value in headers:
            sent[name.decode()] = value.decode()
        detail = f"the rate limit of the {limit} is used up; try again in {wait} s"
        raise RateLimited(limit, detail, sent)

    def _forget(self, now: float) -> None:
        """Removes full buckets, which are like new ones; if none is full, the oldest half."""
        kept = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        if len(kept) >= MAX_CALLERS:
            kept = dict(list(kept.items())[MAX_CALLERS // 2 :])
        self._full_at = kept


class ClientAddress:
    """The address that a request counts against: the peer's, or the one that a trusted proxy
    names."""

    def __init__(self, trusted: tuple[str, ...]) -> None:
        self._trusted = list[Network]()
        try:
            for text in trusted:
                self._trusted.append(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            raise StartupRefused(f"TRADING_INTENTS_TRUSTED_PROXIES: {error}") from None

    def address(self, incoming: Incoming) -> str:
        return limited_address(self._client(incoming))

    def _client(self, incoming: Incoming) -> str:
        peer = incoming.peer
        if not self.trusts(peer):
            return peer
        forwarded = incoming.join_header(b"x-forwarded-for")
        # From the right: each trusted proxy names the one before it; the first address that is not
        # trusted is the caller's.
        hops = forwarded.decode("latin-1").split(",")[-MAX_HOPS:]
        while hops and self.trusts(peer) and _is_address(hop := hops.pop().strip()):
            peer = hop
        return peer

    def trusts(self, text: str) -> bool:
        if not self._trusted or not _is_address(text):
            return False
        address = ipaddress.ip_address(text)
        return any(address in network for network in self._trusted)


def limited_address(text: str) -> str:
    """The form in which limits count an address: IPv6 by its /64, as one client may have all of
    it."""
    if ":" not in text or not _is_address(text):
        return text
    address = ipaddress.IPv6Address(text)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
