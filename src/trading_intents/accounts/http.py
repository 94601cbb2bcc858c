"""Accounts, credentials and brokers over HTTP: parse, call one use case, render. Never shows a
secret."""

from functools import partial

import msgspec

from trading_intents.accounts import model
from trading_intents.accounts.credentials import Credentials
from trading_intents.accounts.model import Account, ChangedCredential, NewCredential
from trading_intents.accounts.service import Accounts, AccountTarget
from trading_intents.brokers.port import Capabilities, LinkedOrders
from trading_intents.brokers.registry import Registry
from trading_intents.errors import AccountClosed, LimitReached, OpenOrders
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.ids import parse_id
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce
from trading_intents.web.body import named_environment
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, read_page
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import IF_MATCH, Operation, Route, Tag


class TradingAccount(msgspec.Struct, kw_only=True):
    id: str
    organization_id: str
    name: str
    broker: str
    environment: Environment
    external_account_id: str | None
    disabled: bool
    connection: model.ConnectionState
    created_at: str
    updated_at: str
    closed_at: str | None
    version: int


class Credential(msgspec.Struct, kw_only=True):
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


class Broker(msgspec.Struct, kw_only=True):
    name: str
    environments: list[Environment]
    order_kinds: list[OrderKind]
    times_in_force: list[TimeInForce]
    times_in_force_by_kind: dict[OrderKind, list[TimeInForce]]
    routes: list[RouteStrategy]
    native_replace: bool
    credential_fields: list[str]
    exits: LinkedOrders | None
    one_cancels_other: LinkedOrders | None


def account_routes(read: Gate, write: Gate, accounts: Accounts) -> tuple[Route, ...]:
    def show(account: Account) -> TradingAccount:
        return show_as(TradingAccount, account, connection=accounts.connection(account))

    @Operation(
        tag=Tag.ACCOUNTS,
        body=model.NewAccount,
        answer=TradingAccount,
        status=201,
        errors=(LimitReached,),
    )
    async def create_account(request: Request) -> Answer:
        """Create a trading account."""
        write.permit_object(request, named_environment(request.json))
        account = await accounts.create(organization_of(request), request.body(model.NewAccount))
        return answer_json(show(account), 201, account.version)

    @Operation(tag=Tag.ACCOUNTS, answer=Listing[TradingAccount], parameters=PAGE_PARAMETERS)
    async def list_accounts(request: Request) -> Answer:
        """List the organization's accounts; an API key sees its own environment's."""
        caller = caller_of(request)
        principal = caller.principal
        environment = principal.environment if isinstance(principal, ApiKeyPrincipal) else None
        page = read_page(request, f"accounts:{caller.organization_id}:{environment}", parse_id)
        rows = await accounts.list(caller.organization_id, environment, page)
        return answer_json(page.answer(rows, lambda account: str(account.id), show))

    @Operation(tag=Tag.ACCOUNTS, answer=TradingAccount)
    async def get_account(request: Request) -> Answer:
        """Read an account."""
        account = await find_account(request, read, accounts)
        return answer_json(show(account), version=account.version)

    @Operation(
        tag=Tag.ACCOUNTS,
        body=model.ChangedAccount,
        answer=TradingAccount,
        parameters=(IF_MATCH,),
        errors=(AccountClosed,),
    )
    async def update_account(request: Request) -> Answer:
        """Change an account's name, external id or disabled flag."""
        target = target_of(request, write)
        account = await accounts.change(
            target, lambda: request.body(model.ChangedAccount), request.if_match()
        )
        return answer_json(show(account), version=account.version)

    @Operation(
        tag=Tag.ACCOUNTS, status=204, parameters=(IF_MATCH,), errors=(AccountClosed, OpenOrders)
    )
    async def close_account(request: Request) -> Answer:
        """Close an account for good; it and its history stay readable."""
        await accounts.close(target_of(request, write), request.if_match())
        return Answer(status=204)

    one = "/v1/accounts/{account_id}"
    many = "/v1/accounts"
    return (
        Route("POST", many, write, create_account),
        Route("GET", many, read, list_accounts),
        Route("GET", one, read, get_account),
        Route("PATCH", one, write, update_account),
        Route("DELETE", one, write, close_account),
    )


def credential_routes(
    read: Gate, write: Gate, accounts: Accounts, credentials: Credentials
) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.CREDENTIALS,
        body=NewCredential,
        answer=Credential,
        status=201,
        errors=(AccountClosed, LimitReached),
    )
    async def create_credential(request: Request) -> Answer:
        """Store the account's broker credential."""
        account = await find_account(request, write, accounts)
        made = await credentials.create(account, request.body(NewCredential))
        return answer_json(show_as(Credential, made), 201, made.version)

    @Operation(tag=Tag.CREDENTIALS, answer=Listing[Credential], parameters=PAGE_PARAMETERS)
    async def list_credentials(request: Request) -> Answer:
        """List the account's credential, without its secrets."""
        account = await find_account(request, read, accounts)
        page = read_page(request, f"credentials:{account.id}", parse_id)
        rows = page.select(await credentials.list(account), lambda c: c.id)
        return answer_json(page.answer(rows, lambda c: str(c.id), partial(show_as, Credential)))

    @Operation(
        tag=Tag.CREDENTIALS,
        body=ChangedCredential,
        answer=Credential,
        parameters=(IF_MATCH,),
        errors=(AccountClosed,),
    )
    async def update_credential(request: Request) -> Answer:
        """Rotate a credential's secrets, or change its label."""
        account = await find_account(request, write, accounts)
        credential_id = parse_id(request.params["credential_id"])
        read_change = partial(request.body, ChangedCredential)
        made = await credentials.change(account, credential_id, read_change, request.if_match())
        return answer_json(show_as(Credential, made), version=made.version)

    @Operation(
        tag=Tag.CREDENTIALS, status=204, parameters=(IF_MATCH,), errors=(AccountClosed, OpenOrders)
    )
    async def delete_credential(request: Request) -> Answer:
        """Delete a credential and its secrets."""
        account = await find_account(request, write, accounts)
        await credentials.remove(
            account, parse_id(request.params["credential_id"]), request.if_match()
        )
        return Answer(status=204)

    many = "/v1/accounts/{account_id}/credentials"
    one = many + "/{credential_id}"
    return (
        Route("POST", many, write, create_credential),
        Route("GET", many, read, list_credentials),
        Route("PATCH", one, write, update_credential),
        Route("DELETE", one, write, delete_credential),
    )


def broker_route(gate: Gate, brokers: Registry) -> Route:
    shown = [_show_broker(broker) for broker in brokers.all()]

    @Operation(tag=Tag.BROKERS, answer=Listing[Broker], parameters=PAGE_PARAMETERS)
    async def list_brokers(request: Request) -> Answer:
        """List the brokers and what each can do."""
        page = read_page(request, "brokers")
        rows = page.select(shown, lambda broker: broker.name)
        return answer_json(page.answer(rows, lambda broker: broker.name, lambda broker: broker))

    return Route("GET", "/v1/brokers", gate, list_brokers)


def _show_broker(broker: Capabilities) -> Broker:
    taken = set[TimeInForce]().union(*broker.times_in_force.values())
    return show_as(
        Broker,
        broker,
        order_kinds=list(broker.times_in_force),
        times_in_force=[time for time in TimeInForce if time in taken],
        times_in_force_by_kind=broker.times_in_force,
    )


def target_of(request: Request, gate: Gate, account_id: str | None = None) -> AccountTarget:
    """The account that the path names, or the one of this id."""
    return AccountTarget(
        organization_of(request),
        parse_id(request.params["account_id"] if account_id is None else account_id),
        lambda account: gate.permit_object(request, account.environment),
    )


async def find_account(
    request: Request, gate: Gate, accounts: Accounts, account_id: str | None = None
) -> Account:
    return await accounts.find(target_of(request, gate, account_id))
