"""Debezium's messages read back: TiCDC's recorded ones as far as they tell, and what nobody should have sent."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.flow.encoder.test_histories import NAMES, recorded
from tests.flow.reader.oracle import image, oracle_rows
from tests.flow.reader.plain import all_changes, received
from tests.histories import load
from tidemill.flow.reader import Events
from tidemill.flow.reader.debezium import DebeziumReader
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.ts import Ts


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_what_ticdc_had_decoded_as_far_as_the_protocol_tells(name: str) -> None:
    messages, rows = recorded(load(name), "debezium", "row"), oracle_rows(load(name))
    events = DebeziumReader().read(received(*((m["key"], m["value"]) for m in messages)))
    assert events.marks == []
    found = all_changes(events)
    assert len(found) == len(messages) > 100
    for (ts, old, new), message in zip(found, messages, strict=True):
        told, content = rows[message["seq"]], json.loads(message["value"])
        assert ts == told["commit_ts"]
        for read, columns in ((old, told["pre_columns"]), (new, told["columns"])):
            assert (read is None) is (image(columns) is None)
            if read is not None:
                _compare(read, columns, content)


def _compare(read: dict[str, Any], columns: list[dict[str, Any]], content: dict[str, Any]) -> None:
    fields = {f["field"]: f for each in content["schema"]["fields"] if "fields" in each for f in each["fields"]}
    right = image(columns)
    assert right is not None
    assert read.keys() == right.keys()
    for column in columns:
        found, value = read[column["name"]], right[column["name"]]
        if value is None:
            assert found is None or "default" in fields[column["name"]]  # which stands for it
        elif isinstance(value, bytes):
            assert found == base64.b64encode(value).decode()  # nothing says that these are bytes
        elif column["type"] == 4:
            assert float(np.float32(found)) == value  # with digits given, a FLOAT is sent as a double
        elif column["type"] == 246:
            assert float(found) == float(value)
        elif column["type"] in (10, 12) and ("-00" in value or value[:4] < "0100"):
            pass  # no day of any calendar, or a year that is taken to be of two digits
        elif column["type"] in (11, 12):
            assert found.rstrip("0").rstrip(".") == value.rstrip("0").rstrip(".") or found.split(".")[0] == value
        elif column["type"] == 7:
            assert found == value or value < "1970-01-01 00:00:01"
        elif column["type"] == 8 and column["flag"] & 128:
            assert found % 2**64 == value  # nothing says that it is unsigned
        else:
            assert found == value


@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_is_what_ticdc_sent(name: str) -> None:
    messages = recorded(load(name), "debezium", "ddl")
    events = DebeziumReader().read(received(*((m["key"], m["value"]) for m in messages)))
    found = [mark for _, mark in events.marks if isinstance(mark, DdlSeen)]
    assert len(found) == len(messages) > 20
    told = {(ddl["commit_ts"], ddl["query"]) for ddl in load(name).ticdc_ddl() if "error" not in ddl}
    assert {(ddl.ts, ddl.query) for ddl in found} <= told


def source(table: str = "t") -> dict[str, Any]:
    return {"ts_ms": 1, "db": "s", "table": table, "server_id": 0, "commit_ts": 5}


def message(op: str, before: Any, after: Any, *fields: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    payload = {"source": source(), "ts_ms": 2, "op": op, "before": before, "after": after, **more}
    images = [{"field": name, "fields": list(fields)} for name in ("before", "after")]
    return {"payload": {"id": 1}}, {"payload": payload, "schema": {"fields": images}}


def field(name: str, kind: str, word: str | None = None, /, **more: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, "optional": True, **({"tidb_type": word} if word else {}), **more}


ID = field("id", "int64", "bigint", optional=False)


def read(*messages: tuple[Any, Any]) -> Events:
    return DebeziumReader().read(received(*((json.dumps(k).encode(), json.dumps(v).encode()) for k, v in messages)))


@pytest.mark.parametrize(
    ("described", "value", "read_as"),
    [
        (field("c", "int64", "bigint unsigned"), -1, 2**64 - 1),
        (field("c", "string", "varbinary"), "AP8=", b"\0\xff"),
        (field("c", "boolean", "bit"), True, 1),
        (field("c", "bytes", "bit", parameters={"length": "10"}), "qgI=", 0x2AA),
        (field("c", "string", "enum", parameters={"allowed": "a,b\\,c"}), "b,c", 2),
        (field("c", "string", "enum", parameters={"allowed": "a,b"}), "", 0),
        (field("c", "string", "set", parameters={"allowed": "a,b,d"}), "a,d", 5),
        (field("c", "int32", "date"), 19782, "2024-02-29"),
        (field("c", "int64", "datetime", name="io.debezium.time.Timestamp"), -1, "1969-12-31 23:59:59.999"),
        (field("c", "int64", "time", name="io.debezium.time.MicroTime"), -3020399000001, "-838:59:59.000001"),
        (field("c", "int64", "time", name="io.debezium.time.MicroTime"), 3661000000, "01:01:01.000000"),
        (field("c", "string", "timestamp"), "2020-01-01T00:00:00.5Z", "2020-01-01 00:00:00.5"),
        (field("c", "double", "decimal"), 1.5, "1.5"),
        (field("c", "int32", "int"), None, None),
    ],
)
def test_values_by_their_types(described: dict[str, Any], value: Any, read_as: Any) -> None:
    events = read(message("c", None, {"id": 1, "c": value}, ID, described))
    assert events.marks == []
    assert all_changes(events) == [(5, None, {"id": 1, "c": read_as})]
    assert [column.name for column in events.rows[0].rows.table.handle_key] == ["id"]


def test_updates_deletes_and_watermarks() -> None:
    mark = {"payload": {}}, {"payload": {"source": source(""), "ts_ms": 2, "op": "m"}}
    events = read(message("u", {"id": 1}, {"id": 2}, ID), message("d", {"id": 2}, None, ID), mark)
    assert all_changes(events) == [(5, {"id": 1}, {"id": 2}), (5, {"id": 2}, None)]
    assert events.marks == [(2, ResolvedSeen(Ts(5)))]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (({}, {}), "its members are not those of the protocol"),
        (message("x", None, {"id": 1}, ID), "its op is none of"),
        (message("c", None, {}, ID), "it holds no columns"),
        (({}, {"payload": message("c", None, {"id": 1})[1]["payload"]}), "leave debezium-disable-schema out"),
        (message("c", None, {"id": "x"}, ID), "a value is not of its column's type"),
        (message("c", None, {"id": 1}, field("id", "strange")), "of an unknown type"),
        (message("u", {"a": 1}, {"id": 1}, ID), "its two rows have different columns"),
        (message("c", None, {"c": 10**9}, field("c", "int32", "date")), "a value is not of its column's type"),
        (message("c", None, {"c": 10**13}, field("c", "int64", "time")), "a value is not of its column's type"),
        (message("c", None, {"c": "AAAAAAAAAAAAAAAA"}, field("c", "bytes", "bit")), "is not of its column's type"),
        (({}, {"payload": {"source": source(), "ddl": 5}}), "a DDL whose query is no string"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(bad: tuple[Any, Any], why: str) -> None:
    good = message("c", None, {"id": 1}, ID)
    events = read(good, bad, good)
    assert len(all_changes(events)) == 2
    ((place, mark),) = events.marks
    assert place == 1
    assert isinstance(mark, Unreadable)
    assert why in mark.why
