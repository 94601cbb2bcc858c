"""Every series is there from the start: an increase over time sees its first event."""

import re
from pathlib import Path
from typing import get_args

import httpx

from tests.conftest import Urls
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes, until_connected
from tests.intents.http_client import cancel, create, limit, market
from tests.waiting import eventually
from tests.watched import watched_metrics
from trading_intents.telemetry import AlertKind

SETTLED_SECONDS = 20
MEASURED = re.compile(r"ti_outbox_(backlog|oldest)")  # gauges that a worker sets when it has looked


def series(url: str) -> set[str]:
    text = httpx.get(f"{url}/metrics", verify=False).text
    names = {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    return {name for name in names if not MEASURED.match(name)}


def use(worker_processes: WorkerProcesses) -> None:
    """Orders that are filled, cancelled and refused; requests that are wrong; a stream that is
    left."""
    client = worker_processes.api.client
    account = f"/v1/accounts/{worker_processes.accounts[0]}"
    worker_processes.submit(create(market()))
    resting = worker_processes.submit(create(limit("1", "1")))
    eventually(lambda: worker_processes.statuses() == {"FILLED": 1, "NEW": 1}, SETTLED_SECONDS)
    worker_processes.submit(cancel(resting))
    eventually(
        lambda: worker_processes.statuses() == {"FILLED": 1, "CANCELLED": 1}, SETTLED_SECONDS
    )
    for wrong in (
        cancel(resting),
        cancel(worker_processes.accounts[0]),
        create(limit("1")) | {"more": 1},
    ):
        assert client.post(
            f"{account}/intents", json=wrong, headers=worker_processes.headers
        ).status_code in (
            404,
            409,
            422,
        )
    for path in ("/nowhere", account, "/v1/users/me", "/v1/accounts?limit=x"):
        assert client.get(
            path, headers=worker_processes.headers if "?" in path else {}
        ).status_code in (
            400,
            401,
            404,
            405,
        )
    with client.stream("GET", f"{account}/events", headers=worker_processes.headers) as stream:
        assert stream.status_code == 200
        next(stream.iter_raw())


def test_what_happens_makes_no_series_that_was_not_there(urls: Urls, tmp_path: Path) -> None:
    with (
        open_worker_processes(urls, tmp_path, accounts=1) as worker_processes,
        worker_processes.worker() as worker,
    ):
        before = {url: series(url) for url in (worker_processes.api.url, worker.url)}
        for kind in get_args(AlertKind):
            assert f'ti_execution_alerts_total{{kind="{kind}"}}' in before[worker.url]
        until_connected(worker_processes)
        use(worker_processes)
        eventually(
            lambda: (
                'ended_total{code="left",door="sse"} 1.0'
                in worker_processes.api.client.get("/metrics").text
            ),
            SETTLED_SECONDS,
        )
        assert [series(url) - known for url, known in before.items()] == [set(), set()]
        shown = httpx.get(f"{worker.url}/metrics", verify=False).text
        counted = (
            'orders_total{broker="paper",environment="paper"} 2.0',
            'fills_total{broker="paper",environment="paper"} 1.0',
        )
        assert [count for count in counted if f"ti_{count}" not in shown] == []
        types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", shown, re.MULTILINE))
        exposed = {
            *types,
            *(f"{name}_bucket" for name, kind in types.items() if kind == "histogram"),
        }
        assert watched_metrics() - exposed == set(), "rules or dashboard name what nobody exposes"
        assert len(watched_metrics()) > 20
        assert "_created" not in shown
