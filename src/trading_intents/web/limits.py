"""Rate limits: a token bucket per caller and kind of request, in this process only. Honest headers, bounded memory."""

import ipaddress
import math
from collections.abc import Mapping
from enum import StrEnum

from prometheus_client import Counter

from trading_intents.clock import Clock
from trading_intents.config import Rate, Settings
from trading_intents.errors import RateLimited, StartupRefused
from trading_intents.web.request import Incoming

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_CALLERS = 100_000
DRIFT = 1e-6  # of a token: sums of 1 / rate drift by some 1e-12, and exactly the burst must pass


class Bucket(StrEnum):
    SUBMITS = "submits"
    CANCELS = "cancels"
    WRITES = "writes"
    READS = "reads"
    FAILURES = "failures"


def rates(settings: Settings) -> dict[Bucket, Rate]:
    return {
        Bucket.SUBMITS: settings.rate_limit_submits,
        Bucket.CANCELS: settings.rate_limit_cancels,
        Bucket.WRITES: settings.rate_limit_writes,
        Bucket.READS: settings.rate_limit_reads,
        Bucket.FAILURES: settings.rate_limit_failures,
    }


class Limits:
    def __init__(self, rates: Mapping[Bucket, Rate], clock: Clock, limited: Counter) -> None:
        self._clock = clock
        self._tanks = {bucket: _Tank(bucket, rate, limited) for bucket, rate in rates.items()}

    def take(self, bucket: Bucket, caller: str) -> list[tuple[bytes, bytes]]:
        """One token, or RateLimited; answers the headers that tell the caller what is left."""
        return self._tanks[bucket].take(caller, self._clock.monotonic())

    def check(self, bucket: Bucket, caller: str) -> None:
        """RateLimited if there is no token; takes none."""
        self._tanks[bucket].check(caller, self._clock.monotonic())

    def spend(self, bucket: Bucket, caller: str) -> None:
        """A token if there is one."""
        self._tanks[bucket].spend(caller, self._clock.monotonic())


class _Tank:
    """All callers' buckets of one kind. Each is kept as the moment at which it will be full again."""

    def __init__(self, bucket: Bucket, rate: Rate, limited: Counter) -> None:
        self._rate, self._full_at = rate, dict[str, float]()
        self._limited = limited.labels(bucket.value)
        self._name = bucket.value.encode()
        window = math.ceil(rate.burst / rate.per_second)
        self._token_seconds = 1 / rate.per_second
        self._policy = (b"ratelimit-policy", b'"%s";q=%d;w=%d' % (self._name, rate.burst, window))

    def check(self, caller: str, now: float) -> None:
        if caller not in self._full_at:
            return
        left = self._left(caller, now)
        if left < 1:
            self._refuse(left)

    def spend(self, caller: str, now: float) -> float:
        left = self._left(caller, now)
        if left < 1:
            return left
        if len(self._full_at) >= MAX_CALLERS and caller not in self._full_at:
            self._forget(now)
        self._full_at[caller] = max(self._full_at.get(caller, now), now) + self._token_seconds
        return left

    def take(self, caller: str, now: float) -> list[tuple[bytes, bytes]]:
        left = self.spend(caller, now)
        if left < 1:
            self._refuse(left)
        return self._headers(left - 1)

    def _left(self, caller: str, now: float) -> float:
        missing = (self._full_at.get(caller, now) - now) * self._rate.per_second
        return self._rate.burst - max(missing, 0.0) + DRIFT

    def _headers(self, left: float) -> list[tuple[bytes, bytes]]:
        refill = math.ceil((self._rate.burst - left) / self._rate.per_second)
        return [self._policy, (b"ratelimit", b'"%s";r=%d;t=%d' % (self._name, max(int(left), 0), refill))]

    def _refuse(self, left: float) -> None:
        self._limited.inc()
        wait = max(1, math.ceil((1 - left) / self._rate.per_second))
        headers = {name.decode(): value.decode() for name, value in self._headers(left)}
        raise RateLimited(f"again in {wait} s", headers={"retry-after": str(wait), **headers})

    def _forget(self, now: float) -> None:
        """Full buckets say nothing; if all are in use, the oldest half goes."""
        kept = {caller: full_at for caller, full_at in self._full_at.items() if full_at > now}
        if len(kept) >= MAX_CALLERS:
            kept = dict(list(kept.items())[MAX_CALLERS // 2 :])
        self._full_at = kept


class Proxies:
    """Whose address a request counts against: the peer's, or the one that a trusted proxy names."""

    def __init__(self, trusted: tuple[str, ...]) -> None:
        try:
            self._trusted: list[Network] = [ipaddress.ip_network(text, strict=False) for text in trusted]
        except ValueError as error:
            raise StartupRefused(f"TRADING_INTENTS_TRUSTED_PROXIES: {error}") from None

    def address(self, incoming: Incoming) -> str:
        return limited_address(self._client(incoming))

    def _client(self, incoming: Incoming) -> str:
        peer = incoming.peer
        if not self.trusts(peer):
            return peer
        forwarded = b",".join(value for name, value in incoming.headers if name == b"x-forwarded-for")
        # From the right: each trusted hop vouches for the one before it; the first untrusted one is the caller.
        for hop in reversed(forwarded.decode("latin-1").split(",")):
            candidate = hop.strip()
            if not _is_address(candidate):
                return peer
            peer = candidate
            if not self.trusts(peer):
                return peer
        return peer

    def trusts(self, text: str) -> bool:
        if not self._trusted or not _is_address(text):
            return False
        address = ipaddress.ip_address(text)
        return any(address in network for network in self._trusted)


def limited_address(text: str) -> str:
    """What limits count an address by: IPv6 by its /64, as one client may have all of it."""
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
