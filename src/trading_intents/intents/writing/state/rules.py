"""The rules by which a batch is decided: accounts, keys, controls and limits of its organizations; and their cache."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from functools import lru_cache
from typing import Any

from trading_intents.controls.limits.model import NO_LIMITS, AppliedLimits, TradingLimits
from trading_intents.controls.limits.state.tracking import LimitedPlace, LimitedPlaces, Place, limited_place
from trading_intents.controls.limits.store import parse_limits
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.model import AccountState, Create, KeyState, Submission
from trading_intents.intents.writing import statements
from trading_intents.storage.pipeline import PipelineConnection, Row
from trading_intents.trading import Environment

MAX_KNOWN = 50_000


@dataclass(slots=True)
class Rules:
    """What users and operators set. Each change moves the version of its organization."""

    versions: dict[str, str] = field(default_factory=dict)  # by organization
    accounts: dict[str, AccountState] = field(default_factory=dict)
    keys: dict[str, KeyState] = field(default_factory=dict)
    switches: dict[tuple[str, str], Switch] = field(default_factory=dict)  # by owner, and by symbol or an empty text
    windows: dict[Place, TimeRule] = field(default_factory=dict)
    halts: dict[str, StandingHalt] = field(default_factory=dict)  # by owner: an organization or account
    limits: dict[tuple[str, str], TradingLimits] = field(default_factory=dict)  # as the switches

    def controls_of(self, organization_id: str, account_id: str, symbol: str) -> Controls:
        switches, halts, place = self.switches, self.halts, (account_id, symbol)
        return Controls(
            organization_id,
            account_id,
            switches.get((organization_id, "")),
            switches.get((account_id, "")),
            switches.get(place),
            self.windows.get(place),
            halts.get(organization_id),
            halts.get(account_id),
        )

    def limits_of(self, organization_id: str, account_id: str, symbol: str) -> AppliedLimits:
        owners = ((organization_id, ""), (account_id, ""), (account_id, symbol))
        found = [self.limits.get(owner) for owner in owners]
        return AppliedLimits(*found) if any(found) else NO_LIMITS

    def limited_place(self, account_id: str, symbol: str) -> LimitedPlace | None:
        """None: the account is not known, or its limits on the symbol need no state."""
        account = self.accounts.get(account_id)
        if account is None or not self.limits:
            return None
        limits = self.limits_of(account.organization_id, account_id, symbol)
        if not limits.needs_state:
            return None
        return limited_place(account_id, symbol, account.organization_id, account.environment, account.broker, limits)

    def add(self, others: "Rules") -> None:
        for name in self.__slots__:
            getattr(self, name).update(getattr(others, name))

    def entries(self) -> Iterator[tuple[str, str, Hashable]]:
        """The organization of each rule, the name of the dictionary that has it, and its key there."""
        for name in self.__slots__:
            for key in getattr(self, name):
                owner_id = key[0] if isinstance(key, tuple) else key
                owner = self.keys.get(owner_id) if name == "keys" else self.accounts.get(owner_id)
                yield owner.organization_id if owner else owner_id, name, key


def parse_clock(rows: Iterable[Row]) -> tuple[str, str]:
    """The server's time and the transaction's id, which both statements tell."""
    _, now, transaction_id, *_ = _texts(next(row for row in rows if row[0] == _CLOCK))
    return now, transaction_id


def parse_rules(organization_ids: Iterable[str], rows: Iterable[Row]) -> Rules:
    """Of the rows of `statements.read_state`, or only the versions of those of `read_versions`."""
    of: dict[bytes | None, list[Row]] = defaultdict(list)
    for row in rows:
        of[row[0]].append(row)
    return Rules(
        versions=dict.fromkeys(organization_ids, _NEVER_CHANGED) | dict(map(_version, of[_RULES])),
        accounts=dict(map(_account, of[_ACCOUNT])),
        keys=dict(map(_key, of[_KEY])),
        switches=dict(map(_switch, of[_SWITCH])),
        windows=dict(map(_window, of[_WINDOW])),
        halts=dict(map(_halt, of[_HALT])),
        limits=dict(map(_limits, of[_LIMIT])),
    )


class RulesCache:
    """The rules that the last batches read on a connection. An organization's hold as long as its version is the
    same."""

    def __init__(self) -> None:
        self._link: PipelineConnection | None = None
        self.clear()

    def use(self, link: PipelineConnection) -> None:
        """Clears the cache if the connection is another one. It may lead to a server that lost the latest commits,
        where a version that we have seen stands for other rules."""
        if link is not self._link:
            self.clear()
            self._link = link

    def clear(self) -> None:
        self.rules = Rules()
        self._entries: dict[str, set[tuple[str, Hashable]]] = defaultdict(set)  # by organization
        self._limited: dict[str, LimitedPlaces] = defaultdict(dict)  # likewise
        self._known: dict[str, set[tuple[str, str, str]]] = defaultdict(set)  # likewise: account, key, symbol

    def covers(self, link: PipelineConnection, submissions: Sequence[Submission]) -> bool:
        """Whether all rules by which these commands are decided were read on this connection."""
        self.use(link)
        for each in submissions:
            if not isinstance(each.command, Create):
                return False
            known = self._known.get(each.organization_id)
            if known is None or (each.account_id, each.key_id or "", each.command.symbol) not in known:
                return False
        return True

    def find_limited(self, submissions: Sequence[Submission]) -> LimitedPlaces:
        """The places of these CREATEs, which it covers, whose limits need more than the rules."""
        found: LimitedPlaces = {}
        for each in submissions if self._limited else ():
            limited = self._limited.get(each.organization_id)
            if limited and isinstance(each.command, Create):
                place = each.account_id, each.command.symbol
                if place in limited:
                    found[place] = limited[place]
        return found

    def check(self, versions: Mapping[str, str]) -> bool:
        """Whether the rules of these organizations are as cached. Those that are not are forgotten, and no others."""
        changed = [key for key, version in versions.items() if self.rules.versions.get(key) != version]
        for organization_id in changed:
            self._forget(organization_id)
        return not changed

    def _forget(self, organization_id: str) -> None:
        for name, key in self._entries.pop(organization_id, ()):
            del getattr(self.rules, name)[key]
        self._limited.pop(organization_id, None)
        self._known.pop(organization_id, None)

    def keep(self, submissions: Sequence[Submission], rules: Rules) -> None:
        """Keeps the rules that were read for these commands."""
        if rules is self.rules:
            return
        self.check({key: version for key, version in rules.versions.items() if key in self.rules.versions})
        if sum(map(len, self._known.values())) > MAX_KNOWN:
            self.clear()
        self.rules.add(rules)
        for organization_id, name, key in rules.entries():
            self._entries[organization_id].add((name, key))
        for each in submissions:
            command, key_id, account_id = each.command, each.key_id, each.account_id
            account = rules.accounts.get(account_id)
            # Another tenant's account, which is in the batch too, is not to be seen by the next one.
            is_own = account is not None and account.organization_id == each.organization_id
            if isinstance(command, Create) and key_id in rules.keys and is_own:
                self._known[each.organization_id].add((account_id, key_id, command.symbol))
                if place := rules.limited_place(account_id, command.symbol):
                    self._limited[each.organization_id][account_id, command.symbol] = place


_CLOCK, _RULES, _ACCOUNT, _KEY, _SWITCH, _WINDOW, _HALT, _LIMIT = (kind.encode() for kind in statements.Kind)
_NEVER_CHANGED = "0"


def _texts(row: Row) -> list[Any]:
    return [None if value is None else value.decode() for value in row]


def _version(row: Row) -> tuple[str, str]:
    _, organization_id, version, *_ = _texts(row)
    return organization_id, version


# These are cached because the same rows come again and again.
@lru_cache(maxsize=10_000)
def _account(row: Row) -> tuple[str, AccountState]:
    _, account_id, organization_id, environment, broker, disabled, closed, stored = _texts(row)
    return account_id, AccountState(
        organization_id, _ENVIRONMENTS[environment], broker, disabled == _TRUE, closed == _TRUE, stored == _TRUE
    )


@lru_cache(maxsize=10_000)
def _key(row: Row) -> tuple[str, KeyState]:
    _, key_id, organization_id, environment, permissions, entitlements, disabled, _ = _texts(row)
    return key_id, KeyState(
        organization_id,
        _ENVIRONMENTS[environment],
        frozenset(map(Permission, _members(permissions))),
        frozenset(map(Entitlement, _members(entitlements))),
        disabled == _TRUE,
    )


@lru_cache(maxsize=10_000)
def _switch(row: Row) -> tuple[tuple[str, str], Switch]:
    _, owner_id, symbol, reason, *_ = _texts(row)
    return (owner_id, symbol), Switch(True, reason)


@lru_cache(maxsize=10_000)
def _window(row: Row) -> tuple[tuple[str, str], TimeRule]:
    _, owner_id, symbol, start, end, stale, zone, _ = _texts(row)
    return (owner_id, symbol), TimeRule(_time(start), _time(end), stale and int(stale), zone)


@lru_cache(maxsize=10_000)
def _halt(row: Row) -> tuple[str, StandingHalt]:
    _, owner_id, halt_id, reason, *_ = _texts(row)
    return owner_id, StandingHalt(halt_id, reason)


def _limits(row: Row) -> tuple[tuple[str, str], TradingLimits]:
    _, owner_id, symbol, rules, *_ = _texts(row)
    return (owner_id, symbol), parse_limits(rules)


_TRUE = "true"
_ENVIRONMENTS = {str(each): each for each in Environment}


def _time(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def _members(text: str) -> list[str]:
    return text.strip("{}").split(",") if text != "{}" else []
