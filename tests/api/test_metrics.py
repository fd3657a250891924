"""What a capture tells Prometheus, and the board and rules that are made of the same table."""

import asyncio
import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.api.clients import NOW, client_of, shop
from tidemill.api.board import board, rules
from tidemill.api.metrics import ALERTS, METRICS
from tidemill.api.scraping import Metrics, stage_lags
from tidemill.clock import Clock
from tidemill.model.cluster import Cause, Hindrance, NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts, compose
from tidemill.testing.operations import FakeCluster

ORDERS = ChangefeedKey("default", "orders")
START = compose(1_772_360_000_000)  # 100.25 s before NOW
KNOWN = {each.name for each in METRICS}


class Hand(Clock):
    """Turned by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return NOW + self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def held() -> FakeCluster:
    cluster = shop()
    cluster.create(NewChangefeed(ORDERS, "blackhole://", Ts(START)))
    moment = datetime(2026, 3, 1, 10, 14, tzinfo=UTC)
    feed = cluster.feeds[ORDERS]
    feed.held = Hindrance(Cause.SINK, "127.0.0.1:3306", "does not answer", Ts(START), moment)
    return cluster


def values(text: bytes) -> dict[tuple[str, str], float]:
    """By the name and the values of the labels, which are named in the table."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name in KNOWN:
                labels = next(each.labels for each in METRICS if each.name == sample.name)
                assert set(sample.labels) == set(labels)
                found[sample.name, "/".join(sample.labels[label] for label in labels)] = sample.value
    return found


def test_the_owner_tells_how_each_changefeed_stands() -> None:
    found = values(client_of(held()).ask("GET", "/metrics").content)
    assert found["ticdc_owner_checkpoint_ts_lag", "default/orders"] == 100.25
    assert found["ticdc_owner_status", "default/orders"] == 0
    assert found["ticdc_owner_current_pd_ts", "default/orders"] == 1_772_360_100_250
    assert found["tidemill_stage_lag_seconds", "default/orders/puller"] == 100.25
    assert found["tidemill_held_back_seconds", "default/orders/sink"] == 60.25
    assert found["ticdc_scheduler_capture_table", "default/orders/127.0.0.1:8301"] == 1
    assert found["tidemill_captures", ""] == 2
    assert found["process_resident_memory_bytes", ""] > 1 << 20
    assert {name for name, _ in found} == KNOWN


def test_others_tell_of_themselves_alone() -> None:
    found = values(client_of(held(), capture=1).ask("GET", "/metrics").content)
    assert {name.partition("_")[0] for name, _ in found} == {"process", "ticdc"}
    assert found["ticdc_owner_ownership_counter", ""] == 0


def test_the_owner_counts_seconds_and_stops_when_it_is_none() -> None:
    cluster, hand = shop(), Hand()
    metrics = Metrics(cluster.operations(0), hand)

    def owned() -> float:
        return values(asyncio.run(metrics.read()))["ticdc_owner_ownership_counter", ""]

    assert owned() == 0
    hand.at = 10
    assert owned() == 10
    cluster.elect(1)
    hand.at = 12
    assert owned() == 12
    hand.at = 100
    assert owned() == 12


def test_what_is_gone_is_not_told_any_more() -> None:
    cluster = held()
    client = client_of(cluster)
    assert ("ticdc_owner_status", "default/orders") in values(client.ask("GET", "/metrics").content)
    cluster.feeds.clear()
    assert ("ticdc_owner_status", "default/orders") not in values(client.ask("GET", "/metrics").content)


def test_an_upstream_that_is_away_leaves_the_rest() -> None:
    cluster = held()
    cluster.is_upstream_away = True
    assert values(client_of(cluster).ask("GET", "/metrics").content)["tidemill_captures", ""] == 2


ts = st.integers(0, 1 << 40).map(lambda ms: Ts(compose(ms)))


@given(ts, ts, ts, ts)
def test_the_parts_of_the_lag_are_together_the_whole(checkpoint: Ts, resolved: Ts, pulled: Ts, now: Ts) -> None:

    info = replace(INFO, checkpoint_ts=checkpoint, resolved_ts=resolved, puller_resolved_ts=pulled)
    parts = [seconds for _, seconds in stage_lags(info, now)]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(max(0, (now >> 18) - (checkpoint >> 18)) / 1000)


INFO = held().feeds[ORDERS].info


@pytest.mark.parametrize(("name", "text"), [("board.json", board() + "\n"), ("alerts.yml", rules())])
def test_the_board_and_the_rules_are_those_in_the_docs(name: str, text: str) -> None:
    """Rewritten with TIDEMILL_REWRITE=1."""
    golden = Path(__file__).parent / name
    if os.environ.get("TIDEMILL_REWRITE"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_panels_and_alerts_speak_of_metrics_that_there_are() -> None:
    queries = [target["expr"] for panel in json.loads(board())["panels"] for target in panel.get("targets", ())]
    assert len(queries) == len(METRICS)
    for text in (*queries, *(alert.expression for alert in ALERTS)):
        used = set(re.findall(r"\b(?:ticdc|tidemill|process)_\w+", text))
        assert used
        assert used <= KNOWN


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(board())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
