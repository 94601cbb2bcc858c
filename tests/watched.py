"""The metrics that alerts and the dashboard watch."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "trading-intents.json"
METRIC = re.compile(r"\b((?:ti|process)_\w+)")


def alert_rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        r for group in yaml.safe_load(RULES.read_text())["groups"] for r in group["rules"]
    ]
    return found


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def watched_metrics() -> set[str]:
    """All that rules and dashboard name."""
    expressions = [*(rule["expr"] for rule in alert_rules()), *dashboard_expressions()]
    return {name for expression in expressions for name in METRIC.findall(expression)}
