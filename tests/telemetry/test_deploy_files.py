"""The alert rules and the Grafana dashboard in deploy/ ask only for metrics and labels that are exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.main import COMMANDS
from holdfast.metrics import STORE_METRICS, WORKER_METRICS, Metric

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "holdfast.json"
EXPORTED: dict[str, Metric] = {**STORE_METRICS, **WORKER_METRICS}
ADDED = {"instance", "job", "le"}  # by Prometheus itself
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> list[tuple[str, str]]:
    """Every query by where it is."""
    found = [(rule["alert"], rule["expr"]) for rule in alerts()]
    for panel in dashboard()["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    found += [
        (variable["name"], variable["query"]["query"])
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    return found


def metrics_in(query: str) -> Iterator[tuple[Metric, set[str], bool]]:
    """Each metric a query names, with the labels it is selected by, and whether over a range of time."""
    for name, selected, ranged in re.findall(r"(holdfast_\w+)(?:\{([^}]*)\})?(\[)?", query):
        base = next((name.removesuffix(part) for part in PARTS["histogram"] if name.endswith(part)), name)
        metric = EXPORTED.get(name) or EXPORTED.get(base)
        assert metric is not None, f"{name} is not exported"
        assert name == metric.name or name.removeprefix(base) in PARTS[metric.kind], f"{name}: {metric.kind}"
        yield metric, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)), bool(ranged)


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_asks_for_what_is_exported(where: str, query: str) -> None:
    labels = set(ADDED)
    found = list(metrics_in(query))
    assert found, f"{where} asks for nothing of ours"
    for metric, selected, ranged in found:
        assert selected <= {*metric.labels, *ADDED}, f"{where}: {metric.name} has only {metric.labels}"
        grows = metric.kind in ("counter", "histogram", "summary")
        assert ranged == grows or re.search(rf"delta\({metric.name}", query), (
            f"{where}: rate of a counter, and no other"
        )
        labels |= set(metric.labels)
    grouped = re.findall(r"(?:by|on) \(([^)]*)\)", query)
    named = {label.strip() for group in grouped for label in group.split(",")}
    assert named <= labels, f"{where} groups by {named - labels}"


def test_an_alert_says_what_is_wrong_with_labels_that_it_has_and_commands_that_exist() -> None:
    rules = alerts()
    assert len(rules) >= 10
    for rule in rules:
        told = rule["annotations"]
        assert set(told) == {"summary", "description"} and rule["labels"]["severity"] in ("info", "warning", "critical")
        by = re.findall(r"by \(([^)]*)\)", rule["expr"])
        kept = set(re.split(r",\s*", by[0])) if by and not rule["expr"].startswith("holdfast") else None
        for label in re.findall(r"\$labels\.(\w+)", " ".join(told.values())):
            has = {*ADDED, *(name for metric, _, _ in metrics_in(rule["expr"]) for name in metric.labels)}
            assert label in (has if kept is None else kept), f"{rule['alert']}: {label}"
        for command in re.findall(r"`holdfast ([\w-]+)", told["description"]):
            assert command in COMMANDS, f"{rule['alert']}: {command}"


def test_the_dashboard_shows_every_panel_once_and_needs_no_data_source_of_ours() -> None:
    board = dashboard()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"} == {"${datasource}"}
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_promtool_accepts_the_rules_and_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: the package prometheus) is not on the PATH; the other tests read these files")
    asked = [query for where, query in queries() if not query.startswith("label_values")]
    rules = [
        {"record": f"of_ours:{n}", "expr": re.sub(r"\$\w+", lambda found: _filled(found[0]), query)}
        for n, query in enumerate(asked)
    ]
    own = tmp_path / "queries.yml"
    own.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for path in (ALERTS, own):
        checked = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def _filled(variable: str) -> str:
    return "5m" if variable == "$__rate_interval" else ".*"
