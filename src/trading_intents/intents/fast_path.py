"""The fast path of a submit: no await, no task. A request that does not pass every check goes to
the handler in `http.py`, which finds out why; nothing is refused or counted here before that."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from trading_intents.errors import PlatformError
from trading_intents.identity.access import Gate
from trading_intents.identity.model import ApiKeyPrincipal, Caller, KeyId
from trading_intents.identity.service import Callers
from trading_intents.ids import parse_id
from trading_intents.intents.body import Submit, check_key, count_keys, digest_of, make_command
from trading_intents.intents.model import Cancel, Command, Submission
from trading_intents.intents.writing.batch import Receipt, SubmitOutcome
from trading_intents.intents.writing.queue import PendingSubmission
from trading_intents.intents.writing.writer import Writer
from trading_intents.web.limits import Bucket, Limits
from trading_intents.web.problem import PROBLEM
from trading_intents.web.request import JSON, TOKEN_BYTES, Answer, Incoming, request_id
from trading_intents.web.routes import FastHandler, Respond

MAX_SUBMITTERS = 10_000
_DECODER = msgspec.json.Decoder(Submit)
# Headers that need more than the fast path checks.
_OTHERS = frozenset({b"authorization", b"content-encoding"})


class Submitter(NamedTuple):
    """A caller as both paths of a submit need it; cached for as long as `Callers` knows the same
    caller."""

    caller: Caller
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
    organization_id = str(caller.organization_id)
    key_id = str(caller.principal.key_id)
    return Submitter(
        caller, organization_id, key_id, (caller.limit_key, caller.organization_limit_key)
    )


def bucket_of(command: Command) -> Bucket:
    return Bucket.CANCELS if isinstance(command, Cancel) else Bucket.SUBMITS


def fast_submit(gate: Gate, callers: Callers, writer: Writer, limits: Limits) -> FastHandler:
    submitters: dict[KeyId, Submitter] = {}

    def admit(key: str) -> Submitter | None:
        caller = callers.known(key)
        if caller is None:
            return None
        assert isinstance(caller.principal, ApiKeyPrincipal)
        known = submitters.get(caller.principal.key_id)
        if known is None or known.caller is not caller:
            gate.check(caller)
            known = submitter_of(caller)
            if len(submitters) >= MAX_SUBMITTERS:
                submitters.clear()
            submitters[caller.principal.key_id] = known
        return known

    def submit(incoming: Incoming, account_id: str, respond: Respond) -> PendingSubmission | None:
        headers = incoming.named or {}
        body = incoming.body
        api_key = headers.get(b"x-api-key")
        if body is None or api_key is None or not _is_simple(incoming, headers, body):
            return None
        if parse_id(account_id) is None:
            return None
        try:
            admitted = admit(api_key.decode("ascii"))
            if admitted is None:
                return None
            given = _DECODER.decode(body)
            # Every key is followed by a colon. If there are more colons than keys, a key may be
            # written twice.
            if body.count(b":") != count_keys(given):
                return None
            command, reference = make_command(given)
            once = _once(headers.get(b"idempotency-key"))
            bucket = bucket_of(command)
            if limits.left(bucket, *admitted.limit_keys) < 1:
                return None
        except (PlatformError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        own_id = request_id(headers.get(b"x-request-id"))

        def answer(outcome: SubmitOutcome) -> None:
            made = (
                accepted(outcome)
                if isinstance(outcome, Receipt)
                else PROBLEM.answer(outcome, own_id)
            )
            made.headers += ((b"x-request-id", own_id.encode()), *left)
            respond(made)

        digest = None if once is None else digest_of(msgspec.json.decode(body))
        submission = admitted.submission(account_id, command, reference, once, digest)
        try:
            waiting = writer.enqueue(submission, answer)
        except PlatformError:
            return None
        left = limits.take(bucket, *admitted.limit_keys)
        return waiting

    return submit


def _is_simple(incoming: Incoming, headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """A body of more than TOKEN_BYTES takes more than one token. Of two headers with one name one
    is missing in `headers`."""
    return (
        len(headers) == len(incoming.headers)
        and headers.get(b"content-type") == JSON
        and len(body) <= TOKEN_BYTES
        and _OTHERS.isdisjoint(headers)
    )


def _once(header: bytes | None) -> str | None:
    if header is None:
        return None
    key = header.decode("ascii").strip(" \t")
    check_key(key)
    return key


def accepted(receipt: Receipt) -> Answer:
    legs = b',"legs":' + msgspec.json.encode(receipt.legs) if receipt.legs else b""
    made = Answer(
        body=b'{"intent_id":"%s","seq":%d%s}' % (receipt.intent_id.encode(), receipt.seq, legs),
        status=202,
    )
    if receipt.replayed:
        made.headers.append((b"idempotent-replayed", b"true"))
    return made
