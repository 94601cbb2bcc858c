"""Accounts, broker credentials, brokers, API keys and organizations."""

from datetime import datetime

from msgspec import Struct

from trading_intents_client.types.enums import (
    ConnectionState,
    Environment,
    OrderKind,
    OrderSide,
    Permission,
    PrincipalType,
    RouteStrategy,
    TimeInForce,
)


class TradingAccount(Struct, frozen=True, kw_only=True):
    """An account at a broker, in which orders are placed."""

    id: str
    organization_id: str
    name: str
    broker: str
    environment: Environment
    external_account_id: str | None
    disabled: bool
    connection: ConnectionState
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    version: int


class Credential(Struct, frozen=True, kw_only=True):
    """The stored secrets that the platform uses at the broker. `fields` are names only: secrets are
    never answered."""

    id: str
    account_id: str
    organization_id: str
    broker: str
    label: str | None
    fields: tuple[str, ...]
    fingerprint: str
    created_at: datetime
    updated_at: datetime
    version: int


class LinkedOrders(Struct, frozen=True, kw_only=True):
    """The orders to which a broker links legs."""

    order_sides: tuple[OrderSide, ...]
    order_kinds: tuple[OrderKind, ...]
    times_in_force: tuple[TimeInForce, ...]
    one_time_in_force: bool = False


class Broker(Struct, frozen=True, kw_only=True):
    """A broker: its capabilities, and the secrets that its accounts need."""

    name: str
    environments: tuple[Environment, ...]
    order_kinds: tuple[OrderKind, ...]
    times_in_force: tuple[TimeInForce, ...]
    times_in_force_by_kind: dict[OrderKind, tuple[TimeInForce, ...]]
    routes: tuple[RouteStrategy, ...]
    native_replace: bool
    credential_fields: tuple[str, ...]
    exits: LinkedOrders | None = None
    one_cancels_other: LinkedOrders | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key without the key itself; `hint` is its last four characters."""

    id: str
    organization_id: str
    name: str
    environment: Environment
    permissions: tuple[Permission, ...]
    disabled: bool
    hint: str
    last_used_at: datetime | None
    expires_at: datetime | None = None
    user: str | None = None  # the subject of the user whose session key it is
    created_at: datetime
    updated_at: datetime
    version: int


class CreatedApiKey(ApiKey, frozen=True, kw_only=True):
    """A new API key. `api_key` is shown this once, and is left out of the repr."""

    api_key: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, name={self.name!r}, hint={self.hint!r})"


class KeyValidation(Struct, frozen=True, kw_only=True):
    """The owner and the rights of a key."""

    id: str
    organization_id: str
    environment: Environment
    disabled: bool
    created_at: datetime


class OrganizationRecord(Struct, frozen=True, kw_only=True):
    """An organization, and its id at the identity provider."""

    id: str
    external_id: str
    name: str
    provider: str
    disabled: bool
    created_at: datetime


class Caller(Struct, frozen=True, kw_only=True):
    """The owner of the credential. `policies` names what it may call."""

    principal_type: PrincipalType
    principal_id: str
    organization_id: str | None
    organization_name: str | None
    environment: Environment | None
    role: str | None
    expires_at: datetime | None
    policies: tuple[str, ...]
