"""A session over HTTP, word for word: what TiCDC's clients send, and the shapes that they are given.

``session.txt`` is rewritten with TIDEMILL_REWRITE=1; each line that has changed is explained in the commit.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.api.clients import client_of, shop
from tidemill.api.wire import open_api_version
from tidemill.config.replica import DEFAULTS, api_form
from tidemill.model.cluster import Cause, Hindrance, RunningError
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts, compose

GOLDEN = Path(__file__).parent / "session.txt"
ORDERS = ChangefeedKey("default", "orders")
START = compose(1_772_360_000_000)
WHOLE = api_form(DEFAULTS)
SECRET = "Gr8-secret"
MYSQL = f"mysql://root:{SECRET}@127.0.0.1:3306/"

# What is sent, one after the other. Words alone are for the cluster behind.
SESSION: list[tuple[str, str, object] | str] = [
    ("GET", "/api/v2/status", None),
    ("GET", "/api/v2/health", None),
    ("GET", "/api/v2/captures", None),
    ("POST", "/api/v2/tso", {}),
    ("POST", "/api/v2/verify_table", {"replica_config": WHOLE, "sink_uri": MYSQL, "start_ts": 0}),
    (
        "POST",
        "/api/v2/changefeeds",
        {"namespace": "default", "changefeed_id": "orders", "sink_uri": MYSQL, "start_ts": START,
         "replica_config": WHOLE, "ca_path": "", "cert_path": "", "key_path": ""},
    ),
    ("POST", "/api/v2/changefeeds", {"changefeed_id": "orders", "sink_uri": MYSQL}),
    ("GET", "/api/v2/changefeeds", None),
    ("GET", "/api/v2/changefeeds/orders/status", None),
    ("GET", "/api/v2/changefeeds/orders/synced", None),
    ("GET", "/api/v2/processors", None),
    ("GET", "/api/v2/processors/orders/capture-0", None),
    ("POST", "/api/v2/changefeeds/orders/move_table", {"capture_id": "capture-1", "table_id": 100}),
    ("GET", "/api/v2/processors/orders/capture-1", None),
    ("POST", "/api/v1/changefeeds/orders/tables/rebalance_table", None),
    "hold",
    ("GET", "/api/v2/changefeeds/orders", None),
    ("PUT", "/api/v2/changefeeds/orders", {"sink_uri": "blackhole://"}),
    ("POST", "/api/v2/changefeeds/orders/pause", None),
    ("PUT", "/api/v2/changefeeds/orders", {"sink_uri": "", "replica_config": {"filter": {"rules": ["shop.orders"]}}}),
    ("PUT", "/api/v2/changefeeds/orders", {"replica_config": {"filter": {"rules": ["shop.orders"]}}}),
    ("POST", "/api/v2/changefeeds/orders/resume", {"overwrite_checkpoint_ts": START}),
    "fail",
    ("GET", "/api/v2/changefeeds?state=failed", None),
    ("GET", "/api/v2/changefeeds/orders/status", None),
    ("GET", "/api/v1/changefeeds", None),
    ("GET", "/api/v1/changefeeds/orders", None),
    ("GET", "/api/v2/processors/orders/capture-0", None),
    ("POST", "/api/v2/changefeeds/order/pause", None),
    ("GET", "/api/v2/unsafe/metadata", None),
    ("POST", "/api/v2/unsafe/resolve_lock", {"region_id": 7, "ts": START}),
    ("DELETE", "/api/v2/unsafe/service_gc_safepoint", None),
    ("POST", "/api/v2/captures/capture-1/drain", None),
    ("POST", "/api/v2/captures/capture-1/drain", None),
    ("PUT", "/api/v1/captures/drain", {"capture_id": "capture-0"}),
    ("DELETE", "/api/v2/changefeeds/orders", None),
    ("DELETE", "/api/v2/changefeeds/orders", None),
    ("DELETE", "/api/v1/changefeeds/orders", None),
    ("POST", "/api/v2/log", {"log_level": "warn"}),
    ("POST", "/api/v2/owner/resign", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("0.1.0", "v8.5.0-tidemill-0.1.0"),
        ("v0.1.0", "v8.5.0-tidemill-0.1.0"),
        ("v8.5.0", "v8.5.0"),
        ("", "v8.5.0-tidemill-"),
    ],
)
def test_a_version_is_one_that_ticdcs_clients_take(version: str, shown: str) -> None:
    assert open_api_version(version) == shown


def test_a_session_gives_ticdcs_shapes() -> None:
    cluster = shop()
    client = client_of(cluster)
    lines = []
    for step in SESSION:
        if step == "hold":
            waiting = Hindrance(
                Cause.LOCK, "key 7480 of region 7", "an open transaction of start-ts 5", Ts(START),
                datetime(2026, 3, 1, 10, 10, tzinfo=UTC),
            )  # fmt: skip
            cluster.hold(ORDERS, waiting)
        elif step == "fail":
            moment = datetime(2027, 3, 1, tzinfo=UTC)
            cluster.fail(ORDERS, RunningError(moment, "127.0.0.1:8300", "CDC:ErrSnapshotLostByGC", "collected"))
        else:
            method, path, body = step
            answer = client.ask(method, path, **({} if body is None and method == "GET" else {"json": body or {}}))
            lines += [f"{method} {path}", f"{answer.status_code} {json.dumps(answer.json(), indent=1)}", ""]
    said = "\n".join(lines)
    assert SECRET not in said
    if os.environ.get("TIDEMILL_REWRITE"):
        GOLDEN.write_text(said)
    assert said == GOLDEN.read_text()
