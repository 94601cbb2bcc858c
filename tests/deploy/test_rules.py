"""The alert rules by promtool: each fires while its fault is there and clears after it, on what the
metrics show."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deploy.programs import run
from tests.watched import METRIC, RULES, alert_rules, dashboard_expressions
from trading_intents.telemetry import BACKUP_STAMP, Metrics

pytestmark = pytest.mark.slow

STEP_SECONDS = 15
HEALTHY_STEPS = 20
FAULTY_STEPS = 20
HEALED_STEPS = 48  # an increase over ten minutes lasts as long
DAY_SECONDS = 86_400
INSTANCE = "worker-1:8080"


@dataclass(kw_only=True)
class Watched:
    """A process as Prometheus sees it, scraped every 15 s from time 0 on."""

    data_dir: Path
    metrics: Metrics = field(default_factory=Metrics)
    is_up: bool = True
    is_reading: bool = True
    series: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: int = 0

    def __post_init__(self) -> None:
        self.metrics.watch_folder(self.data_dir)
        self.metrics.requests.make_series("/v1/accounts", (200, 500, 503))
        self.metrics.execution_links.labels("disconnected").set(0)
        self.metrics.outbox_oldest_pending.labels("intents").set(0)
        self.metrics.outbox_oldest_claim.labels("intents").set(0)
        self.metrics.outbox_backlog.labels("intents", "failed").set(0)
        self.metrics.certificate_expires.labels("http").set(60 * DAY_SECONDS)
        self.make_backup(0)

    def make_backup(self, at: float) -> None:
        (self.data_dir / BACKUP_STAMP).touch()
        os.utime(self.data_dir / BACKUP_STAMP, (at, at))

    def fail_requests(self, count: int) -> None:
        for _ in range(count):
            self.metrics.requests.count("/v1/accounts", 503, 0.1)

    def scrape(self) -> None:
        if self.is_reading:
            self.metrics.stream_caught_up_at.set(self.seconds)
        labels = {"instance": INSTANCE, "job": "trading-intents"}
        self.series[_name("up", labels)].append(float(self.is_up))
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name in NAMED:
                    self.series[_name(sample.name, sample.labels | labels)].append(sample.value)
        self.seconds += STEP_SECONDS


def _name(name: str, labels: dict[str, str]) -> str:
    return (
        name
        + "{"
        + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
        + "}"
    )


Change = Callable[[Watched], object]
NAMED = {name for rule in alert_rules() for name in METRIC.findall(rule["expr"])}

# By alert: what goes wrong, in each step again, and how it is mended.
FAULTS: dict[str, tuple[Change, Change]] = {
    "TradingIntentsNotServing": (
        lambda it: it.fail_requests(10),
        lambda it: it.metrics.requests.count("/v1/accounts", 200, 0.1),
    ),
    "TradingIntentsWorkStuck": (
        lambda it: it.metrics.outbox_oldest_pending.labels("intents").set(61),
        lambda it: it.metrics.outbox_oldest_pending.labels("intents").set(0),
    ),
    "TradingIntentsLeaseWithoutSession": (
        lambda it: it.metrics.alert("lease_without_session"),
        lambda it: None,
    ),
    "TradingIntentsOrdersUnknown": (
        lambda it: it.metrics.unknown_orders.set(1),
        lambda it: it.metrics.unknown_orders.set(0),
    ),
    "TradingIntentsUnprotected": (
        lambda it: it.metrics.unprotected_entries.set(1),
        lambda it: it.metrics.unprotected_entries.set(0),
    ),
    "TradingIntentsExecutionAlert": (
        lambda it: it.metrics.alert("conflicting_execution"),
        lambda it: None,
    ),
    "TradingIntentsBrokerAway": (
        lambda it: it.metrics.execution_links.labels("disconnected").set(1),
        lambda it: it.metrics.execution_links.labels("disconnected").set(0),
    ),
    "TradingIntentsStreamLag": (
        lambda it: setattr(it, "is_reading", False),
        lambda it: setattr(it, "is_reading", True),
    ),
    "TradingIntentsDiskAlmostFull": (
        lambda it: it.metrics.free_disk.set_function(lambda: 1e9),
        lambda it: it.metrics.free_disk.set_function(lambda: 1e11),
    ),
    "TradingIntentsBackupTooOld": (
        lambda it: it.make_backup(it.seconds - 27 * 3600),
        lambda it: it.make_backup(it.seconds),
    ),
    "TradingIntentsCertificateExpires": (
        lambda it: it.metrics.certificate_expires.labels("http").set(it.seconds + 6 * DAY_SECONDS),
        lambda it: it.metrics.certificate_expires.labels("http").set(it.seconds + 60 * DAY_SECONDS),
    ),
}


# Further faults of alerts that have one above.
OTHERS: list[tuple[str, tuple[Change, Change]]] = [
    (
        "TradingIntentsOrdersUnknown",
        (
            lambda it: it.metrics.lost_orders.set(1),
            lambda it: it.metrics.lost_orders.set(0),
        ),
    ),
    (
        "TradingIntentsExecutionAlert",
        (lambda it: it.metrics.alert("order_forgotten"), lambda it: None),
    ),
]


def test_the_rules_are_valid() -> None:
    done = run("promtool", "check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_expression_of_the_dashboard_can_be_evaluated(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "panels.json"
    # Which is YAML too.
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = run("promtool", "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_while_its_fault_lasts_and_clears_after_it(tmp_path: Path) -> None:
    assert FAULTS.keys() == {rule["alert"] for rule in alert_rules()}
    tests = []
    for alert, (break_it, mend_it) in [*FAULTS.items(), *OTHERS]:
        watched = Watched(data_dir=tmp_path)
        watched.metrics.free_disk.set_function(lambda: 1e11)
        for steps, change in (
            (HEALTHY_STEPS, mend_it),
            (FAULTY_STEPS, break_it),
            (HEALED_STEPS, mend_it),
        ):
            for _ in range(steps):
                change(watched)
                watched.scrape()
        tests.append(promtool_test(alert, watched))
    file = tmp_path / "tests.json"
    settings = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_SECONDS}s",
        "tests": tests,
    }
    file.write_text(json.dumps(settings))
    done = run("promtool", "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(alert: str, watched: Watched) -> dict[str, object]:
    """No alert fires at the end of the healthy time, only this one at the end of the fault, and
    none at the end."""
    ends = [
        HEALTHY_STEPS,
        HEALTHY_STEPS + FAULTY_STEPS,
        HEALTHY_STEPS + FAULTY_STEPS + HEALED_STEPS,
    ]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": f"{STEP_SECONDS}s",
        "input_series": [
            {
                "series": name,
                "values": " ".join("stale" if math.isnan(v) else f"{v:g}" for v in values),
            }
            for name, values in watched.series.items()
        ],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{(end - 1) * STEP_SECONDS}s",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
                if number == 1
                else [],
            }
            for number, end in enumerate(ends)
        ],
    }
