"""An API process and workers in processes of their own, on paper accounts; workers are killed,
stopped and started."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_books
from tests.intents.http_client import Body, Tables
from tests.platform import Platform, serving
from tests.seeds import seeded
from tests.tenants import EVERY_PERMISSION, PLENTY, Headers, key
from tests.waiting import eventually
from trading_intents.storage.database import open_database
from trading_intents.telemetry import Metrics, make_log

HURRY_PROOFS = """
    UPDATE orders SET absent_at = absent_at - interval '10 s', lookup_due_at = clock_timestamp()
    WHERE absent_at > clock_timestamp() - interval '10 s'
"""
SUBMITTERS = 8
SUBMIT_TRIES = 20
LIFE_SECONDS = (1.0, 3.0)
STOP_SECONDS = 8.0
EQUAL_SECONDS = 20.0  # a killed worker's leases are others' after five
CONNECTED_SECONDS = 30.0  # workers that are killed meanwhile have to begin again


@dataclass(kw_only=True)
class WorkerProcesses:
    urls: Urls
    folder: Path
    api: Platform
    headers: Headers
    accounts: list[str]
    tables: Tables
    settings: dict[str, str]

    @contextlib.contextmanager
    def worker(self) -> Iterator[Platform]:
        with serving(self.folder, **self.settings | {"ROLES": "worker"}) as platform:
            yield platform

    def try_to_submit(self, body: Body, account: str | None = None) -> httpx.Response:
        """A worker that is stopped in the middle of a transaction keeps the API from its locks for
        some seconds."""
        url = f"{self.api.url}/v1/accounts/{account or self.accounts[0]}/intents"
        headers = self.headers | {"idempotency-key": uuid4().hex}
        for _ in range(SUBMIT_TRIES):
            answer = self.api.client.post(url, json=body, headers=headers, timeout=20)
            if answer.status_code != 503:
                break
        return answer

    def submit(self, body: Body, account: str | None = None) -> str:
        answer = self.try_to_submit(body, account)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["intent_id"])

    def submit_all(self, bodies: Sequence[Body]) -> list[str]:
        """Over all accounts, from several clients at once."""
        with ThreadPoolExecutor(SUBMITTERS) as threads:
            accounts = [self.accounts[n % len(self.accounts)] for n in range(len(bodies))]
            return list(threads.map(self.submit, bodies, accounts))

    def script(
        self,
        kind: str,
        chance: str = "1",
        command: str | None = None,
        millis: int = 0,
        remaining: int | None = None,
    ) -> None:
        """Makes the paper broker fail in this way, on all accounts."""
        for account in self.accounts:
            self.tables.execute(
                "INSERT INTO paper_faults (account_id, kind, chance, command, millis, remaining)"
                " VALUES ($1::text::uuid, $2, $3::text::numeric, $4, $5, $6)",
                account,
                kind,
                chance,
                command,
                millis,
                remaining,
            )

    def heal(self) -> None:
        self.tables.execute("DELETE FROM paper_faults")

    def orders(self) -> dict[str, Body]:
        return {str(row["order_id"]): row for row in self.tables.fetch("SELECT * FROM orders")}

    def actions(self, intent: str) -> list[Body]:
        url = f"/v1/accounts/{self.accounts[0]}/intents/{intent}/actions"
        found: list[Body] = self.api.client.get(url, headers=self.headers).json()["data"]
        return found

    def statuses(self, with_reason: bool = False) -> dict[str, int]:
        """The number of orders by status; `with_reason` counts `REJECTED not_delivered` apart from
        `REJECTED`."""
        rows = self.tables.fetch(
            """
            SELECT concat_ws(' ', order_status, CASE WHEN $1::boolean THEN reason END) AS status,
                count(*)
            FROM orders GROUP BY 1 ORDER BY 1
            """,
            with_reason,
        )
        return {row["status"]: row["count"] for row in rows}

    def unfinished(self) -> int:
        count: int = self.tables.value(
            """
                SELECT count(*) FROM commands WHERE failed_at IS NULL
            """
        )
        return count

    def journal(self) -> dict[str, list[str]]:
        """The commands of each intent that the broker took, in their order; each by its own id, or
        by its order."""
        commands = self.tables.fetch("SELECT client_order_id, order_id FROM known_commands")
        owners: dict[object, str] = {
            row["client_order_id"]: str(row["order_id"]) for row in commands
        }
        found: dict[str, list[str]] = {}
        for row in self.tables.fetch(
            "SELECT * FROM paper_journal WHERE NOT duplicate ORDER BY account_id, seq"
        ):
            order = row["account_id"], row["number"]
            intent = owners.get(row["client_order_id"]) or owners[order]
            if row["command"] == "SUBMIT":
                owners[order] = intent
            found.setdefault(intent, []).append(row["command"])
        return found

    def assert_ids_taken_once(self) -> None:
        """Only a CREATE comes under an id that was used, and is refused."""
        journal = self.tables.fetch("SELECT * FROM paper_journal WHERE command <> ''")
        taken = [
            (row["account_id"], row["client_order_id"]) for row in journal if not row["duplicate"]
        ]
        assert len(taken) == len(set(taken))
        assert {row["command"] for row in journal if row["duplicate"]} <= {"SUBMIT"}

    def hurry_proofs(self) -> None:
        """As if the ten seconds between two proofs of absence had gone."""
        self.tables.execute(HURRY_PROOFS)

    def assert_true(self) -> int:
        self.assert_ids_taken_once()

        async def check() -> int:
            async with open_database(self.urls.login, 3, make_log("error"), Metrics()) as database:
                return await assert_true_books(database)

        return asyncio.run(check())


@contextlib.contextmanager
def open_worker_processes(
    urls: Urls, folder: Path, accounts: int = 2, **settings: str
) -> Iterator[WorkerProcesses]:
    chosen = (
        PLENTY
        | {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
        | settings
    )
    with serving(folder, **{"ROLES": "api"} | chosen) as api:
        document = {
            "external_id": "o",
            "entitlements": ["controls_premium"],
            "accounts": [
                {"name": f"a{n}", "broker": "paper", "environment": "paper"}
                for n in range(accounts)
            ],
            "api_keys": [key("k", "paper", EVERY_PERMISSION)],
        }
        made = api.provision({"organizations": [document]})["organizations"][0]
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        ids = [account["id"] for account in made["accounts"]]
        opened = WorkerProcesses(
            urls=urls,
            folder=folder,
            api=api,
            headers=headers,
            accounts=ids,
            tables=Tables(urls.owner),
            settings=chosen,
        )
        try:
            yield opened
        finally:
            opened.tables.close()


class Mortals:
    """Workers that are killed or stopped again and again until the test lets them live."""

    def __init__(
        self, worker_processes: WorkerProcesses, number: int, pauses: bool = False
    ) -> None:
        self._processes = worker_processes
        self._number = number
        self._pauses = pauses
        self.over = threading.Event()
        self.released = threading.Event()
        self.living: dict[int, Platform] = {}
        self.kills = self.stops = 0

    @contextlib.contextmanager
    def working(self) -> Iterator["Mortals"]:
        with ThreadPoolExecutor(self._number) as threads:
            lives = [threads.submit(self._run_session, number) for number in range(self._number)]
            try:
                yield self
                self.over.set()
                accounts = len(self._processes.accounts)
                until_sessions_equal_leases(self._processes.tables, self.living.values(), accounts)
            finally:
                self.over.set()
                self.released.set()
            for life in lives:
                life.result()

    def _run_session(self, number: int) -> None:
        chance = seeded(number)
        while not self.released.is_set():
            with self._processes.worker() as platform:
                self.living[number] = platform
                if self.over.wait(chance.uniform(*LIFE_SECONDS)):
                    self.released.wait()
                    return
                if self._pauses and chance.random() < 0.3:
                    self._pause(platform)
                del self.living[number]
                platform.process.kill()
                platform.process.wait()
                self.kills += 1

    def _pause(self, platform: Platform) -> None:
        platform.process.send_signal(signal.SIGSTOP)
        self.over.wait(STOP_SECONDS)
        platform.process.send_signal(signal.SIGCONT)
        self.stops += 1
        self.over.wait(LIFE_SECONDS[0])


def until_connected(worker_processes: WorkerProcesses) -> None:
    eventually(
        lambda: bool(
            worker_processes.tables.value("SELECT bool_and(connection = 'connected') FROM accounts")
        ),
        CONNECTED_SECONDS,
    )


def until_sessions_equal_leases(
    tables: Tables,
    workers: Collection[Platform],
    accounts: int,
    limit_seconds: float = EQUAL_SECONDS,
    has_broker: bool = True,
) -> None:
    """Of the workers that live: each account has one lease and one session, and is shown as
    connected, if its broker can be reached."""
    valid = """
        SELECT count(*) FROM leases JOIN workers w ON w.id = worker_id
        WHERE expires_at > clock_timestamp()
    """
    connected = "SELECT count(*) FROM accounts WHERE connection = 'connected'"
    found: tuple[float, ...] = ()

    def is_equal() -> bool:
        nonlocal found
        try:
            sessions = sum(map(_count_sessions, list(workers)))
        except httpx.TransportError:  # it is just being killed
            return False
        found = sessions, tables.value(valid), tables.value(connected)
        return found == (accounts, accounts, accounts if has_broker else 0)

    try:
        eventually(is_equal, limit_seconds)
    except AssertionError:
        raise AssertionError(
            f"sessions, leases, connected: {found}, of {accounts} accounts"
        ) from None


def _count_sessions(worker: Platform) -> float:
    lines = worker.client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("ti_execution_leases "))


def until_certain(worker_processes: WorkerProcesses, limit_seconds: float, hurry: bool) -> float:
    """No row is unfinished and no order in doubt or on its way."""

    def is_certain() -> bool:
        if hurry:
            worker_processes.hurry_proofs()
        waiting = worker_processes.tables.value(
            "SELECT count(*) FROM orders WHERE order_status IN"
            " ('PENDING_NEW', 'UNKNOWN', 'PENDING_REPLACE', 'PENDING_CANCEL')"
        )
        return worker_processes.unfinished() == 0 and waiting == 0

    try:
        return eventually(is_certain, limit_seconds)
    except AssertionError:
        open_orders = "SELECT * FROM orders WHERE finished_at IS NULL ORDER BY order_id LIMIT 5"
        rows = """
            SELECT * FROM commands ORDER BY id LIMIT 5
        """
        raise AssertionError(
            f"not certain: {worker_processes.tables.fetch(open_orders)} "
            f"{worker_processes.tables.fetch(rows)}"
        ) from None
