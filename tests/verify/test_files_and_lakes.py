"""Trees of files and lakes against a recorded history: equal at the end, and every planted difference found."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.histories import FOLDER, load
from tests.sinks.halves import file_sink
from tests.sinks.lake.replay import Replay
from tests.sinks.moments import START
from tests.verify.conftest import run
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import SinkError, UsageError
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.filter import TableFilter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ddl import ActionType
from tidemill.model.ts import Ts
from tidemill.sinks import read_sink_uri
from tidemill.sinks.files import SinkConfig, parse_sink_uri, write_files
from tidemill.source.scan import ScanClient
from tidemill.verify import Check, CheckOptions, Report, Side, chosen_tables
from tidemill.verify.files import FileSide, Version, untold
from tidemill.verify.lake import LakeSide

from tests.sinks.mysql.replay import barriers, events_at, units  # isort: skip

END = Ts(load("types").end_ts)
PROTOCOLS = [
    "protocol=canal-json&enable-tidb-extension=true",
    "protocol=canal-json",
    "protocol=csv&include-commit-ts=true&output-old-value=true&binary-encoding-method=hex",
    "protocol=csv&output-field-header=true",
]

NO_ORDER = (
    "it is partitioned, and without a commit-ts in messages nobody can tell which of two partitions has a row: write "
    "with enable-tidb-extension=true or include-commit-ts=true"
)


@pytest.fixture(scope="module")
def types() -> Any:
    history = FOLDER / "types" / "history.parquet"
    with EmbeddedUpstream.start(load=history) as upstream, ScanClient(upstream.pd_address) as client:
        yield upstream.pd_address, client


def verify(types: Any, side: Side, ts: Ts = END) -> Report:
    pd, client = types
    tables = chosen_tables(client, ts, [], TableFilter(ChangefeedConfig())).tables
    return Check(client, side, run, CheckOptions(pd)).check(tables, ts)


def found(report: Report) -> dict[str, Any]:
    return {
        t.table: (t.schema, [(d.kind.value, dict(d.key), d.cells) for d in t.differences])
        for t in report.tables
        if not t.is_equal
    }


def write_tree(place: Path | str, parameters: str, told_ts: Ts | None = None) -> FileSide:
    """All of the history as the file sink writes it, into a folder or below a URI. ``told_ts``: up to where it is
    complete, as readers are told, where that is beyond the history."""
    uri = place if isinstance(place, str) else f"file://{place}"
    history, config = load("types"), read_sink_uri(f"{uri}?{parameters}&date-separator=none")
    assert isinstance(config, SinkConfig)
    sink = file_sink(config, None, storage=config.storage)
    sink.recover(START)
    from_ts = history.bootstrap_ts
    for to_ts in barriers(history):
        receipts = []
        for rows in map(split_key_updates, units(history, from_ts, to_ts)):
            encoder = config.messages.encoder(0)
            target = sink.target(rows.table, rows.physical_id, (Ts(0), Ts(to_ts)))
            receipts.append(write_files(target, iter([encoder.encode(rows)])))
        sink.commit(Ts(to_ts), receipts)
        sink.publish(Ts(to_ts))
        for event in events_at("types", to_ts):
            sink.ddl(event)
        from_ts = to_ts
    if told_ts is not None:
        sink.publish(told_ts)
    return FileSide(config)


@pytest.mark.parametrize("parameters", PROTOCOLS)
def test_files_of_a_history_of_all_types_are_equal(types: Any, tmp_path: Path, parameters: str) -> None:
    report = verify(types, write_tree(tmp_path / "out", parameters))
    has_commit_ts = "extension" in parameters or "commit-ts" in parameters
    untold = {table: ([NO_ORDER], []) for table in ("kinds.p_hash", "kinds.p_range")}
    assert found(report) == ({} if has_commit_ts else untold)
    assert sum(t.upstream_rows for t in report.tables) > 100


def test_a_line_that_is_lost_and_a_value_that_is_wrong_are_found_in_files(types: Any, tmp_path: Path) -> None:
    side = write_tree(tmp_path / "out", PROTOCOLS[0])
    files = sorted((tmp_path / "out").glob("*/*/*/CDC*.json"), key=lambda f: -f.read_bytes().count(b"INSERT"))
    lines = files[0].read_bytes().split(b"\r\n")
    last = json.loads(lines[-2])
    files[0].write_bytes(b"\r\n".join([*lines[:-2], b""]))
    report = verify(types, side)
    [(table, (schema, rows))] = found(report).items()
    assert table == f"{last['database']}.{last['table']}"
    assert schema == []
    assert len(rows) == 1


def test_a_worker_that_does_not_see_the_folder_says_so(types: Any, tmp_path: Path) -> None:
    """To it the folder looks empty, as if all rows were missing."""
    pd, client = types
    side = write_tree(tmp_path / "out", PROTOCOLS[0])
    tables = chosen_tables(client, END, [], TableFilter(ChangefeedConfig())).tables

    def run_elsewhere(tasks: Any) -> list[Any]:
        (tmp_path / "out").rename(tmp_path / "away")
        return run(tasks)

    with pytest.raises(SinkError, match=r"out on .* is not the folder that is checked"):
        Check(client, side, run_elsewhere, CheckOptions(pd)).check(tables, END)


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_a_lake_of_a_history_of_all_types_is_equal_at_every_mark(types: Any, tmp_path: Path, kind: str) -> None:
    replay = Replay("types", kind, tmp_path / "lake")
    replay.run()
    for ts in sorted({mark["ts"] for mark in load("types").marks()}):
        assert found(verify(types, LakeSide(replay.options), Ts(ts))) == {}, ts


def test_rows_that_are_lost_in_a_lake_are_found(types: Any, tmp_path: Path) -> None:
    replay = Replay("types", "parquet", tmp_path / "lake")
    replay.run()
    files = sorted((tmp_path / "lake").rglob("*.parquet"), key=lambda f: f.stat().st_size)
    held = pq.read_table(files[-1])
    pq.write_table(held.slice(0, 0), files[-1])
    report = verify(types, LakeSide(replay.options))
    [(table, (schema, rows))] = found(report).items()
    assert table == ".".join(files[-1].relative_to(tmp_path / "lake").parts[:2])
    assert schema == []
    assert {kind for kind, _, _ in rows} == {"missing"}


def test_a_folder_without_files_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no files of a changefeed"):
        FileSide(parse_sink_uri(f"file://{tmp_path}?protocol=csv"))


def test_records_without_commit_ts_tell_only_of_the_checkpoint(tmp_path: Path) -> None:
    side = write_tree(tmp_path / "out", "protocol=csv")
    with pytest.raises(UsageError, match="include-commit-ts=true"):
        side.at(Ts(END - 1))


def test_a_table_that_has_no_files_is_said_to_have_none(types: Any, tmp_path: Path) -> None:
    write_tree(tmp_path / "out", PROTOCOLS[0])
    copytree(tmp_path / "out", tmp_path / "less", ignore=lambda folder, names: {"kinds"} & set(names))
    side = FileSide(parse_sink_uri(f"file://{tmp_path / 'less'}?{PROTOCOLS[0]}"))
    sentences = {sentence for schema, _ in found(verify(types, side)).values() for sentence in schema}
    assert sentences <= {"there are no files of this table"}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, ActionType.CREATE_TABLE, ""),
        (None, ActionType.RENAME_TABLE, "under the old name"),  # nothing else lies in the folder of the new name
        (None, ActionType.RECOVER_TABLE, "brought back"),
        (ActionType.CREATE_TABLE, ActionType.RENAME_TABLE, "under the old name"),
        (ActionType.CREATE_TABLE, ActionType.ADD_COLUMN, ""),
        (ActionType.CREATE_TABLE, ActionType.MODIFY_COLUMN, ""),
    ],
)
def test_what_no_message_tells_is_said_of_a_tables_first_version_too(before: int | None, after: int, says: str) -> None:
    columns = (("id", "INT"),)
    was = None if before is None else Version(1, columns, before)
    found = untold(was, Version(2, columns, after))
    assert says in found
    assert bool(says) == bool(found)
