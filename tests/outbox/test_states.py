"""The row's moves: the page and what the database really does are the same."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import Urls
from tests.outbox.rows import Table, claim_rows, new_row, put_rows
from trading_intents.errors import NotFound
from trading_intents.outbox import model as outbox_model
from trading_intents.outbox import operators
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import ClaimedRow, Queue, Status
from trading_intents.outbox.queue import FailedAttempt
from trading_intents.storage.database import Pool, Tx, open_database
from trading_intents.telemetry import Metrics, make_log

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
LIMIT = 2
KEYS = [uuid.UUID(int=n) for n in range(3)]
FINAL = {Status.COMPLETED, Status.FAILED}


class Move(StrEnum):
    PUT = "put"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    RELEASE = "release"
    SWEEP = "sweep"
    PRUNE = "prune"
    OPERATOR_RETRY = "operator retry"
    OPERATOR_DROP = "operator drop"


def read_moves() -> list[tuple[Status | None, Move, Status | None]]:
    """The page's table. None is "no row": before it is put, and after it is pruned or archived."""
    section = re.search(
        r"^## The outbox row\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert section
    rows = [
        [cell.strip() for cell in line.split("|")[1:4]]
        for line in section[1].splitlines()
        if line[:1] == "|"
    ][2:]
    return [(_status(state), Move(move), _status(after)) for state, move, after in rows]


def _status(word: str) -> Status | None:
    return None if word in ("", "gone") else Status(word)


MOVES: frozenset[tuple[Status | None, Move, Status | None]] = frozenset(
    {
        (None, Move.PUT, Status.PENDING),
        (Status.PENDING, Move.CLAIM, Status.PROCESSING),
        (Status.PROCESSING, Move.CLAIM, Status.PROCESSING),
        (Status.PROCESSING, Move.COMPLETE, Status.COMPLETED),
        (Status.PROCESSING, Move.RETRY, Status.PENDING),
        (Status.PROCESSING, Move.RETRY, Status.FAILED),
        (Status.PROCESSING, Move.RELEASE, Status.PENDING),
        (Status.PENDING, Move.SWEEP, Status.FAILED),
        (Status.PROCESSING, Move.SWEEP, Status.FAILED),
        (Status.COMPLETED, Move.PRUNE, None),
        (Status.FAILED, Move.OPERATOR_RETRY, None),
        (Status.FAILED, Move.OPERATOR_DROP, None),
    }
)


def test_the_page_names_each_move_once() -> None:
    documented = read_moves()
    assert len(documented) == len(MOVES)
    assert set(documented) == MOVES


def test_no_move_but_an_operators_or_the_pruning_leaves_a_final_state() -> None:
    leaving = {move for before, move, _ in MOVES if before in FINAL}
    assert leaving == {Move.PRUNE, Move.OPERATOR_RETRY, Move.OPERATOR_DROP}


def changed(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """But for the age of a claim, which the test moves."""
    return any(
        old[name] != new[name]
        for name in ("status", "attempts", "claim_token", "due_at", "finished_at")
    )


class Outbox(RuleBasedStateMachine):
    """Random moves, with every token that ever was: each row goes only where the table of moves
    lets it."""

    run: Callable[[Awaitable[Any]], Any]
    table: Table
    pool: Pool

    def __init__(self) -> None:
        super().__init__()
        self.run(self.table.connection.execute("TRUNCATE outbox, outbox_archive"))
        self.before: dict[int, dict[str, Any]] = {}
        self.claims: list[ClaimedRow] = []
        self.move = Move.PUT

    def did(self, move: Move) -> None:
        """The rows that changed are compared with the table of moves."""
        after = {row["id"]: row for row in self.run(self.table.rows())}
        for row_id in self.before.keys() | after.keys():
            old = self.before.get(row_id)
            new = after.get(row_id)
            if old is None or new is None or changed(old, new):
                taken = (old and Status(old["status"]), move, new and Status(new["status"]))
                fresh = (None, Move.PUT, Status.PENDING)
                assert taken in MOVES or (
                    move is Move.OPERATOR_RETRY and (taken[0], Move.PUT, taken[2]) == fresh
                ), taken
        self.before = after

    def write(self, work: Callable[[Tx], Awaitable[object]]) -> Any:
        async def transact() -> object:
            async with self.pool.transaction() as tx:
                return await work(tx)

        return self.run(transact())

    @rule(key=st.sampled_from(KEYS))
    def put(self, key: uuid.UUID) -> None:
        self.run(put_rows(self.pool, new_row(order_key=key)))
        self.did(Move.PUT)

    @rule(limit=st.integers(1, 4), claims_age_seconds=st.sampled_from([0.0, 4.0, 6.0]))
    def claim(self, limit: int, claims_age_seconds: float) -> None:
        self.run(self.table.age_claims(claims_age_seconds))
        claimed = self.run(claim_rows(self.pool, limit, attempt_limit=LIMIT))
        assert len(claimed) <= limit
        assert len({row.order_key for row in claimed}) == len(claimed)
        for row in claimed:
            assert row.attempts == self.before[row.id]["attempts"] + 1 <= LIMIT
            earlier = [
                r
                for r in self.before.values()
                if r["order_key"] == row.order_key and r["id"] < row.id
            ]
            assert {r["status"] for r in earlier} <= FINAL
        self.claims += claimed
        self.did(Move.CLAIM)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), ending=st.sampled_from([Move.COMPLETE, Move.RETRY, Move.RELEASE]))
    def end(self, data: st.DataObject, ending: Move) -> None:
        row = data.draw(st.sampled_from(self.claims))
        held = row.id in self.before and self.before[row.id]["claim_token"] == row.token
        match ending:
            case Move.COMPLETE:
                found = self.write(lambda tx: outbox.complete(tx, [row]))
            case Move.RETRY:
                found = self.write(
                    lambda tx: outbox.retry(tx, [FailedAttempt(row, "again")], LIMIT)
                )
            case _:
                found = self.write(lambda tx: outbox.release(tx, [row]))
        assert set(found) == ({row.token} if held else set())
        self.did(ending)

    @rule(claims_age_seconds=st.sampled_from([4.0, 6.0]))
    def sweep(self, claims_age_seconds: float) -> None:
        self.run(self.table.age_claims(claims_age_seconds))
        live = {
            row["id"]
            for row in self.before.values()
            if row["claim_token"] and claims_age_seconds < 5
        }
        self.write(lambda tx: outbox.sweep(tx, Queue.ACCOUNTS, LIMIT))
        self.did(Move.SWEEP)
        assert all(self.before[row_id]["claim_token"] for row_id in live)

    @rule()
    def prune(self) -> None:
        self.write(lambda tx: outbox.prune(tx, Queue.ACCOUNTS, 0))
        self.did(Move.PRUNE)

    @precondition(lambda self: self.before)
    @rule(data=st.data(), again=st.booleans())
    def operate(self, data: st.DataObject, again: bool) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.before)))
        failed = self.before[row_id]["status"] == Status.FAILED
        work = operators.retry if again else operators.drop
        try:
            self.run(work(self.pool, [row_id], "ada", "because"))
            assert failed
        except NotFound:
            assert not failed
        self.did(Move.OPERATOR_RETRY if again else Move.OPERATOR_DROP)

    @invariant()
    def what_failed_is_in_the_table_or_in_the_archive(self) -> None:
        for row in self.before.values():
            assert row["status"] != Status.FAILED or row["attempts"] == LIMIT


@pytest.fixture
def machine(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Outbox]]:
    """On a loop of its own, as hypothesis is not asynchronous. What failed is due again at once."""
    monkeypatch.setattr(outbox_model, "BACKOFF_SECONDS", (0,))
    with asyncio.Runner() as runner:
        opened = open_database(urls.login, 2, make_log("error"), Metrics())
        database = runner.run(opened.__aenter__())
        connection = runner.run(asyncpg.connect(urls.owner.reveal()))

        class Machine(Outbox):
            run = staticmethod(runner.run)  # type: ignore[assignment]  # a coroutine is an awaitable
            table = Table(connection)
            pool = database.worker

        yield Machine
        runner.run(connection.close())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.parametrize(
    ("examples", "steps"), [(6, 35), pytest.param(60, 40, marks=pytest.mark.chaos)]
)
def test_random_moves_never_leave_the_table_of_moves(
    machine: type[Outbox], examples: int, steps: int
) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps, database=None)
    run_state_machine_as_test(machine, settings=chosen)
