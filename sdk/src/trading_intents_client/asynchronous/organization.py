"""The caller's organization: its switch, limits and halt, its API keys and users."""

from collections.abc import Iterable
from datetime import datetime

from trading_intents_client.asynchronous.controls import halt_body, limits_body, switch_body
from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    given_fields,
    if_match,
    query,
    segment,
    time_text,
)
from trading_intents_client.transport.http import Transport
from trading_intents_client.types.accounts import (
    ApiKey,
    Caller,
    CreatedApiKey,
    KeyValidation,
    OrganizationRecord,
)
from trading_intents_client.types.controls import (
    Control,
    Halt,
    KeyLimits,
    KeyLimitsRecord,
    Limits,
    LimitsRecord,
)
from trading_intents_client.types.enums import (
    EnvironmentName,
    PermissionName,
    PermissionSetName,
    SortOrderName,
)

CONTROL = "/v1/controls/organization"


class AsyncOrganization:
    """Controls, limits and keys that concern all accounts of the organization."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def caller(self) -> Caller:
        """The owner of the client's credential, and what it may call."""
        return await self._transport.call("GET", "/v1/caller", Caller)

    async def find(self, provider: str, provider_id: str) -> OrganizationRecord:
        """The organization that has this id at the identity provider."""
        path = f"/v1/organizations/by-provider/{segment(provider)}/{segment(provider_id)}"
        return await self._transport.call("GET", path, OrganizationRecord)

    async def control(self) -> Control:
        """The organization's switch; NotFound when it was never set."""
        return await self._transport.call("GET", CONTROL, Control)

    async def set_control(
        self, *, disabled: bool, reason: str | None = None, version: int | None = None
    ) -> Control:
        """Switches trading of the whole organization off or on."""
        body = switch_body(disabled, reason)
        return await self._transport.call(
            "PUT", CONTROL, Control, body=body, headers=if_match(version)
        )

    async def limits(self) -> LimitsRecord:
        """The organization's limits; NotFound when there are none."""
        return await self._transport.call("GET", f"{CONTROL}/limits", LimitsRecord)

    async def set_limits(self, limits: Limits, *, version: int | None = None) -> LimitsRecord:
        """Replaces all of the organization's limits."""
        path = f"{CONTROL}/limits"
        body = limits_body(limits)
        return await self._transport.call(
            "PUT", path, LimitsRecord, body=body, headers=if_match(version)
        )

    async def delete_limits(self, *, version: int | None = None) -> None:
        """Removes the organization's limits."""
        await self._transport.send("DELETE", f"{CONTROL}/limits", headers=if_match(version))

    async def halt(
        self, reason: str, *, cancel_orders: bool = True, close_positions: bool = False
    ) -> Halt:
        """Stops trading in all accounts at once, cancels orders and, if asked for, closes
        positions."""
        body = halt_body(reason, cancel_orders, close_positions)
        return await self._transport.call("POST", f"{CONTROL}/halt", Halt, body=body)

    async def current_halt(self) -> Halt:
        """The halt that stands, else the last one; NotFound when there was none."""
        return await self._transport.call("GET", f"{CONTROL}/halt", Halt)

    async def resume(self) -> Halt:
        """Ends the organization's halt; NotHalted when none stands."""
        return await self._transport.call("POST", f"{CONTROL}/resume", Halt)

    def api_keys(self, *, order: SortOrderName | None = None) -> AsyncPages[ApiKey]:
        """The organization's API keys, without the keys themselves."""
        return AsyncPages(self._transport, "/v1/api-keys", ApiKey, query(order=order))

    async def create_api_key(
        self,
        name: str,
        environment: EnvironmentName,
        permissions: Iterable[PermissionName] | None = None,
        *,
        permission_set: PermissionSetName | None = None,
        expires_at: datetime | None = None,
    ) -> CreatedApiKey:
        """Makes a key, with permissions or a set of them. Its `api_key` is shown this once."""
        listed = None if permissions is None else list(permissions)
        ends = None if expires_at is None else time_text(expires_at)
        body = given_fields(
            name=name,
            environment=environment,
            permissions=listed,
            permission_set=permission_set,
            expires_at=ends,
        )
        return await self._transport.call("POST", "/v1/api-keys", CreatedApiKey, body=body)

    async def update_api_key(
        self,
        key_id: str,
        *,
        name: str | None = None,
        permissions: Iterable[PermissionName] | None = None,
        disabled: bool | None = None,
        version: int | None = None,
    ) -> ApiKey:
        """Changes a key; what is not given stays."""
        kept = None if permissions is None else list(permissions)
        body = given_fields(name=name, permissions=kept, disabled=disabled)
        path = f"/v1/api-keys/{segment(key_id)}"
        return await self._transport.call(
            "PATCH", path, ApiKey, body=body, headers=if_match(version)
        )

    async def delete_api_key(self, key_id: str, *, version: int | None = None) -> None:
        """Removes a key for good."""
        await self._transport.send(
            "DELETE", f"/v1/api-keys/{segment(key_id)}", headers=if_match(version)
        )

    async def key_limits(self, key_id: str) -> KeyLimitsRecord:
        """A key's limits and what is used of them; NotFound when there are none. A key may read its
        own."""
        return await self._transport.call(
            "GET", f"/v1/api-keys/{segment(key_id)}/limits", KeyLimitsRecord
        )

    async def set_key_limits(
        self, key_id: str, limits: KeyLimits, *, version: int | None = None
    ) -> KeyLimitsRecord:
        """Replaces all of a key's limits."""
        path = f"/v1/api-keys/{segment(key_id)}/limits"
        body = limits_body(limits)
        return await self._transport.call(
            "PUT", path, KeyLimitsRecord, body=body, headers=if_match(version)
        )

    async def delete_key_limits(self, key_id: str, *, version: int | None = None) -> None:
        """Removes a key's limits; what it has used today stays counted."""
        await self._transport.send(
            "DELETE", f"/v1/api-keys/{segment(key_id)}/limits", headers=if_match(version)
        )

    async def open_session(self, environment: EnvironmentName) -> CreatedApiKey:
        """Makes a key for the calling user. It ends with the token, at the latest after 12
        hours."""
        body = {"environment": environment}
        return await self._transport.call("POST", "/v1/api-keys/session", CreatedApiKey, body=body)

    async def end_session(self) -> None:
        """Ends the session keys that the calling token made."""
        await self._transport.send("DELETE", "/v1/api-keys/session")

    async def validate_api_key(self, api_key: str) -> KeyValidation:
        """Reads to whom a key belongs."""
        body = {"api_key": api_key}
        return await self._transport.call(
            "POST", "/api/v1/auth/api-key/validate", KeyValidation, body=body
        )

    async def delete_current_user(self) -> None:
        """Deletes the calling user for good."""
        await self._transport.send("DELETE", "/v1/users/me")
