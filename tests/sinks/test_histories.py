"""Whole histories into files, DDLs at their barriers, and back as TiCDC's storage consumer reads them."""

import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tests.sinks.folders import QuickFiles, config_for
from tests.sinks.halves import FileHalves, file_sink
from tests.sinks.moments import START
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.encoder import CanalJson
from tidemill.flow.mounter import mount
from tidemill.model.ts import Ts
from tidemill.sinks.files import write_files

NAMES = ("types", "ddl", "online")
DATA = re.compile(r"([^/]+)/([^/]+)/(\d+)/(?:(\d+)/)?(\d{4}-\d{2}-\d{2})/CDC(\d{20})\.json")
SCHEMA = re.compile(r"([^/]+)/(?:([^/]+)/)?meta/schema_(\d+)_(\d{10})\.json")


def capture(history: History, root: Path, *, is_broken: bool = False) -> list[Any]:
    """Run a history into ``root``; returns all changes in the order of writing.

    With ``is_broken`` the process dies before each commit and the batch is written again.
    """
    _, changes = fed_store(history.name)
    config, files = config_for(root, "&enable-tidb-extension=true&file-size=20000"), QuickFiles(str(root))
    sink, state, written = file_sink(config, None, files=files), None, []
    from_ts = history.bootstrap_ts
    for to_ts in [*(change.finished_ts for change in changes), Ts(history.end_ts)]:
        if is_broken:
            _write_rows(history, sink, from_ts, to_ts)
            sink = file_sink(config, state, files=files)
            sink.recover(START)
        receipts, rows = _write_rows(history, sink, from_ts, to_ts)
        written += rows
        state = sink.commit(to_ts, receipts)
        sink.publish(to_ts)
        for event in (event for change in changes if change.finished_ts == to_ts for event in change.events):
            sink.ddl(event)
        from_ts = to_ts
    return written


def _write_rows(history: History, sink: FileHalves, from_ts: int, to_ts: Ts) -> tuple[list[Any], list[Any]]:
    store, _ = fed_store(history.name)
    encoder = CanalJson(enable_tidb_extension=True).encoder(0, b"\r\n")
    receipts, written = [], []
    for followed in store.followed():
        changes, rows = _changes(history.name, followed.physical_id), followed.rows_of(from_ts, to_ts)
        if rows is None:
            continue
        stamps = changes.column("commit_ts").to_numpy()
        begin, end = (int(np.searchsorted(stamps, np.uint64(ts), "right")) for ts in rows)
        if begin == end:
            continue
        table = store.table(followed.physical_id, to_ts)
        assert table is not None
        encoded = encoder.encode(
            split_key_updates(mount(table, followed.physical_id, changes.slice(begin, end - begin)))
        )
        target = sink.target(table, followed.physical_id, (Ts(0), to_ts))
        receipts.append(write_files(target, iter([encoded]), QuickFiles(target.root)))
        written += [_told(json.loads(message)) for message in encoded.messages()]
    return receipts, written


@cache
def _changes(name: str, physical_id: int) -> pa.RecordBatch:
    return load(name).row_changes(physical_id)


def _told(message: dict[str, Any]) -> tuple[int, str, str, str]:
    place = f"{message['database']}.{message['table']}"
    return message["_tidb"]["commitTs"], message["type"], place, str(message["data"])


def consume(root: Path) -> tuple[list[str], list[Any]]:
    """(DDLs, rows) in the order in which TiCDC's storage consumer executes them."""
    keys: list[tuple[Any, ...]] = []
    schemas: dict[tuple[str, str, int], Any] = {}
    for path in (p for p in root.rglob("*.json")):
        name = str(path.relative_to(root))
        if found := SCHEMA.fullmatch(name):
            schema, table, version = found[1], found[2] or "", int(found[3])
            document = json.loads(path.read_bytes())
            assert (document["Schema"], document["Table"], document["TableVersion"]) == (schema, table, version)
            assert _checksum(document) == int(found[4])
            assert (schema, table, version) not in schemas
            schemas[schema, table, version] = document
            keys.append((version, -1, "", schema, table, path))
        else:
            found = DATA.fullmatch(name)
            assert found, name
            keys.append((int(found[3]), int(found[4] or 0), found[5], found[1], found[2], path))
    queries, rows = [], []
    for version, partition, _, schema, table, path in sorted(keys):
        document = schemas[schema, table, version]
        if partition == -1:
            queries += [document["Query"]] if document["Query"] else []
            continue
        columns = {column["ColumnName"] for column in document["TableColumns"]}
        for line in path.read_bytes().split(b"\r\n")[:-1]:
            message = json.loads(line)
            assert (message["database"], message["table"]) == (schema, table)
            assert set(message["data"][0]) <= columns
            rows.append(_told(message))
    return queries, rows


def _checksum(document: dict[str, Any]) -> int:
    columns = sorted(document["TableColumns"] or [], key=lambda column: column["ColumnName"].encode())
    covered = {"Table": document["Table"], "Schema": document["Schema"], "Version": 0}
    covered |= {"TableColumns": columns, "TableColumnsTotal": document["TableColumnsTotal"]}
    text = json.dumps(covered, indent=4, ensure_ascii=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return zlib.crc32(text.encode())


@pytest.mark.parametrize("name", NAMES)
def test_the_storage_consumer_gets_every_row_once_and_every_ddl(name: str, tmp_path: Path) -> None:
    written = capture(load(name), tmp_path)
    queries, rows = consume(tmp_path)
    assert sorted(rows) == sorted(written)
    assert len(rows) >= 145
    expected = [event.query for change in fed_store(name)[1] for event in change.events]
    assert sorted(queries) == sorted(expected)
    for index in tmp_path.rglob("CDC.index"):
        _check_folder(index)


def _check_folder(index: Path) -> None:
    """The index names the newest file, and commit-ts never falls from the first row to the last."""
    files = sorted(index.parent.parent.glob("CDC*.json"))
    assert index.read_text() == files[-1].name + "\n"
    lines = [line for file in files for line in file.read_bytes().split(b"\r\n")[:-1]]
    stamps = [json.loads(line)["_tidb"]["commitTs"] for line in lines]
    assert stamps == sorted(stamps)


def test_a_history_with_a_crash_before_every_commit_gives_the_same_files(tmp_path: Path) -> None:
    history = load("ddl")
    capture(history, tmp_path / "whole")
    capture(history, tmp_path / "broken", is_broken=True)
    trees = [
        {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        for name in ("whole", "broken")
    ]
    for tree in trees:
        tree.pop(".generation")
    assert trees[0] == trees[1]
