"""The rules by which a batch is decided: accounts, keys, controls and limits of an organization;
and their cache."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from typing import Any

from trading_intents.controls.limits.model import (
    NO_LIMITS,
    AppliedLimits,
    LimitOwner,
    TradingLimits,
)
from trading_intents.controls.limits.state.tracking import LimitedSubject, limited_subject
from trading_intents.controls.limits.store import parse_limits
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.model import AccountState, KeyState
from trading_intents.intents.writing import statements
from trading_intents.storage.pipeline import PipelineConnection
from trading_intents.trading import AccountSymbol, Environment

NEVER_CHANGED = "0"  # the version of an organization that has none
# Subjects of all organizations; beyond it the organization with the most is forgotten.
MAX_COVERED = 50_000
# An account, a key or an empty text, a symbol: those that a command names.
Subject = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class Rules:
    """The rules that users and operators of one organization set, as far as it was read, at one
    version of it."""

    organization_id: str
    version: str
    accounts: dict[str, AccountState] = field(default_factory=dict)
    keys: dict[str, KeyState] = field(default_factory=dict)
    # By owner, and by symbol or an empty text.
    switches: dict[tuple[str, str], Switch] = field(default_factory=dict)
    windows: dict[AccountSymbol[str], TimeRule] = field(default_factory=dict)
    # By owner: the organization or an account.
    halts: dict[str, StandingHalt] = field(default_factory=dict)
    limits: dict[tuple[str, str], TradingLimits] = field(default_factory=dict)  # as the switches
    covered: set[Subject] = field(default_factory=set)  # the subjects whose rules are all here
    _limited: dict[Subject, LimitedSubject | None] = field(default_factory=dict)

    def controls_of(self, account_id: str, symbol: str) -> Controls:
        organization_id = self.organization_id
        switches = self.switches
        halts = self.halts
        key = (account_id, symbol)
        return Controls(
            organization_id=organization_id,
            account_id=account_id,
            organization=switches.get((organization_id, "")),
            account=switches.get((account_id, "")),
            symbol=switches.get(key),
            time=self.windows.get(key),
            organization_halt=halts.get(organization_id),
            account_halt=halts.get(account_id),
        )

    def limited_subject(self, subject: Subject) -> LimitedSubject | None:
        """None: nothing is known of the subject, or it has no limits."""
        account_id, key_id, symbol = subject
        if subject not in self.covered or not symbol or account_id not in self.accounts:
            return None
        if subject not in self._limited:
            account = self.accounts[account_id]
            owner = LimitOwner(self.organization_id, account_id, key_id)
            levels = (
                (owner.organization_id, ""),
                (account_id, ""),
                (account_id, symbol),
                (key_id, ""),
            )
            limits = AppliedLimits(*map(self.limits.get, levels))
            self._limited[subject] = (
                limited_subject(owner, symbol, account.environment, account.broker, limits)
                if limits != NO_LIMITS
                else None
            )
        return self._limited[subject]

    def add(self, others: "Rules") -> None:
        """Adds what was read of the same version."""
        for name in ("accounts", "keys", "switches", "windows", "halts", "limits", "covered"):
            getattr(self, name).update(getattr(others, name))


RulesByOrganization = dict[str, Rules]


def parse_rules(
    subjects: Mapping[str, set[Subject]], rows: Iterable[Sequence[Any]]
) -> Iterable[Rules]:
    """The rules of these subjects, of the rows of `read_rules`. A command may name another
    organization's account."""
    parsed = [*rows]
    owners = {
        own_id: organization_id
        for kind, own_id, organization_id, *_ in parsed
        if kind in ("account", "key")
    }
    found = {
        each: Rules(organization_id=each, version=NEVER_CHANGED, covered=covered)
        for each, covered in subjects.items()
    }
    for kind, own_id, name, *values in parsed:
        rules = found.get(owners.get(own_id, own_id))
        if rules is None:
            continue
        match kind:
            case "rules":
                rules.version = name
            case "account":
                rules.accounts[own_id] = _account(name, *values)
            case "key":
                rules.keys[own_id] = _key(name, *values)
            case "switch":
                rules.switches[own_id, name] = Switch(True, values[0])
            case "window":
                start, end, stale, zone, _ = values
                rules.windows[own_id, name] = TimeRule(
                    _time(start), _time(end), stale and int(stale), zone
                )
            case "halt":
                rules.halts[own_id] = StandingHalt(name, values[0])
            case "limit":
                rules.limits[own_id, name] = parse_limits(values[0])
    return found.values()


class RulesCache:
    """The rules that the last batches read on a connection. An organization's hold as long as its
    version is the same."""

    def __init__(self) -> None:
        self._connection: PipelineConnection | None = None
        self.known: RulesByOrganization = {}

    def of(self, connection: PipelineConnection) -> "RulesCache":
        """Cleared, if the connection is another one. It may lead to a server that lost the latest
        commits, where a version that we have seen stands for other rules."""
        if connection is not self._connection:
            self._connection = connection
            self.known = {}
        return self

    async def find(
        self,
        connection: PipelineConnection,
        subjects: Mapping[str, set[Subject]],
        versions: Mapping[str, str],
    ) -> RulesByOrganization:
        """Rules that have another version now, or do not cover a subject, are read for all subjects
        of the organization."""
        found: RulesByOrganization = {}
        for each, own in subjects.items():
            known = self.known.get(each)
            if (
                known
                and known.version == versions.get(each, NEVER_CHANGED)
                and own <= known.covered
            ):
                found[each] = known
        if missing := {each: own for each, own in subjects.items() if each not in found}:
            account_ids, key_ids, symbols = map(
                set, zip(*set().union(*missing.values()), strict=True)
            )
            (read,) = await connection.run(
                [statements.read_rules(missing, account_ids, key_ids - {""}, symbols)]
            )
            found |= {
                rules.organization_id: self.put(rules)
                for rules in parse_rules(missing, read.texts())
            }
        return found

    def put(self, read: Rules) -> Rules:
        """Keeps rules, beside those of the same version that were read before; gives both."""
        known = self.known.get(read.organization_id)
        if known and known.version == read.version:
            known.add(read)
        else:
            known = self.known[read.organization_id] = read
        if sum(len(each.covered) for each in self.known.values()) > MAX_COVERED:
            most = max(self.known.values(), key=lambda each: len(each.covered))
            del self.known[most.organization_id]
        return known


def _account(
    organization_id: str, environment: str, broker: str, disabled: str, closed: str, stored: str
) -> AccountState:
    return AccountState(
        organization_id=organization_id,
        environment=Environment(environment),
        broker=broker,
        disabled=disabled == _TRUE,
        closed=closed == _TRUE,
        has_credential=stored == _TRUE,
    )


def _key(
    organization_id: str,
    environment: str,
    permissions: str,
    entitlements: str,
    disabled: str,
    ends: str | None,
) -> KeyState:
    return KeyState(
        organization_id=organization_id,
        environment=Environment(environment),
        permissions=frozenset(map(Permission, _members(permissions))),
        entitlements=frozenset(map(Entitlement, _members(entitlements))),
        disabled=disabled == _TRUE,
        expires_at=datetime.fromisoformat(ends) if ends else None,
    )


_TRUE = "true"


def _time(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def _members(text: str) -> list[str]:
    return text.strip("{}").split(",") if text != "{}" else []
