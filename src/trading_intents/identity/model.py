"""Kinds of callers, and what can be granted to them. Pure values: no I/O, no clock, no look-up."""

import functools
from collections.abc import Hashable
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

import msgspec

from trading_intents.config import LOCAL_PROVIDER
from trading_intents.errors import ValidationFailed
from trading_intents.ids import OrganizationId
from trading_intents.trading import Environment, FrozenStruct
from trading_intents.web.body import Name

KeyId = NewType("KeyId", UUID)


class Role(StrEnum):
    ADMIN = "admin"
    MEMBER = "member"
    READ_ONLY = "read_only"


class Permission(StrEnum):
    INTENT_READ = "intent:read"
    INTENT_EDIT = "intent:edit"
    CONTROL_READ = "control:read"
    CONTROL_EDIT = "control:edit"
    ACCOUNT_READ = "account:read"
    ACCOUNT_EDIT = "account:edit"
    CREDENTIAL_EDIT = "credential:edit"
    STREAM_READ = "stream:read"


class PermissionSet(StrEnum):
    """Names for permissions that go together. A set is expanded when the key is made: a key has
    permissions only."""

    READER = "reader"
    TRADER = "trader"
    OPERATOR = "operator"

    @property
    def permissions(self) -> frozenset[Permission]:
        added = {
            PermissionSet.READER: (),
            PermissionSet.TRADER: (Permission.INTENT_EDIT,),
            PermissionSet.OPERATOR: (
                Permission.CONTROL_EDIT,
                Permission.ACCOUNT_EDIT,
                Permission.CREDENTIAL_EDIT,
            ),
        }
        return frozenset({each for each in Permission if each.endswith(":read")} | set(added[self]))


def distinct(permissions: list[Permission]) -> frozenset[Permission]:
    if len(set(permissions)) != len(permissions):
        raise ValidationFailed.at("/permissions", "must name each permission once")
    return frozenset(permissions)


class ApiKeyChange(msgspec.Struct, forbid_unknown_fields=True):
    name: Name | None = None
    permissions: list[Permission] | None = None
    disabled: bool | None = None


class Scope(StrEnum):
    CREDENTIAL_READ = "credential:read"
    INTENT_READ = "intent:read"
    ACCOUNT_READ = "account:read"
    CONTROL_READ = "control:read"
    STREAM_READ = "stream:read"


class Entitlement(StrEnum):
    CONTROLS_PREMIUM = "controls_premium"
    TRADING_LIVE = "trading_live"


class ApiKeyPrincipal(FrozenStruct, dict=True, gc=True):
    key_id: KeyId
    organization_id: OrganizationId
    environment: Environment
    permissions: frozenset[Permission]

    @functools.cached_property
    def key_text(self) -> str:
        return str(self.key_id)

    @property
    def limit_key(self) -> str:
        return f"key:{self.key_text}"


class UserPrincipal(FrozenStruct):
    subject: str
    organization: str | None  # the provider's id of the active organization, as the token claims it
    role: str | None  # as the token claims it: may be no Role at all, and then grants nothing

    @property
    def limit_key(self) -> str:
        return f"user:{self.subject}"


class ServicePrincipal(FrozenStruct):
    client_id: str
    scopes: frozenset[Scope]

    @property
    def limit_key(self) -> str:
        return f"service:{self.client_id}"


Principal = ApiKeyPrincipal | UserPrincipal | ServicePrincipal


class Claims(FrozenStruct, kw_only=True):
    """The claims of a verified token, as its issuer made them: they may be older than what the
    database knows."""

    is_service: bool  # else of a user
    subject: str
    organization: str | None
    role: str | None
    scopes: frozenset[Scope]  # empty for a user
    issued_at: datetime  # 1970 when the token does not say
    expires_at: datetime


class OrganizationRecord(FrozenStruct, kw_only=True):
    id: OrganizationId
    provider: str
    external_id: str
    name: str
    entitlements: frozenset[Entitlement]
    disabled: bool
    created_at: datetime
    member_trading: bool = False  # members may have session keys, not only admins


class Caller(FrozenStruct, dict=True, gc=True):
    """A caller and its organization: the key's, the token's, or the one that a service account
    names."""

    principal: Principal
    organization: OrganizationRecord | None
    expires_at: datetime | None = None  # the credential's end, for what outlasts a request
    issued_at: datetime | None = None  # a token's; 1970 when it does not say
    token_digest: bytes | None = None  # of what its issuer signed

    @functools.cached_property
    def organization_text(self) -> str:
        return str(self.organization_id)

    @functools.cached_property
    def slot(self) -> Hashable:
        return self.organization.id if self.organization else self.limit_key

    @functools.cached_property
    def limit_key(self) -> str:
        return self.principal.limit_key

    @functools.cached_property
    def organization_limit_key(self) -> str | None:
        """API keys share a limit by environment, users have one of their own, so that programs
        never use up the limit of a person who stops trading. Reads of a service account count
        against no organization."""
        if self.organization is None or isinstance(self.principal, ServicePrincipal):
            return None
        kind = (
            self.principal.environment if isinstance(self.principal, ApiKeyPrincipal) else "users"
        )
        return f"{self.organization.id}:{kind}"

    @property
    def organization_id(self) -> OrganizationId:
        assert self.organization is not None, (
            "the policy of this endpoint does not ask for an organization"
        )
        return self.organization.id


class ApiKeyRecord(FrozenStruct, kw_only=True):
    id: KeyId
    organization_id: OrganizationId
    name: str
    environment: Environment
    permissions: frozenset[Permission]
    disabled: bool
    hint: str
    last_used_at: datetime | None
    expires_at: datetime | None
    user_subject: str | None  # of a session key
    created_at: datetime
    updated_at: datetime
    version: int


class NewKey(FrozenStruct, kw_only=True):
    name: str
    environment: Environment
    permissions: list[Permission]
    digest: bytes
    hint: str
    expires_at: datetime | None = None
    user_subject: str | None = None  # of a session key
    token_digest: bytes | None = None  # of the token that made it


class ServiceAccount(FrozenStruct):
    client_id: str
    digest: bytes  # of its secret
    scopes: frozenset[Scope]
    disabled: bool


class UserRecord(FrozenStruct):
    known: bool
    deleted: bool
    tokens_after: datetime | None  # tokens from before are refused: the user was deleted
    organization: OrganizationRecord | None  # the requested one, if it exists
    role: Role | None  # in that organization, if a member


class KeyRecord(FrozenStruct, kw_only=True):
    key: ApiKeyRecord
    digest: bytes
    has_expired: bool
    organization: OrganizationRecord
    user: UserRecord | None  # whose session it is
    caller: Caller  # the caller of this key, made once for all its requests

    @property
    def is_refused(self) -> bool:
        return (
            self.key.disabled
            or self.organization.disabled
            or self.has_expired
            or not self._session_holds
        )

    @property
    def _session_holds(self) -> bool:
        """A session key ends with what its user may do. Roles of an external provider are in
        tokens, and end with them, as the key does."""
        user = self.user
        key = self.key
        if user is None:
            return True
        if user.deleted or (user.tokens_after is not None and key.created_at <= user.tokens_after):
            return False
        made_as = Role.ADMIN if Permission.CONTROL_EDIT in key.permissions else Role.MEMBER
        role = user.role if self.organization.provider == LOCAL_PROVIDER else made_as
        return role is Role.ADMIN or (role is made_as and self.organization.member_trading)
