"""What the last batches met: by it the next one is decided and written while the server is asked. Never trusted: what
the server says must be the same, or nothing of that batch is committed."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock
from trading_intents.controls.model import Switch, TimeRule
from trading_intents.intents.model import AccountState, Create, KeyState, Submission
from trading_intents.intents.writing.batch_state import BatchState
from trading_intents.storage.pipeline import PipelineConnection

MAX_KNOWN = 50_000
MAX_LATE = timedelta(milliseconds=500)  # how long after its decision a batch may meet the server
MAX_EARLY = timedelta(milliseconds=1)  # how far our idea of the server's clock may be ahead of it


class StateCache:
    def __init__(self, brokers: Registry, clock: Clock) -> None:
        self._brokers, self._clock = brokers, clock
        self._start: datetime | None = None  # when our clock was zero, by the server's
        self._last: datetime | None = None
        self._link: PipelineConnection | None = None
        self.clear()

    def use(self, link: PipelineConnection) -> None:
        """Forgets what was read on another connection: it may lead to a server that lost the latest commits, where a
        version that was seen comes again for other rules."""
        if link is not self._link:
            self.clear()
            self._link = link

    def clear(self) -> None:
        self._known: set[tuple[str, str, str, str]] = set()  # organization, account, key, symbol
        self._heads: dict[str, tuple[int, str]] = {}
        self._versions: dict[str, str] = {}  # of the rest, by organization
        self._accounts: dict[str, AccountState] = {}
        self._keys: dict[str, KeyState] = {}
        self._switches: dict[tuple[str, str], Switch] = {}
        self._windows: dict[tuple[str, str], TimeRule] = {}

    def clear_heads(self, account_ids: Iterable[str]) -> None:
        for account_id in account_ids:
            self._heads.pop(account_id, None)

    def update(self, submissions: Sequence[Submission], met: BatchState) -> None:
        """`met` as it is after its batch was committed."""
        is_old = any(self._versions.get(key, version) != version for key, version in met.versions.items())
        if is_old or len(self._known) > MAX_KNOWN:
            self.clear()
        self._track_clock(met.now)
        for each in submissions:
            account_id, key_id = each.account_id, each.key_id
            if account_id not in met.heads or key_id is None or key_id not in met.keys:
                continue
            self._heads[account_id] = met.heads[account_id]
            self._accounts[account_id] = met.accounts[account_id]
            self._keys[key_id] = met.keys[key_id]
            if isinstance(each.command, Create):
                self._known.add((each.organization_id, account_id, key_id, each.command.symbol))
        self._versions |= met.versions
        self._switches |= met.switches
        self._windows |= met.windows

    def covers(self, submissions: Sequence[Submission]) -> bool:
        """Whether all that they will meet can be recalled."""
        for each in submissions:
            place = each.organization_id, each.account_id, each.key_id or "", getattr(each.command, "symbol", "")
            if place not in self._known or each.account_id not in self._heads:
                return False
        return True

    def now(self) -> datetime:
        """The server's clock as far as we know, and never back."""
        assert self._start is not None, "nothing is known yet"
        now = self._start + timedelta(seconds=self._clock.monotonic())
        self._last = max(now, self._last or now)
        return self._last

    def snapshot(self, now: datetime) -> BatchState:
        """What will be met if nothing happened since. Its heads stay ours: they move on with each decision."""
        return BatchState(
            brokers=self._brokers,
            heads=self._heads,
            order_rows={},
            orders={},
            earlier={},
            now=now,
            now_text=now.isoformat(),
            transaction_id="",
            versions=self._versions,
            accounts=self._accounts,
            keys=self._keys,
            switches=self._switches,
            windows=self._windows,
        )

    def is_valid(self, now: datetime, met: BatchState) -> bool:
        """Whether it would have been decided alike by what it met beside the heads. `now` is what we recalled."""
        self._track_clock(met.now)
        return (
            -MAX_EARLY <= met.now - now <= MAX_LATE
            and not met.earlier
            and all(self._versions.get(organization_id) == version for organization_id, version in met.versions.items())
        )

    def _track_clock(self, now: datetime) -> None:
        """An answer is always late: the least late one tells best. One that is too early tells of a clock set back."""
        start = now - timedelta(seconds=self._clock.monotonic())
        is_back = self._last is not None and now < self._last
        self._start = start if is_back or self._start is None else max(self._start, start)
        if self._last is not None:
            self._last = min(self._last, now + MAX_EARLY)
