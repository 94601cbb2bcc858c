"""The rules by which a batch is decided: accounts, keys, controls and limits of an organization;
and their cache."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from trading_intents.controls.limits.model import (
    NO_LIMITS,
    AppliedLimits,
    LimitOwner,
    TradingLimits,
)
from trading_intents.controls.limits.state.tracking import LimitedSubject, limited_subject
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule
from trading_intents.intents.model import AccountState, KeyState
from trading_intents.intents.writing import statements
from trading_intents.storage.pipeline import PipelineConnection, Reply
from trading_intents.trading import AccountSymbol, FrozenStruct

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
            limits = AppliedLimits(
                organization=self.limits.get((self.organization_id, "")),
                account=self.limits.get((account_id, "")),
                symbol=self.limits.get((account_id, symbol)),
                key=self.limits.get((key_id, "")),
            )
            limited = None
            if limits != NO_LIMITS:
                limited = limited_subject(
                    owner, symbol, account.environment, account.broker, limits
                )
            self._limited[subject] = limited
        return self._limited[subject]

    def take(self, row: "RuleRow") -> None:
        owner_id = row.owner_id
        if row.version:
            self.version = row.version
        if row.account:
            self.accounts[owner_id] = row.account
        if row.key:
            self.keys[owner_id] = row.key
        if row.switch:
            self.switches[owner_id, row.symbol] = row.switch
        if row.window:
            self.windows[owner_id, row.symbol] = row.window
        if row.halt:
            self.halts[owner_id] = row.halt
        if row.limits is not None:
            self.limits[owner_id, row.symbol] = row.limits

    def add(self, others: "Rules") -> None:
        """Adds what was read of the same version."""
        for name in ("accounts", "keys", "switches", "windows", "halts", "limits", "covered"):
            getattr(self, name).update(getattr(others, name))


RulesByOrganization = dict[str, Rules]


class RuleRow(FrozenStruct, kw_only=True):
    """A row of `read_rules`: one of these, of an organization, an account or a key."""

    owner_id: str
    symbol: str = ""  # empty: of all
    version: str | None = None
    account: AccountState | None = None
    key: KeyState | None = None
    switch: Switch | None = None
    window: TimeRule | None = None
    halt: StandingHalt | None = None
    limits: TradingLimits | None = None


def parse_rules(subjects: Mapping[str, set[Subject]], reply: Reply) -> Iterable[Rules]:
    """The rules of these subjects, of the reply to `read_rules`. A command may name another
    organization's account."""
    decode = msgspec.json.Decoder(RuleRow).decode
    rows = [decode(text) for (text,) in reply.rows if text]
    owners: dict[str, str] = {}  # the organizations of accounts and keys
    for row in rows:
        if owned := row.account or row.key:
            owners[row.owner_id] = owned.organization_id
    found: dict[str, Rules] = {}
    for each, covered in subjects.items():
        found[each] = Rules(organization_id=each, version=NEVER_CHANGED, covered=covered)
    for row in rows:
        if rules := found.get(owners.get(row.owner_id, row.owner_id)):
            rules.take(row)
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
            version = versions.get(each, NEVER_CHANGED)
            if known and known.version == version and own <= known.covered:
                found[each] = known
        if missing := {each: own for each, own in subjects.items() if each not in found}:
            account_ids: set[str] = set()
            key_ids: set[str] = set()
            symbols: set[str] = set()
            for account_id, key_id, symbol in set[Subject]().union(*missing.values()):
                account_ids.add(account_id)
                key_ids.add(key_id)
                symbols.add(symbol)
            request = statements.read_rules(missing, account_ids, key_ids - {""}, symbols)
            (read,) = await connection.run([request])
            for rules in parse_rules(missing, read):
                found[rules.organization_id] = self.put(rules)
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
