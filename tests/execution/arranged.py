"""States that tests of execution arrange behind its back, and wait for."""

from uuid import UUID, uuid4

from tests.execution.in_process_execution import InProcessExecution
from trading_intents.telemetry import Metrics


async def make_older(in_process: InProcessExecution, seconds: int) -> None:
    """All that was recorded, by so much."""
    owner = in_process.in_process_writer.owner
    async with owner.transaction():
        # A trigger forbids it. To disable that would change the schema, and cost the next test a
        # new database.
        await owner.execute("SET LOCAL session_replication_role = replica")
        for table in ("actions", "commands"):
            await owner.execute(
                f"UPDATE {table} SET created_at = created_at - make_interval(secs => $1)", seconds
            )


async def leave_marked(
    in_process: InProcessExecution, intent: UUID, action_type: str = "CREATE"
) -> None:
    """As a worker leaves a command that dies right after the mark; one that is over is put back."""
    owner = in_process.in_process_writer.owner
    async with owner.transaction():
        await owner.execute("DELETE FROM commands WHERE order_id = $1", intent)
        await owner.execute(
            """
            INSERT INTO commands (organization_id, account_id, order_id, seq, action_type, attempts,
                sent_at)
            SELECT organization_id, account_id, intent_id, seq, action_type, 1, clock_timestamp()
            FROM actions WHERE intent_id = $1 AND action_type = $2
            """,
            intent,
            action_type,
        )
        await owner.execute(
            """
            INSERT INTO sent_commands (account_id, client_order_id, organization_id, order_id, seq,
                action_type, sent_at)
            SELECT account_id, $2, organization_id, order_id, seq, action_type, sent_at
            FROM commands WHERE order_id = $1 AND action_type <> 'CREATE'
            """,
            intent,
            await in_process.coid(intent, action_type),
        )


def retried(metrics: Metrics, action_type: str = "create") -> float:
    """Attempts that were not the last."""
    return float(
        metrics.outbox_rows.labels("intents", f"intent.{action_type}", "retried")._value.get()
    )


def alerts(metrics: Metrics, kind: str) -> float:
    return float(metrics.execution_alerts.labels(kind)._value.get())


async def prove_absent(in_process: InProcessExecution) -> None:
    """As if ten seconds had gone since a command was first found missing, and look again."""
    await in_process.in_process_writer.owner.execute(
        """
        UPDATE orders SET absent_at = absent_at - interval '10 s', lookup_due_at = clock_timestamp()
        WHERE absent_at IS NOT NULL
        """
    )


async def until_missed(in_process: InProcessExecution) -> None:
    async def missed() -> bool:
        return bool(
            await in_process.in_process_writer.owner.fetchval(
                "SELECT count(*) FROM orders WHERE absent_at IS NOT NULL"
            )
        )

    await in_process.until(missed)


async def until_connection(
    in_process: InProcessExecution, state: str, account: UUID | None = None
) -> None:
    async def reached() -> bool:
        return await in_process.connection(account) == state

    await in_process.until(reached)


async def set_credential(in_process: InProcessExecution, secret: str) -> None:
    """As the account's API and the handler of its event leave it."""
    owner = in_process.in_process_writer.owner
    account = in_process.account
    credential = uuid4()
    await owner.execute("DELETE FROM sealed_secrets")
    await owner.execute("DELETE FROM credentials")
    await owner.execute(
        "INSERT INTO credentials (id, organization_id, account_id, broker, fields, fingerprint)"
        " VALUES ($1, $2, $3, 'paper', '{token}', 'x')",
        credential,
        in_process.in_process_writer.organization,
        account,
    )
    await owner.execute(
        "INSERT INTO sealed_secrets (id, organization_id, account_id, credential_id, sealed)"
        " VALUES ($1, $2, $3, $4, $5)",
        uuid4(),
        in_process.in_process_writer.organization,
        account,
        credential,
        secret.encode(),
    )
    await owner.execute(
        "UPDATE accounts SET has_credential = true, link_generation = link_generation + 1"
    )
