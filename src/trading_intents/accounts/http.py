"""Accounts, credentials and brokers over HTTP: parse, call one use case, render. Never shows a secret."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from trading_intents.accounts import model
from trading_intents.accounts.credentials import CredentialChange, Credentials
from trading_intents.accounts.model import Account, AccountChange, AccountDetails, ConnectionState
from trading_intents.accounts.service import Accounts
from trading_intents.brokers.registry import Registry
from trading_intents.clock import rfc3339
from trading_intents.errors import AccountClosed, LimitReached, OpenOrders, ValidationFailed, json_pointer
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.ids import parse_id
from trading_intents.secret import Secret
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce
from trading_intents.web.body import Name, Text
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, read_page
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routing import IF_MATCH, Operation, Route, Tag

MAX_SECRET_BYTES = 8 * 1024

# Checked by hand: msgspec does not say which value of an object is wrong.
SecretTexts = Annotated[
    dict[str, Any], msgspec.Meta(extra_json_schema={"additionalProperties": {"type": "string", "minLength": 1}})
]


class NewAccount(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    broker: Name
    environment: Environment
    external_account_id: Text | None = None


class ChangedAccount(msgspec.Struct, forbid_unknown_fields=True):
    """An empty external_account_id removes it; null or left out leaves a field as it is."""

    name: Name | None = None
    external_account_id: Text | None = None
    disabled: bool | None = None


class TradingAccount(msgspec.Struct):
    id: str
    organization_id: str
    name: str
    broker: str
    environment: Environment
    external_account_id: str | None
    disabled: bool
    connection: ConnectionState
    created_at: str
    updated_at: str
    closed_at: str | None
    version: int


class NewCredential(msgspec.Struct, forbid_unknown_fields=True):
    """`secrets` holds exactly the fields that the broker's manifest lists."""

    secrets: SecretTexts
    label: Text | None = None


class ChangedCredential(msgspec.Struct, forbid_unknown_fields=True):
    """New secrets rotate the credential; an empty label removes it."""

    secrets: SecretTexts | None = None
    label: Text | None = None


class Credential(msgspec.Struct):
    id: str
    account_id: str
    organization_id: str
    broker: str
    label: str | None
    fields: list[str]
    fingerprint: str
    created_at: str
    updated_at: str
    version: int


class Broker(msgspec.Struct):
    name: str
    environments: list[Environment]
    order_kinds: list[OrderKind]
    times_in_force: list[TimeInForce]
    times_in_force_by_kind: dict[OrderKind, list[TimeInForce]]
    routes: list[RouteStrategy]
    native_replace: bool
    credential_fields: list[str]


@dataclass(frozen=True, slots=True)
class AccountHandlers:
    read: Gate
    write: Gate
    accounts: Accounts

    def _show(self, account: Account) -> TradingAccount:
        return _show_account(account, self.accounts.connection(account))

    async def create(self, request: Request) -> Answer:
        body = request.body(NewAccount)
        self.write.permit_object(request, body.environment)
        given = AccountDetails(body.name, body.broker, body.environment, body.external_account_id or None)
        account = await self.accounts.create(caller_of(request).organization_id, given)
        return answer_json(self._show(account), 201, account.version)

    async def listing(self, request: Request) -> Answer:
        caller = caller_of(request)
        principal = caller.principal
        environment = principal.environment if isinstance(principal, ApiKeyPrincipal) else None
        page = read_page(request, f"accounts:{caller.organization_id}:{environment}", parse_id)
        rows = await self.accounts.list(caller.organization_id, environment, page)
        return answer_json(page.answer(rows, lambda account: str(account.id), self._show))

    async def inspect(self, request: Request) -> Answer:
        account = await find_account(request, self.read, self.accounts)
        return answer_json(self._show(account), version=account.version)

    async def change(self, request: Request) -> Answer:
        def read_change() -> AccountChange:
            body = request.body(ChangedAccount)
            return AccountChange(body.name, body.external_account_id, body.disabled)

        account = await self.accounts.change(
            caller_of(request).organization_id,
            parse_id(request.params["account_id"]),
            lambda account: self.write.permit_object(request, account.environment),
            read_change,
            request.if_match(),
        )
        return answer_json(self._show(account), version=account.version)

    async def close(self, request: Request) -> Answer:
        await self.accounts.close(
            caller_of(request).organization_id,
            parse_id(request.params["account_id"]),
            lambda account: self.write.permit_object(request, account.environment),
            request.if_match(),
        )
        return Answer(status=204)


def account_routes(read: Gate, write: Gate, accounts: Accounts) -> tuple[Route, ...]:
    handlers = AccountHandlers(read, write, accounts)
    one, many = "/v1/accounts/{account_id}", "/v1/accounts"
    return (
        Route(
            "POST",
            many,
            write,
            handlers.create,
            "Create a trading account.",
            operation=Operation("create_account", Tag.ACCOUNTS),
            body=NewAccount,
            answer=TradingAccount,
            status=201,
            errors=(LimitReached,),
        ),
        Route(
            "GET",
            many,
            read,
            handlers.listing,
            "List the organization's accounts; an API key sees its own environment's.",
            operation=Operation("list_accounts", Tag.ACCOUNTS),
            answer=Listing[TradingAccount],
            parameters=PAGE_PARAMETERS,
        ),
        Route(
            "GET",
            one,
            read,
            handlers.inspect,
            "Read an account.",
            operation=Operation("get_account", Tag.ACCOUNTS),
            answer=TradingAccount,
        ),
        Route(
            "PATCH",
            one,
            write,
            handlers.change,
            "Change an account's name, external id or disabled flag.",
            operation=Operation("update_account", Tag.ACCOUNTS),
            body=ChangedAccount,
            answer=TradingAccount,
            parameters=(IF_MATCH,),
            errors=(AccountClosed,),
        ),
        Route(
            "DELETE",
            one,
            write,
            handlers.close,
            "Close an account for good; it and its history stay readable.",
            operation=Operation("close_account", Tag.ACCOUNTS),
            status=204,
            parameters=(IF_MATCH,),
            errors=(AccountClosed, OpenOrders),
        ),
    )


@dataclass(frozen=True, slots=True)
class CredentialHandlers:
    read: Gate
    write: Gate
    accounts: Accounts
    credentials: Credentials

    async def create(self, request: Request) -> Answer:
        account = await find_account(request, self.write, self.accounts)
        body = request.body(NewCredential)
        made = await self.credentials.create(account, body.label, _secrets(body.secrets))
        return answer_json(_show_credential(made), 201, made.version)

    async def listing(self, request: Request) -> Answer:
        account = await find_account(request, self.read, self.accounts)
        page = read_page(request, f"credentials:{account.id}", parse_id)
        rows = page.select(await self.credentials.list(account), lambda c: c.id)
        return answer_json(page.answer(rows, lambda c: str(c.id), _show_credential))

    async def change(self, request: Request) -> Answer:
        def read_change() -> CredentialChange:
            body = request.body(ChangedCredential)
            return CredentialChange(body.label, None if body.secrets is None else _secrets(body.secrets))

        account = await find_account(request, self.write, self.accounts)
        credential_id = parse_id(request.params["credential_id"])
        made = await self.credentials.change(account, credential_id, read_change, request.if_match())
        return answer_json(_show_credential(made), version=made.version)

    async def remove(self, request: Request) -> Answer:
        account = await find_account(request, self.write, self.accounts)
        await self.credentials.remove(account, parse_id(request.params["credential_id"]), request.if_match())
        return Answer(status=204)


def credential_routes(read: Gate, write: Gate, accounts: Accounts, credentials: Credentials) -> tuple[Route, ...]:
    handlers = CredentialHandlers(read, write, accounts, credentials)
    many = "/v1/accounts/{account_id}/credentials"
    one = many + "/{credential_id}"
    return (
        Route(
            "POST",
            many,
            write,
            handlers.create,
            "Store the account's broker credential.",
            operation=Operation("create_credential", Tag.CREDENTIALS),
            body=NewCredential,
            answer=Credential,
            status=201,
            errors=(AccountClosed, LimitReached),
        ),
        Route(
            "GET",
            many,
            read,
            handlers.listing,
            "List the account's credential, without its secrets.",
            operation=Operation("list_credentials", Tag.CREDENTIALS),
            answer=Listing[Credential],
            parameters=PAGE_PARAMETERS,
        ),
        Route(
            "PATCH",
            one,
            write,
            handlers.change,
            "Rotate a credential's secrets, or change its label.",
            operation=Operation("update_credential", Tag.CREDENTIALS),
            body=ChangedCredential,
            answer=Credential,
            parameters=(IF_MATCH,),
            errors=(AccountClosed,),
        ),
        Route(
            "DELETE",
            one,
            write,
            handlers.remove,
            "Delete a credential and its secrets.",
            operation=Operation("delete_credential", Tag.CREDENTIALS),
            status=204,
            parameters=(IF_MATCH,),
            errors=(AccountClosed, OpenOrders),
        ),
    )


def broker_route(gate: Gate, brokers: Registry) -> Route:
    shown = [
        Broker(
            manifest.name,
            list(manifest.environments),
            list(manifest.times_in_force),
            [time for time in TimeInForce if any(time in times for times in manifest.times_in_force.values())],
            {kind: list(times) for kind, times in manifest.times_in_force.items()},
            list(manifest.routes),
            manifest.native_replace,
            list(manifest.credential_fields),
        )
        for manifest in brokers.all()
    ]

    async def listing(request: Request) -> Answer:
        page = read_page(request, "brokers")
        rows = page.select(shown, lambda broker: broker.name)
        return answer_json(page.answer(rows, lambda broker: broker.name, lambda broker: broker))

    return Route(
        "GET",
        "/v1/brokers",
        gate,
        listing,
        "List the brokers and what each can do.",
        operation=Operation("list_brokers", Tag.BROKERS),
        answer=Listing[Broker],
        parameters=PAGE_PARAMETERS,
    )


async def find_account(request: Request, gate: Gate, accounts: Accounts) -> Account:
    """The account that the path names, if the caller may see it."""
    account = await accounts.find(caller_of(request).organization_id, parse_id(request.params["account_id"]))
    gate.permit_object(request, account.environment)
    return account


def _secrets(given: dict[str, Any]) -> dict[str, Secret]:
    for name, text in given.items():
        if not isinstance(text, str) or not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_SECRET_BYTES:
            raise ValidationFailed.at(
                json_pointer("secrets", name), f"must be a string of 1 to {MAX_SECRET_BYTES} bytes"
            )
    return {name: Secret(text) for name, text in given.items()}


def _show_account(account: Account, connection: ConnectionState) -> TradingAccount:
    return TradingAccount(
        id=str(account.id),
        organization_id=str(account.organization_id),
        name=account.name,
        broker=account.broker,
        environment=account.environment,
        external_account_id=account.external_account_id,
        disabled=account.disabled,
        connection=connection,
        created_at=rfc3339(account.created_at),
        updated_at=rfc3339(account.updated_at),
        closed_at=rfc3339(account.closed_at) if account.closed_at else None,
        version=account.version,
    )


def _show_credential(credential: model.CredentialRecord) -> Credential:
    return Credential(
        id=str(credential.id),
        account_id=str(credential.account_id),
        organization_id=str(credential.organization_id),
        broker=credential.broker,
        label=credential.label,
        fields=list(credential.fields),
        fingerprint=credential.fingerprint,
        created_at=rfc3339(credential.created_at),
        updated_at=rfc3339(credential.updated_at),
        version=credential.version,
    )
