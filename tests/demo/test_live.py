"""The demonstration shows of the files what has arrived, in order, and no more than it was asked for."""

import json
from pathlib import Path

import pytest

from tidebox.upstream import EmbeddedUpstream
from tidemill.demo import live
from tidemill.errors import UpstreamError


def message(ts: int, kind: str, **row: str) -> str:
    return json.dumps({"type": kind, "pkNames": ["id"], "data": [row], "_tidb": {"commitTs": ts}})


def test_rows_and_ddls_of_a_stretch_of_time_in_order(tmp_path: Path) -> None:
    table = tmp_path / "demo" / "orders"
    (table / "5" / "2026-11-15").mkdir(parents=True)
    lines = [message(10, "INSERT", id="1"), message(12, "UPDATE", id="1", v="2"), message(13, "DELETE", id="1")]
    (table / "5" / "2026-11-15" / "CDC000001.json").write_text("\r\n".join(lines))
    (table / "meta").mkdir()
    schema = {"Query": "ALTER …", "TableVersion": 11, "TableColumns": [{"ColumnName": "id"}, {"ColumnName": "v"}]}
    (table / "meta" / "schema_11_1.json").write_text(json.dumps(schema))
    assert [arrival.text for arrival in live.arrivals(tmp_path, 10, 12)] == [
        "DDL, a new schema file: id, v",
        "UPDATE id=1 v=2",
    ]
    assert len(live.arrivals(tmp_path, 0, 99)) == 4


def test_nothing_is_complete_before_the_files_say_so(tmp_path: Path) -> None:
    assert live.checkpoint(tmp_path) == 0
    (tmp_path / "metadata").write_text('{"checkpoint-ts": 77}')
    assert live.checkpoint(tmp_path) == 77


def test_its_statements_run_and_the_past_is_selected() -> None:
    with EmbeddedUpstream.start(sql_port=0) as upstream, live.SqlClient(upstream.sql_addresses[0]) as client:
        client.run(live.PREPARATION)
        moments = []
        for statement in live.STATEMENTS:
            client.run(statement)
            moments.append(client.now())
        middle, end = client.select("middle", moments[live.MIDDLE - 1]), client.select("end", moments[-1])
        assert [row["state"] for row in middle.rows.values()] == ["new"] * 3
        assert {row["item"]: row["state"] for row in end.rows.values()} == {
            "tea": "paid",
            "cake": "paid",
            "bread": "paid",
        }
        with pytest.raises(UpstreamError, match="refused 'SELECT"):
            client.run("SELECT * FROM demo.nothing")
    with pytest.raises(UpstreamError, match="cannot connect to the embedded TiDB"):
        live.SqlClient(upstream.sql_addresses[0])
