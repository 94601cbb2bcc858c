"""Logs and metrics: JSON lines, or colour on a terminal. Nothing here may hold a secret or a
tenant's data."""

import asyncio
import contextlib
import logging
import re
import shutil
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import Literal, TextIO, get_args

import prometheus_client as prometheus
import structlog
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from rich.markup import escape

BACKUP_STAMP = "last-backup"  # in DATA_DIR: its time is that of the last backup
MINUTE_SECONDS = 60.0
# The fields of the line that is logged once a minute, and where they come from.
RATES = {
    "requests": "ti_http_requests_total",
    "orders": "ti_orders_total",
    "fills": "ti_fills_total",
    "rejects": "ti_order_rejects_total",
    "deliveries": "ti_stream_deliveries_total",
}
TIMES = {
    "request": "ti_http_request_seconds",
    "commit": "ti_writer_commit_seconds",
    "broker": "ti_execution_call_seconds",
}
SECONDS_BUCKETS = prometheus.Histogram.DEFAULT_BUCKETS  # the last one is infinite
PROCESS_UP = ("ti_process_up", "1: the process answers.")

Log = structlog.typing.FilteringBoundLogger
AlertKind = Literal[
    "cancel_not_delivered",
    "conflicting_execution",
    "event_left_out",
    "exposure_differs",
    "lease_without_session",
    "order_forgotten",
    "order_lost",
    "order_unknown",
    "paper_order_failed",
    "pending_too_old",
    "resurrected",
    "tail_lost",
    "unprotected",
]

FixIncident = Literal["garbled", "gap", "reject", "resend", "reset", "skipped"]


class _LineWriter(structlog.WriteLogger):
    """Writes a line and its end at once, since other processes may write to the same stream. Drops
    a line that cannot be written: a closed terminal or a full disk must not end the process."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def make_log(level: str = "info", stream: TextIO | None = None) -> Log:
    """Makes a logger that writes to `stream` (standard error): colour on a terminal, else one JSON
    object a line."""
    out = stream or sys.stderr
    processors: list[structlog.typing.Processor] = [structlog.processors.add_log_level]
    if out.isatty():
        processors.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True))
        # No padding, for 80 columns; and no local variables in tracebacks, which could hold a
        # secret.
        plain = structlog.dev.plain_traceback
        processors.append(
            structlog.dev.ConsoleRenderer(0, pad_level=False, exception_formatter=plain)
        )
    else:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    log: Log = structlog.wrap_logger(
        _LineWriter(out),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        context_class=dict,
    )
    return log


def terminal_text(text: str) -> str:
    """For rich's `print`. A file, a broker or PostgreSQL may have written it: it cannot move the
    cursor or colour."""
    return escape("".join(each if each.isprintable() or each == "\n" else "?" for each in text))


class LibraryMessages(logging.Handler):
    """Writes the messages of libraries (asyncio, grpc, httpx) as lines of our log, so that it has
    one format."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(
            record.levelno,
            "library message",
            logger=record.name,
            detail=record.getMessage(),
            exc_info=record.exc_info,
        )


@contextlib.contextmanager
def library_messages(log: Log) -> Iterator[None]:
    """Writes the messages of libraries to `log` while the block runs."""
    handler = LibraryMessages(log)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def make_series(
    metric: prometheus.Counter | prometheus.Gauge | prometheus.Histogram, *values: Iterable[str]
) -> None:
    """Makes the series of every combination of the labels' values, at 0. One that appears with its
    first event shows no increase by it, and an alert on the increase misses that event."""
    for combination in product(*map(list, values)):
        metric.labels(*combination)


class Requests(Collector):
    """Counts answers and their times. It is our own because every request is counted: the library's
    takes a lock each time."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, list[float]] = {}  # their sum, then the count of each bucket

    def make_series(self, route: str, statuses: Iterable[int]) -> None:
        for status in statuses:
            self._answers.setdefault((route, status), 0)
        self._seconds.setdefault(route, [0.0] * (len(SECONDS_BUCKETS) + 1))

    def count(self, route: str, status: int, seconds: float) -> None:
        if (route, status) not in self._answers:
            self.make_series(route, (status,))
        self._answers[route, status] += 1
        counts = self._seconds[route]
        counts[0] += seconds
        counts[bisect_left(SECONDS_BUCKETS, seconds) + 1] += 1

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "ti_http_requests", "Answered requests.", labels=("route", "status")
        )
        for (route, status), count in self._answers.items():
            answers.add_metric((route, str(status)), count)
        yield answers
        times = HistogramMetricFamily(
            "ti_http_request_seconds", "Time from the first byte to the answer.", labels=("route",)
        )
        for route, (total, *counts) in self._seconds.items():
            bounds = map(floatToGoString, SECONDS_BUCKETS)
            buckets = zip(bounds, accumulate(counts), strict=True)
            times.add_metric((route,), list(buckets), total)
        yield times


class Metrics:
    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        self.requests = Requests()
        self.registry.register(self.requests)
        self.rate_limited = self._counter(
            "ti_rate_limited_total",
            "Requests answered 429 and messages of streams that had to wait, by bucket.",
            "bucket",
        )
        self.http_connections = self._gauge("ti_http_connections", "Open HTTP connections.")
        self.http_connections_refused = self._counter(
            "ti_http_connections_refused_total",
            "HTTP connections that were too many, by the limit that they exceed: total or address.",
            "limit",
        )
        self.certificate_expires = self._gauge(
            "ti_tls_certificate_expires_timestamp_seconds",
            "When the certificate in use expires, as Unix time; 0 without TLS.",
            "port",
        )
        self._gauge(*PROCESS_UP).set(1)
        self.process_starts = self._counter(
            "ti_process_starts_total", "Times a process was started.", "child"
        )
        self.postgres_starts = self._counter(
            "ti_embedded_postgres_starts_total", "Times this process started PostgreSQL."
        )
        self.pool_in_use = self._gauge(
            "ti_database_connections_in_use", "Connections in use, by database role.", "role"
        )
        self.free_disk = self._gauge(
            "ti_data_dir_free_bytes", "Free bytes on the disk of DATA_DIR."
        )
        self.backup_made_at = self._gauge(
            "ti_backup_timestamp_seconds", "When the last backup was made, as Unix time; 0: never."
        )
        self.position_differences = self._counter(
            "ti_position_differences_total",
            "Positions of which a broker newly reported another quantity than ours.",
        )
        make_series(self.http_connections_refused, ("address", "total"))
        make_series(self.certificate_expires, ("grpc", "http"))
        self._count_outbox()
        self._count_writer()
        self._count_execution()
        self._count_stream()

    def _counter(self, name: str, meaning: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> prometheus.Gauge:
        return prometheus.Gauge(name, meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, *labels: str, buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> prometheus.Histogram:
        return prometheus.Histogram(name, meaning, labels, registry=self.registry, buckets=buckets)

    def watch_folder(self, data_dir: Path) -> None:
        """Reads the free disk and the time of the last backup whenever the metrics are read."""

        def look(read: Callable[[], float], otherwise: float) -> float:
            try:
                return read()
            except OSError:  # no folder, no backup
                return otherwise

        self.free_disk.set_function(
            lambda: look(lambda: shutil.disk_usage(data_dir).free, float("nan"))
        )
        self.backup_made_at.set_function(
            lambda: look(lambda: (data_dir / BACKUP_STAMP).stat().st_mtime, 0.0)
        )

    def alert(self, kind: AlertKind) -> None:
        self.execution_alerts.labels(kind).inc()

    def _count_outbox(self) -> None:
        self.outbox_rows = self._counter(
            "ti_outbox_rows_total",
            "Outbox attempts that ended, by the row's new state: completed, retried or failed.",
            "queue",
            "event_type",
            "ended",
        )
        self.outbox_handler_seconds = self._histogram(
            "ti_outbox_handler_seconds", "Time in an outbox handler.", "queue", "event_type"
        )
        self.outbox_backlog = self._gauge(
            "ti_outbox_backlog_rows",
            "Outbox rows that are pending, processing or failed.",
            "queue",
            "status",
        )
        self.outbox_oldest_pending = self._gauge(
            "ti_outbox_oldest_pending_seconds", "Age of the oldest pending row.", "queue"
        )
        self.outbox_oldest_claim = self._gauge(
            "ti_outbox_oldest_claim_seconds", "Age of the oldest claim.", "queue"
        )

    def _count_writer(self) -> None:
        self.writer_batch_size = self._histogram(
            "ti_writer_batch_size",
            "Commands decided in one transaction.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )
        self.writer_wait_seconds = self._histogram(
            "ti_writer_wait_seconds", "Longest time that a command of a batch waited."
        )
        self.writer_decide_seconds = self._histogram(
            "ti_writer_decide_seconds", "Time to lock, read, decide and append a batch."
        )
        self.writer_commit_seconds = self._histogram(
            "ti_writer_commit_seconds", "Time of a batch's commit."
        )
        self.intents_refused = self._counter(
            "ti_intents_refused_total", "Commands refused, by error code.", "code"
        )
        self.stats_rolled_at = self._gauge(
            "ti_stats_rolled_timestamp_seconds",
            "When this process last found the stats' buckets up to date with the log, as Unix "
            "time.",
        )
        self.invariants_checked_at = self._gauge(
            "ti_invariants_checked_timestamp_seconds",
            "When this process last came to the end of checking all accounts, as Unix time.",
        )

    def _count_execution(self) -> None:
        self.execution_sends = self._counter(
            "ti_execution_sends_total",
            "Commands sent to a broker, by outcome.",
            "command",
            "outcome",
        )
        self.execution_call_seconds = self._histogram(
            "ti_execution_call_seconds", "Time in a broker's call.", "command"
        )
        self.orders = self._counter(
            "ti_orders_total", "Orders that their broker acknowledged.", "broker", "environment"
        )
        self.fills = self._counter(
            "ti_fills_total", "Executions that were recorded.", "broker", "environment"
        )
        self.order_rejects = self._counter(
            "ti_order_rejects_total", "Orders that ended REJECTED.", "broker", "environment"
        )
        self.unknown_orders = self._gauge(
            "ti_execution_unknown_orders",
            "Orders of all accounts whose state at the broker is unknown.",
        )
        self.lost_orders = self._gauge(
            "ti_execution_lost_orders",
            "Open orders of all accounts that their brokers do not know.",
        )
        self.unprotected_entries = self._gauge(
            "ti_execution_unprotected_entries",
            "Entries of leased accounts whose positions are more than what works to close them.",
        )
        self.execution_lookups = self._counter(
            "ti_execution_lookups_total", "Look-ups of orders, by what was found.", "found"
        )
        self.execution_leases = self._gauge(
            "ti_execution_leases", "Accounts that this process has leased."
        )
        self.execution_links = self._gauge(
            "ti_execution_links", "Broker sessions, by state.", "state"
        )
        self.execution_breakers = self._gauge(
            "ti_execution_breakers_open", "Broker sessions on which submits are stopped."
        )
        self.execution_alerts = self._counter(
            "ti_execution_alerts_total", "Alerts that an operator must act on, by kind.", "kind"
        )
        make_series(self.execution_alerts, get_args(AlertKind))
        self.fix_incidents = self._counter(
            "ti_fix_incidents_total",
            "What FIX sessions met: garbled bytes, gaps, resends for the venue, rejects of "
            "its messages, resets by it, "
            "and commands skipped as too old.",
            "incident",
        )
        make_series(self.fix_incidents, get_args(FixIncident))

    def _count_stream(self) -> None:
        self.stream_subscribers = self._gauge(
            "ti_stream_subscribers", "Open streams, by transport.", "door"
        )
        self.stream_events = self._counter(
            "ti_stream_events_total", "Events read from the log for subscribers."
        )
        self.stream_caught_up_at = self._gauge(
            "ti_stream_caught_up_timestamp_seconds",
            "When this process had last handed on all events, as Unix time.",
        )
        self.stream_holes = self._counter(
            "ti_stream_holes_total", "Times that events were missing from the log."
        )
        self.stream_deliveries = self._counter(
            "ti_stream_deliveries_total", "Live events handed to subscribers."
        )
        self.stream_ended = self._counter(
            "ti_stream_ended_total",
            "Streams that ended, by the error's code; left: the reader ended it.",
            "door",
            "code",
        )


async def render_metrics(registry: prometheus.CollectorRegistry) -> bytes:
    return prometheus.generate_latest(registry)


def merge_metrics(texts: Mapping[str, str | None]) -> str:
    """Makes one text for Prometheus of those of several processes, whose names become the label
    `process`; None: the process does not answer. Each metric is declared once, as the format
    demands. Nothing is parsed further, as a scrape must not hold up requests."""
    families: dict[str, str] = {}
    silent = "# HELP {0} {1}\n# TYPE {0} gauge\n{0} 0.0\n".format(*PROCESS_UP)
    for process, text in texts.items():
        labelled = re.sub(
            r"^(\w+)\{", rf'\1{{process="{process}",', text or silent, flags=re.MULTILINE
        )
        labelled = re.sub(r"^(\w+) ", rf'\1{{process="{process}"}} ', labelled, flags=re.MULTILINE)
        for family in re.split(r"^(?=# HELP )", labelled, flags=re.MULTILINE):
            declared = "".join(family.splitlines(keepends=True)[:2])
            families[declared] = families.get(declared, "") + family.removeprefix(declared)
    return "".join(declared + samples for declared, samples in families.items())


class TrafficLog:
    """Logs once a minute what the process did: how often a second, and within which times (the
    upper edges of the metrics' buckets). Requests for probes and metrics are left out."""

    def __init__(self, metrics: Metrics, log: Log) -> None:
        self._registry = metrics.registry
        self._log = log
        self._before = self._read()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_SECONDS)
            self.write()

    def write(self) -> None:
        now = self._read()
        grown = {key: value - self._before.get(key, 0.0) for key, value in now.items()}
        self._before = now
        fields: dict[str, float | None] = {}
        for field, name in RATES.items():
            fields[field] = round(grown.get((name, ""), 0.0) / MINUTE_SECONDS, 2)
        for field, name in TIMES.items():
            for share in (50, 99):
                millis = _quantile_millis(grown, f"{name}_bucket", share)
                fields[f"{field}_p{share}_ms"] = millis
        self._log.info("traffic", **fields)

    def _read(self) -> dict[tuple[str, str], float]:
        """Sums by metric and bucket."""
        found: dict[tuple[str, str], float] = defaultdict(float)
        for family in self._registry.collect():
            for sample in family.samples:
                route = sample.labels.get("route", "/v1/")
                if sample.name.startswith("ti_") and route.startswith("/v1/"):
                    found[sample.name, sample.labels.get("le", "")] += sample.value
        return found


def _quantile_millis(
    counts: Mapping[tuple[str, str], float], name: str, share: int
) -> float | None:
    """The edge of the bucket in which that share of all is reached; None: there were none, or it is
    above all edges."""
    wanted = counts.get((name, "+Inf"), 0.0) * share / 100
    if wanted:
        for edge in SECONDS_BUCKETS[:-1]:
            text = floatToGoString(edge)  # type: ignore[no-untyped-call]  # the library's
            if counts[name, text] >= wanted:
                return 1000 * edge
    return None
