"""The rules by which commands are judged, as users and operators set them: accounts, keys, controls
and limits; and their cache."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trading_intents.controls.limits.model import NO_LIMITS, AppliedLimits
from trading_intents.controls.limits.state.tracking import LimitedSubject, limited_subject
from trading_intents.controls.model import Controls, Subject
from trading_intents.controls.store import read_rules
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.storage.grouped import StatementRunner
from trading_intents.trading import Environment, FrozenStruct

NEVER_CHANGED = "0"  # the version of an organization that has none
# Subjects of all organizations; beyond it the organization with the most is forgotten.
MAX_COVERED = 30_000


class KeyState(FrozenStruct, kw_only=True):
    organization_id: str
    environment: Environment
    permissions: frozenset[Permission]
    entitlements: frozenset[Entitlement]
    disabled: bool  # itself, or its organization
    expires_at: datetime | None = None


class AccountState(FrozenStruct, kw_only=True):
    organization_id: str
    environment: Environment
    broker: str
    disabled: bool
    closed: bool
    has_credential: bool


class Rules(FrozenStruct, kw_only=True):
    """All that is set for a subject. None: nothing that the organization may know of."""

    account: AccountState | None
    key: KeyState | None
    controls: Controls
    limited: LimitedSubject | None  # None: it has no limits, and no key whose day is summed


class RulesRow(FrozenStruct, kw_only=True):
    """A row of `read_rules`."""

    version: str | None
    account: AccountState | None
    key: KeyState | None
    controls: Controls
    limits: AppliedLimits


def rules_of(subject: Subject, row: RulesRow) -> Rules:
    """A command may name another organization's account, of which the caller may know nothing."""
    account = row.account
    if account and account.organization_id != subject.organization_id:
        account = None
    limited = None
    if account and subject.symbol and (subject.key_id or row.limits != NO_LIMITS):
        limited = limited_subject(subject, account.environment, account.broker, row.limits)
    return Rules(account=account, key=row.key, controls=row.controls, limited=limited)


async def find_rules(tx: StatementRunner, subjects: Collection[Subject]) -> dict[Subject, Rules]:
    """Reads them, without a cache."""
    (reply,) = await tx.run([read_rules(subjects)])
    rows = zip(subjects, reply.parse(RulesRow), strict=True)
    return {subject: rules_of(subject, row) for subject, row in rows}


@dataclass(slots=True)
class KnownRules:
    """The rules of one organization, as far as they were read, at one version of them."""

    version: str
    rules: dict[Subject, Rules] = field(default_factory=dict)


class RulesCache:
    """The rules that were read on a connection. An organization's hold as long as its version is
    the same."""

    def __init__(self) -> None:
        self._connection: object = None
        self._known: dict[str, KnownRules] = {}  # by organization

    def of(self, connection: object) -> "RulesCache":
        """Cleared, if the connection is another one. It may lead to a server that lost the latest
        commits, where a version that we have seen stands for other rules."""
        if connection is not self._connection:
            self._connection = connection
            self._known = {}
        return self

    def find_last(self, subject: Subject) -> Rules | None:
        """The rules as they were when they were last read."""
        known = self._known.get(subject.organization_id)
        return known.rules.get(subject) if known else None

    async def find(
        self, tx: StatementRunner, subjects: Collection[Subject], versions: Mapping[str, str]
    ) -> dict[Subject, Rules]:
        """The rules at these versions of their organizations, or at later ones. Where one is
        another now, or a subject was never asked for, they are read for all subjects of the
        organization."""
        named = defaultdict[str, set[Subject]](set)
        for each in subjects:
            named[each.organization_id].add(each)
        missing: list[Subject] = []
        found: dict[Subject, Rules] = {}
        for organization_id, own in named.items():
            known = self._known.get(organization_id)
            version = versions.get(organization_id, NEVER_CHANGED)
            if known and known.version == version and own <= known.rules.keys():
                found |= {each: known.rules[each] for each in own}
            else:
                missing += own
        if missing:
            (reply,) = await tx.run([read_rules(missing)])
            for subject, row in zip(missing, reply.parse(RulesRow), strict=True):
                found[subject] = self._put(subject, row)
            self._forget()
        return found

    def _put(self, subject: Subject, row: RulesRow) -> Rules:
        """Keeps it beside those of the same version that were read before."""
        version = row.version or NEVER_CHANGED
        known = self._known.get(subject.organization_id)
        if known is None or known.version != version:
            known = self._known[subject.organization_id] = KnownRules(version)
        made = known.rules[subject] = rules_of(subject, row)
        return made

    def _forget(self) -> None:
        if sum(len(each.rules) for each in self._known.values()) > MAX_COVERED:
            most = max(self._known, key=lambda each: len(self._known[each].rules))
            del self._known[most]
