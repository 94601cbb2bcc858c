"""Intents over HTTP: submit, list, stats, latest, history. The log's records are answered as they
were hashed."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from trading_intents import errors
from trading_intents.accounts.http import find_account, target_of
from trading_intents.accounts.model import Account
from trading_intents.accounts.service import Accounts
from trading_intents.clock import TimeRange
from trading_intents.controls.bodies import Evaluation
from trading_intents.identity.access import Gate, caller_of, require_entitlement
from trading_intents.identity.model import ApiKeyPrincipal, Caller, Entitlement
from trading_intents.ids import ID_RULE, parse_id
from trading_intents.intents import body
from trading_intents.intents.model import Cancel, Command, PlacedLeg, Submission
from trading_intents.intents.service import Intents
from trading_intents.intents.store import ActionRow
from trading_intents.intents.writing.batch import Receipt, SubmitOutcome
from trading_intents.intents.writing.record import LinkedRecord, Record, with_hash
from trading_intents.intents.writing.writer import Writer
from trading_intents.stats.model import Stats, Window
from trading_intents.trading import (
    ActionType,
    Environment,
    Leg,
    OrderSide,
    OrderType,
    RouteStrategy,
    TimeInForce,
)
from trading_intents.web import paging
from trading_intents.web.body import read_choice
from trading_intents.web.limits import Bucket, Limits
from trading_intents.web.request import Answer, PendingAnswer, Request, answer_json
from trading_intents.web.routes import Operation, Parameter, Route, Tag

IDEMPOTENCY_KEY = Parameter(
    "idempotency-key",
    "The same key and body give the first answer again, for 400 days; another body is refused.",
    {"type": "string", "minLength": 1, "maxLength": body.MAX_KEY_CHARACTERS},
    where="header",
    check=body.check_key,
)
TIME_WINDOW = Parameter(
    "time_window",
    "How far back to count; last_month is 30 days.",
    {"type": "string", "enum": list(Window), "default": Window.LAST_DAY},
)

PARAMETERS = (*paging.time_parameters("created_at"), *paging.PAGE_PARAMETERS)
PRINCIPALS = ("API_KEY", "USER", "SERVICE", "SYSTEM")  # as in the stream's IntentPrincipalType
# Of all versions of the record, in its order.
RECORD_COLUMNS = (*sorted(LinkedRecord.__struct_fields__), "hash")


class Submitted(msgspec.Struct):
    """`legs`, of a CREATE that has some: each is an intent of its own."""

    intent_id: str
    seq: int
    legs: list[PlacedLeg] | msgspec.UnsetType = msgspec.UNSET


class ActionRecord(Record, kw_only=True):
    """The record as it is described: the writer has checked its texts."""

    action_type: ActionType
    environment: Environment
    order_side: OrderSide
    order_type: OrderType
    principal_type: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(PRINCIPALS)})]
    route_strategy: RouteStrategy
    time_in_force: TimeInForce
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    # Of hash_version 2 alone.
    leg: Leg | msgspec.UnsetType | None = msgspec.UNSET
    parent_intent_id: str | msgspec.UnsetType | None = msgspec.UNSET
    trail_amount: str | msgspec.UnsetType | None = msgspec.UNSET
    trail_bps: int | msgspec.UnsetType | None = msgspec.UNSET


class ActionListing(msgspec.Struct):
    data: list[ActionRecord]
    next_cursor: str | None


class Submitter(NamedTuple):
    """A caller as submits need it."""

    organization_id: str
    key_id: str
    limit_keys: tuple[str, str | None]  # its own, and its organization's

    def submission(
        self,
        account_id: str,
        command: Command,
        reference: str | None,
        key: str | None,
        digest: str | None,
    ) -> Submission:
        return Submission(
            account_id=account_id,
            organization_id=self.organization_id,
            key_id=self.key_id,
            command=command,
            client_reference_id=reference,
            idempotency_key=key,
            body_digest=digest,
        )


def submitter_of(caller: Caller) -> Submitter:
    assert isinstance(caller.principal, ApiKeyPrincipal)
    limit_keys = (caller.limit_key, caller.organization_limit_key)
    return Submitter(caller.organization_text, caller.principal.key_text, limit_keys)


def accepted(receipt: Receipt) -> Answer:
    legs = b',"legs":' + msgspec.json.encode(receipt.legs) if receipt.legs else b""
    made = Answer(
        body=b'{"intent_id":"%s","seq":%d%s}' % (receipt.intent_id.encode(), receipt.seq, legs),
        status=202,
    )
    if receipt.replayed:
        made.headers.append((b"idempotent-replayed", b"true"))
    return made


def submit_route(gate: Gate, accounts: Accounts, writer: Writer, limits: Limits) -> Route:
    @Operation(
        tag=Tag.INTENTS,
        body=body.Submit,
        answer=Submitted,
        status=202,
        bucket=Bucket.SUBMITS,
        verifies_late=True,
        is_counted_by_handler=True,  # by the command's kind
        parameters=(IDEMPOTENCY_KEY,),
        errors=(
            errors.AccountClosed,
            errors.AccountDisabled,
            errors.CancelPending,
            errors.ControlRejected,
            errors.CredentialMissing,
            errors.EntitlementRequired,
            errors.IdempotencyConflict,
            errors.IntentClosed,
            errors.OutcomeUnknown,
            errors.ReplacePending,
        ),
    )
    async def submit_intent(request: Request) -> PendingAnswer:
        """Submit a CREATE, REPLACE or CANCEL."""
        caller = caller_of(request)
        account_id = parse_id(request.params["account_id"])
        submitter = submitter_of(caller)
        key = request.header(b"idempotency-key")
        try:
            command, reference = body.read_command(request.json)
            if account_id is None:
                raise errors.ValidationFailed
        except errors.ValidationFailed:
            # 404 and 403 come before 422. For a valid body the writer checks both in its
            # transaction.
            request.headers_out += limits.take(
                Bucket.SUBMITS, *submitter.limit_keys, tokens=request.tokens
            )
            account = await find_account(request, gate, accounts)
            if account.environment is Environment.LIVE and not _says_cancel(request):
                require_entitlement(caller, Entitlement.TRADING_LIVE)
            raise
        bucket = Bucket.CANCELS if isinstance(command, Cancel) else Bucket.SUBMITS
        request.headers_out += limits.take(bucket, *submitter.limit_keys, tokens=request.tokens)
        digest = body.digest_of(request.json) if key else None
        submission = submitter.submission(
            request.params["account_id"], command, reference, key, digest
        )

        def answer(outcome: SubmitOutcome) -> None:
            request.answer(accepted(outcome) if isinstance(outcome, Receipt) else outcome)

        return writer.enqueue(submission, answer)

    return Route("POST", "/v1/accounts/{account_id}/intents", gate, submit_intent)


def intent_routes(
    gate: Gate, read_controls: Gate, accounts: Accounts, intents: Intents
) -> tuple[Route, ...]:
    async def find(request: Request) -> Account:
        return await find_account(request, gate, accounts)

    @Operation(
        tag=Tag.INTENTS, answer=ActionListing, parameters=PARAMETERS, csv_columns=RECORD_COLUMNS
    )
    async def list_intents(request: Request) -> Answer:
        """List the account's action records, in the order of their seq."""
        account = await find(request)
        times, page = _read_page(request, f"actions:{account.id}")
        return _answer_page(page, await intents.list(account, times, page))

    @Operation(tag=Tag.INTENTS, answer=Stats, parameters=(TIME_WINDOW,))
    async def get_intent_stats(request: Request) -> Answer:
        """Count the account's actions, intents, refusals and fills in a window of time."""
        account = await find(request)
        window = read_choice(
            "?time_window", request.query.get("time_window", Window.LAST_DAY), Window
        )
        return answer_json(await intents.stats(account, window))

    @Operation(tag=Tag.INTENTS, answer=ActionRecord)
    async def get_intent(request: Request) -> Answer:
        """Read the latest action of an intent."""
        row = await intents.latest(await find(request), parse_id(request.params["intent_id"]))
        return Answer(body=_show(row).encode())

    @Operation(tag=Tag.INTENTS, answer=ActionListing, parameters=PARAMETERS)
    async def list_intent_actions(request: Request) -> Answer:
        """List the actions of an intent, in the order of their seq."""
        account = await find(request)
        intent_id = parse_id(request.params["intent_id"])
        try:
            times, page = _read_page(request, f"actions:{account.id}:{intent_id}")
        except errors.ValidationFailed:
            await intents.latest(account, intent_id)  # 404 comes before 422
            raise
        return _answer_page(page, await intents.history(account, intent_id, times, page))

    many = "/v1/accounts/{account_id}/intents"
    one = many + "/{intent_id}"
    return (
        _evaluate_route(read_controls, intents),
        Route("GET", many, gate, list_intents),
        Route("GET", many + "/stats", gate, get_intent_stats),
        Route("GET", one, gate, get_intent),
        Route("GET", one + "/actions", gate, list_intent_actions),
    )


def _evaluate_route(gate: Gate, intents: Intents) -> Route:
    @Operation(
        tag=Tag.CONTROLS,
        body=body.ControlQuestion,
        answer=Evaluation,
        bucket=Bucket.READS,
        errors=(errors.NotFound,),
    )
    async def evaluate_controls(request: Request) -> Answer:
        """Ask whether the controls let an account, a symbol on it or a command trade now, and which
        do not."""
        gate.permit_object(request)
        account_id, symbol, command = body.read_question(request.json)
        target = target_of(request, gate, account_id)
        if target.account_id is None:
            raise errors.ValidationFailed.at("/account_id", ID_RULE)
        principal = caller_of(request).principal
        key_id = principal.key_id if isinstance(principal, ApiKeyPrincipal) else None
        triggered = await intents.evaluate(target, symbol, command, key_id)
        return answer_json(Evaluation(not triggered, list(triggered)))

    return Route("POST", "/v1/controls/evaluate", gate, evaluate_controls)


def _says_cancel(request: Request) -> bool:
    command = request.json.get("command") if isinstance(request.json, dict) else None
    return isinstance(command, dict) and command.get("type") == "CANCEL"


def _read_page(request: Request, list_name: str) -> tuple[TimeRange, paging.Page]:
    times = paging.read_times(request)
    return times, paging.read_page(request, list_name + paging.name_times(times), paging.parse_seq)


def _show(row: ActionRow) -> str:
    return with_hash(row.record, row.hash)


def _answer_page(page: paging.Page, rows: Sequence[ActionRow]) -> Answer:
    shown = rows[: page.limit]
    cursor = "null"
    if len(rows) > page.limit:
        cursor = f'"{paging.make_cursor(page.list_name, str(shown[-1].seq))}"'
    data = ",".join(map(_show, shown))
    return Answer(body=f'{{"data":[{data}],"next_cursor":{cursor}}}'.encode())
