"""The quick way of a submit: no wait and no task until the writer answers. Refuses nothing itself: what does not pass
every check goes the handler's way, which finds out why."""

from typing import NamedTuple

import msgspec

from trading_intents.errors import PlatformError
from trading_intents.identity.access import Gate
from trading_intents.identity.model import ApiKeyPrincipal, Caller, KeyId
from trading_intents.identity.service import Callers
from trading_intents.ids import parse_id
from trading_intents.intents.body import Submit, check_key, count_keys, digest_of, make_command
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.queue import Outcome, PendingSubmission
from trading_intents.intents.writing.writer import Writer
from trading_intents.web.limits import Bucket, Limits
from trading_intents.web.problem import PROBLEM
from trading_intents.web.request import JSON, Answer, Incoming, request_id
from trading_intents.web.routing import Quick, Respond

MAX_PASSES = 10_000
_DECODER = msgspec.json.Decoder(Submit)
# Headers that ask for more than the quick way looks at.
_OTHERS = frozenset({b"authorization", b"content-encoding"})


class _Pass(NamedTuple):
    """What a caller may do here, for as long as it is the caller that `Callers` knows."""

    caller: Caller
    organization_id: str
    key_id: str
    limit_key: str


def quick_submit(gate: Gate, callers: Callers, writer: Writer, limits: Limits) -> Quick:
    passes: dict[KeyId, _Pass] = {}

    def admit(key: str) -> _Pass | None:
        caller = callers.known(key)
        if caller is None:
            return None
        assert isinstance(caller.principal, ApiKeyPrincipal)
        known = passes.get(caller.principal.key_id)
        if known is None or known.caller is not caller:
            gate.check(caller)
            known = _Pass(caller, str(caller.organization_id), str(caller.principal.key_id), caller.limit_key)
            if len(passes) >= MAX_PASSES:
                passes.clear()
            passes[caller.principal.key_id] = known
        return known

    def submit(incoming: Incoming, account_id: str, address: str, respond: Respond) -> PendingSubmission | None:
        headers, body = incoming.named or {}, incoming.body
        plain = len(headers) == len(incoming.headers) and headers.get(b"content-type") == JSON
        key = headers.get(b"x-api-key")
        if not plain or key is None or body is None or not _OTHERS.isdisjoint(headers) or parse_id(account_id) is None:
            return None
        try:
            limits.check(Bucket.FAILURES, address)
            admitted = admit(key.decode("ascii"))
            if admitted is None:
                return None
            given = _DECODER.decode(body)
            # Every key is followed by a colon: more colons than keys, and a key may be written twice.
            if body.count(b":") != count_keys(given):
                return None
            command, reference = make_command(given)
            once = _once(headers.get(b"idempotency-key"))
            bucket = Bucket.CANCELS if isinstance(command, Cancel) else Bucket.SUBMITS
            left = limits.take(bucket, admitted.limit_key)
        except (PlatformError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        own_id = request_id(headers.get(b"x-request-id"))

        def answer(outcome: Outcome) -> None:
            made = accepted(outcome) if isinstance(outcome, Receipt) else PROBLEM.answer(outcome, own_id)
            made.headers += ((b"x-request-id", own_id.encode()), *left)
            respond(made)

        submission = Submission(
            account_id,
            admitted.organization_id,
            admitted.key_id,
            command,
            reference,
            once,
            None if once is None else digest_of(msgspec.json.decode(body)),
        )
        try:
            return writer.offer(submission, answer)
        except PlatformError:
            return None

    return submit


def _once(header: bytes | None) -> str | None:
    if header is None:
        return None
    key = header.decode("ascii").strip(" \t")
    check_key(key)
    return key


def accepted(receipt: Receipt) -> Answer:
    made = Answer(b'{"intent_id":"%s","seq":%d}' % (receipt.intent_id.encode(), receipt.seq), 202)
    if receipt.replayed:
        made.headers.append((b"idempotent-replayed", b"true"))
    return made
