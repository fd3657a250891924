"""Keys without SQL through Spark: a range as it is, and as a stream of what is done to it."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rawkv import Loop, Writer
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import UsageError
from tidemill.model.keys import KeyApi, KeyRange
from tidemill.spark.library.options import Now, asks_for_keys, parse_key_options


@pytest.mark.spark
def test_a_range_is_read_and_followed_across_a_restart(spark: Any, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(stores=2, api_version=2, resolved_interval_seconds=0.02) as upstream, Loop() as loop:
        writer = Writer(loop, upstream, 5)
        upstream.split(b"r\0\0\0d")
        start_ts = KeyRange().before(upstream.tso())
        loop.call(writer.client.batch_put({b"a": b"1", b"b": b"1", b"c": b"1", b"e": b"1", b"z": b"1"}))
        loop.call(writer.client.batch_delete([b"c"]))
        chosen = {"pd": upstream.pd_address, "startKey": "b", "endKey": "m", "keyFormat": "raw"}
        frame = spark.read.format("tidemill").options(**chosen).load()
        assert sorted(map(tuple, frame.collect())) == [(b"b", b"1"), (b"e", b"1")]
        assert frame.filter("key = X'65'").count() == 1

        def follow() -> list[tuple[bytes, bytes | None, str]]:
            stream = spark.readStream.format("tidemill").options(**chosen, startingTs=start_ts).load()
            query = stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            query.start().awaitTermination()
            rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("key", "_commit_ts").collect()
            return [(bytes(row["key"]), row["value"] and bytes(row["value"]), row["_op"]) for row in rows]

        assert follow() == [(b"b", b"1", "put"), (b"c", None, "delete"), (b"e", b"1", "put")]
        loop.call(writer.client.batch_put({b"a": b"2", b"f": b"2"}))
        loop.call(writer.client.batch_delete([b"e"]))
        first, last = [(b"b", b"1", "put"), (b"c", None, "delete"), (b"e", b"1", "put")], (b"f", b"2", "put")
        assert follow() == [*first, (b"e", None, "delete"), last]
        writer.close()


GOOD = {"pd": "127.0.0.1:2379", "startKey": "61"}


def test_options_of_keys_are_read() -> None:
    given = {**GOOD, "endKey": "7a", "kvApi": "TXN", "asOf": "now", "keyspace": "DEFAULT"}
    read = parse_key_options(given)
    assert (read.keys, read.as_of) == (KeyRange(b"a", b"z", api=KeyApi.txn), Now.NOW)
    assert asks_for_keys(given)
    assert not asks_for_keys({"pd": "h", "table": "a.b", "key": "key.pem"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"pd": ""}, "'pd' is missing", id="no pd"),
        pytest.param({"table": "a.b"}, "the option 'table' is for tables, and keys are read", id="a table too"),
        pytest.param({"startKey": "6"}, "startKey '6' is not a key in hex.*the option keyFormat as 'raw'", id="no key"),
        pytest.param({"endKey": "60"}, "is inverted", id="inverted"),
        pytest.param({"keyFormat": "base64"}, "keyFormat is 'base64': choose one of 'hex', 'raw'", id="a format"),
        pytest.param({"kvApi": "sql"}, "kvApi is 'sql': choose one of 'raw', 'txn'", id="an API"),
        pytest.param({"asOf": "2026-03-01"}, "RawKV keeps no versions", id="the past of RawKV"),
        pytest.param({"starKey": "61"}, "unknown option 'starkey'", id="misspelt"),
    ],
)
def test_options_that_do_not_go_with_keys_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_key_options({**GOOD, **given})
