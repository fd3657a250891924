"""The Grafana board and the Prometheus rules, made from the table of metrics."""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tidemill.api.metrics import ALERTS, METRICS, Alert, Metric

_WIDTH, _HEIGHT, _PER_ROW = 24, 8, 2
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_FEED_FILTER = 'namespace=~"$namespace",changefeed=~"$changefeed"'
_CAPTURE_FILTER = 'instance=~"$instance"'


def board() -> str:
    """JSON, to be imported by Grafana."""
    return json.dumps(
        {
            "title": "Tidemill",
            "uid": "tidemill",
            "schemaVersion": 39,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "tags": ["tidemill", "ticdc"],
            "templating": {"list": [_datasource(), *map(_variable, ("namespace", "changefeed", "instance"))]},
            "panels": _panels(),
        },
        indent=2,
    )


def rules() -> str:
    """YAML, for Prometheus' ``rule_files``."""
    lines = ["groups:", "  - name: tidemill", "    rules:"]
    for alert in ALERTS:
        lines += _rule(alert)
    return "\n".join(lines) + "\n"


def _rule(alert: Alert) -> list[str]:
    return [
        f"      - alert: {alert.name}",
        f"        expr: {json.dumps(alert.expression)}",
        f"        for: {alert.lasting}",
        "        labels:",
        f"          level: {alert.severity}",
        "        annotations:",
        f"          summary: {json.dumps(alert.summary)}",
    ]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str) -> dict[str, Any]:
    of = "ticdc_owner_ownership_counter" if label == "instance" else "ticdc_owner_status"
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values({of}, {label})",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row, metrics in groupby(METRICS, lambda each: each.row):
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                **_grid(0, y, _WIDTH, 1),
            }
        )
        y += 1
        for at, (title, group) in enumerate(groupby(metrics, lambda each: each.panel)):
            wide = _WIDTH // _PER_ROW
            x = at % _PER_ROW * wide
            panels.append(_panel(len(panels) + 1, title, list(group), _grid(x, y, wide, _HEIGHT)))
            y += _HEIGHT if at % _PER_ROW == _PER_ROW - 1 else 0
        y += _HEIGHT
    return panels


def _grid(x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(number: int, title: str, metrics: Iterable[Metric], grid: dict[str, Any]) -> dict[str, Any]:
    shown = list(metrics)
    targets = [
        {"refId": chr(65 + at), "datasource": _DATASOURCE, "expr": _query(each), "legendFormat": each.legend}
        for at, each in enumerate(shown)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": " ".join(each.help for each in shown),
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": shown[0].unit}, "overrides": []},
        "targets": targets,
        **grid,
    }


def _query(metric: Metric) -> str:
    filters = _FEED_FILTER if "changefeed" in metric.labels else _CAPTURE_FILTER
    return metric.query.replace("$name", f"{metric.name}{{{filters}}}")
