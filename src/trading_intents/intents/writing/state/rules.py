"""The rules by which a batch is decided: accounts, keys, controls and limits of an organization; and their cache."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from functools import lru_cache
from typing import Any

from trading_intents.controls.limits.model import NO_LIMITS, AppliedLimits, TradingLimits
from trading_intents.controls.limits.state.tracking import LimitedPlace, Place, limited_place
from trading_intents.controls.limits.store import parse_limits
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.model import AccountState, KeyState
from trading_intents.intents.writing import statements
from trading_intents.storage.pipeline import PipelineConnection, Row
from trading_intents.trading import Environment

NEVER_CHANGED = "0"  # the version of an organization that has none
MAX_COVERED = 50_000  # subjects of all organizations; beyond it the organization with the most is forgotten
Subject = tuple[str, str, str]  # an account, a key or an empty text, a symbol: those that a command names


@dataclass(slots=True)
class Rules:
    """What the users and operators of one organization set, as far as it was read, at one version of it."""

    organization_id: str
    version: str
    accounts: dict[str, AccountState] = field(default_factory=dict)
    keys: dict[str, KeyState] = field(default_factory=dict)
    switches: dict[tuple[str, str], Switch] = field(default_factory=dict)  # by owner, and by symbol or an empty text
    windows: dict[Place, TimeRule] = field(default_factory=dict)
    halts: dict[str, StandingHalt] = field(default_factory=dict)  # by owner: the organization or an account
    limits: dict[tuple[str, str], TradingLimits] = field(default_factory=dict)  # as the switches
    covered: set[Subject] = field(default_factory=set)  # the subjects whose rules are all here
    _limited: dict[Place, LimitedPlace | None] = field(default_factory=dict)

    def controls_of(self, account_id: str, symbol: str) -> Controls:
        organization_id, switches, halts, place = self.organization_id, self.switches, self.halts, (account_id, symbol)
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

    def limits_of(self, account_id: str, symbol: str) -> AppliedLimits:
        owners = ((self.organization_id, ""), (account_id, ""), (account_id, symbol))
        found = [self.limits.get(owner) for owner in owners]
        return AppliedLimits(*found) if any(found) else NO_LIMITS

    def limited_place(self, place: Place) -> LimitedPlace | None:
        """None: the account is not known, or its limits on the symbol need no state."""
        if not self.limits or place[0] not in self.accounts:
            return None
        if place not in self._limited:
            account, limits = self.accounts[place[0]], self.limits_of(*place)
            self._limited[place] = (
                limited_place(*place, self.organization_id, account.environment, account.broker, limits)
                if limits.needs_state
                else None
            )
        return self._limited[place]

    def add(self, others: "Rules") -> None:
        """Adds what was read of the same version."""
        for name in ("accounts", "keys", "switches", "windows", "halts", "limits", "covered"):
            getattr(self, name).update(getattr(others, name))


RulesByOrganization = dict[str, Rules]


def parse_clock(rows: Iterable[Row]) -> tuple[str, str]:
    """The server's time and the transaction's id, of the rows of `read_versions`."""
    _, now, transaction_id, *_ = _texts(next(row for row in rows if row[0] == _CLOCK))
    return now, transaction_id


def parse_versions(rows: Iterable[Row]) -> dict[str, str]:
    """By organization, of the rows of `read_versions`. An organization whose rules never changed has none."""
    return dict(map(_version, (row for row in rows if row[0] == _RULES)))


def parse_rules(subjects: Mapping[str, set[Subject]], rows: Iterable[Row]) -> Iterable[Rules]:
    """The rules of these subjects, of the rows of `read_rules`."""
    of: dict[bytes | None, list[Row]] = defaultdict(list)
    for row in rows:
        of[row[0]].append(row)
    versions, accounts = dict(map(_version, of[_RULES])), dict(map(_account, of[_ACCOUNT]))
    found = {
        each: Rules(each, versions.get(each, NEVER_CHANGED), covered=covered) for each, covered in subjects.items()
    }
    for account_id, account in accounts.items():
        found[account.organization_id].accounts[account_id] = account
    for key_id, key in map(_key, of[_KEY]):
        found[key.organization_id].keys[key_id] = key

    def of_owner(owner_id: str) -> Rules:
        return found[accounts[owner_id].organization_id if owner_id in accounts else owner_id]

    for owner, switch in map(_switch, of[_SWITCH]):
        of_owner(owner[0]).switches[owner] = switch
    for place, window in map(_window, of[_WINDOW]):
        of_owner(place[0]).windows[place] = window
    for owner_id, halt in map(_halt, of[_HALT]):
        of_owner(owner_id).halts[owner_id] = halt
    for owner, limits in map(_limits, of[_LIMIT]):
        of_owner(owner[0]).limits[owner] = limits
    return found.values()


class RulesCache:
    """The rules that the last batches read on a connection. An organization's hold as long as its version is the
    same."""

    def __init__(self) -> None:
        self._link: PipelineConnection | None = None
        self._rules: RulesByOrganization = {}

    def use(self, link: PipelineConnection) -> None:
        """Clears the cache if the connection is another one. It may lead to a server that lost the latest commits,
        where a version that we have seen stands for other rules."""
        if link is not self._link:
            self._link, self._rules = link, {}

    def get(self, organization_id: str) -> Rules | None:
        return self._rules.get(organization_id)

    def put(self, read: Rules) -> Rules:
        """Keeps rules, beside those of the same version that were read before; gives both."""
        known = self._rules.get(read.organization_id)
        if known and known.version == read.version:
            known.add(read)
        else:
            known = self._rules[read.organization_id] = read
        if sum(len(each.covered) for each in self._rules.values()) > MAX_COVERED:
            most = max(self._rules.values(), key=lambda each: len(each.covered))
            del self._rules[most.organization_id]
        return known


_CLOCK, _RULES, _ACCOUNT, _KEY, _SWITCH, _WINDOW, _HALT, _LIMIT = (kind.encode() for kind in statements.Kind)


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
    _, key_id, organization_id, environment, permissions, entitlements, disabled, ends = _texts(row)
    return key_id, KeyState(
        organization_id,
        _ENVIRONMENTS[environment],
        frozenset(map(Permission, _members(permissions))),
        frozenset(map(Entitlement, _members(entitlements))),
        disabled == _TRUE,
        ends and datetime.fromisoformat(ends),
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
