"""Submissions to a writer, and checks of what it has written."""

from collections.abc import Callable
from uuid import UUID

from tests.intents.in_process_writer import InProcessWriter, add_account, furnish
from tests.journal import ALL_ROWS, read_messages
from trading_intents.intents.model import Cancel, Create, Spec, Submission
from trading_intents.intents.writing.batch import SubmitOutcome
from trading_intents.intents.writing.queue import PendingSubmission
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

TRAP = """
    CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.symbol = 'TRAP' THEN RAISE EXCEPTION 'trapped'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER trap BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION trap();
"""


async def whole(in_process_writer: InProcessWriter) -> list[int]:
    """Checks that each action has one order, one row in the queue and two events, and that seqs
    have no gap."""
    actions = await in_process_writer.owner.fetch(
        "SELECT account_id, seq FROM actions ORDER BY account_id, seq"
    )
    by_account: dict[UUID, list[int]] = {}
    for account, seq in actions:
        by_account.setdefault(account, []).append(seq)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_account.values())
    heads = await in_process_writer.owner.fetch(
        "SELECT account_id, seq FROM account_heads WHERE seq > 0"
    )
    assert {account: len(seqs) for account, seqs in by_account.items()} == {
        row["account_id"]: row["seq"] for row in heads
    }
    creates = await in_process_writer.owner.fetchval(
        "SELECT count(*) FROM actions WHERE action_type = 'CREATE'"
    )
    counts = [await in_process_writer.count(table) for table in ("orders", "commands", "reports")]
    assert counts == [creates, len(actions), 0]
    messages = list(read_messages(await in_process_writer.owner.fetch(ALL_ROWS)))
    assert len(messages) == 2 * len(actions)
    return [len(seqs) for _, seqs in sorted(by_account.items())]


async def creates_of(in_process_writer: InProcessWriter, count: int) -> list[Submission]:
    """Of so many other organizations."""
    made = []
    for _ in range(count):
        organization, key = await furnish(in_process_writer.owner)
        account: UUID = await add_account(in_process_writer.owner, organization)
        command = in_process_writer.create(account).command
        made.append(
            Submission(
                account_id=str(account),
                organization_id=str(organization),
                key_id=str(key),
                command=command,
                client_reference_id=None,
                idempotency_key=None,
                body_digest=None,
            )
        )
    return made


CREATE = Create(
    Symbol("AAPL"),
    OrderSide.BUY,
    RouteStrategy.SMART,
    Spec(kind=OrderKind.MARKET, quantity="1", limit_price=None, stop_price=None, trail_amount=None),
)


def pending(
    organization: str,
    command: Create | Cancel = CREATE,
    answer: Callable[[SubmitOutcome], None] = lambda _: None,
) -> PendingSubmission:
    return PendingSubmission(
        Submission(
            account_id="account",
            organization_id=organization,
            key_id="key",
            command=command,
            client_reference_id=None,
            idempotency_key=None,
            body_digest=None,
        ),
        answer,
        0.0,
    )


CHANGES = {
    """
        INSERT INTO organization_controls (organization_id, manually_disabled)
        VALUES ($1, $2::uuid IS NOT NULL)
    """: ("control_rejected"),
    """
        INSERT INTO account_controls (account_id, organization_id, manually_disabled)
        VALUES ($2, $1, true)
    """: ("control_rejected"),
    "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
    " VALUES ($2, 'AAPL', $1, true)": "control_rejected",
    """
        INSERT INTO symbol_times (account_id, symbol, organization_id, trading_start, trading_end,
            timezone)
    """
    " VALUES ($2, 'AAPL', $1, '00:00', '00:00:01', 'Pacific/Kiritimati')": "control_rejected",
    "UPDATE accounts SET disabled = true WHERE id = $2 AND organization_id = $1": "account_disabled",
    "UPDATE accounts SET closed_at = now() WHERE id = $2 AND organization_id = $1": "account_closed",
    "UPDATE api_keys SET disabled = true WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
    """
        UPDATE api_keys SET permissions = '{intent:read}'
        WHERE organization_id = $1 AND $2::uuid IS NOT NULL
    """: ("forbidden"),
    "UPDATE api_keys SET environment = 'live' WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "forbidden",
    "DELETE FROM api_keys WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
    "UPDATE organizations SET disabled = true WHERE id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
}
