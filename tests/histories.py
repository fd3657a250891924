"""The recorded histories of a real TiDB, for tests: committed versions, and what TiDB and TiCDC say about them.

    from tests.histories import load
    history = load("ddl")                      # types, ddl, online, bench-narrow, bench-wide
    history.row_changes(112)                   # raw changes of one physical table, old values filled in
    list(history.meta_at(ts))                  # what a scan of the metadata at ts would return

``load`` keeps each history in memory, so every test of a run shares one copy: treat it as read-only.
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.tidb.keys import decode_bytes, is_record_key, physical_id_of

FOLDER = Path(__file__).parent / "data" / "histories"
JOB_TABLE_ID = 281474976710654  # mysql.tidb_ddl_job
_FIRST_FIXED_SYSTEM_ID = 0xFFFFFFFFFFFF - 1000
_SYSTEM_SCHEMAS = {"mysql", "sys", "information_schema", "performance_schema", "metrics_schema", "workload_schema"}


@cache
def load(name: str) -> "History":
    return History(name)


class History:
    """One recorded scenario. Keys are plain (not memcomparable), ts are commit-ts unless said otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = FOLDER / name
        self.meta: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        self.bootstrap_ts: int = self.meta["bootstrap_ts"]
        self.end_ts: int = self.meta["end_ts"]

    @cached_property
    def changes(self) -> pa.Table:
        """Every committed version: start_ts, commit_ts, op ("put" or "delete"), key, value; in commit order."""
        return pq.read_table(self.folder / "history.parquet")

    # Reading as of a ts

    def value_at(self, key: bytes, ts: int) -> bytes | None:
        """The newest value of ``key`` with commit-ts ≤ ``ts``; None if there is none or it is deleted."""
        versions = self._versions.get(key)
        if not versions:
            return None
        stamps, values = versions
        at = bisect_right(stamps, ts)
        return values[at - 1] if at else None

    def scan_at(self, start: bytes, end: bytes, ts: int) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of ``[start, end)`` visible at ``ts``, in key order. An empty ``end`` means to the very end."""
        last = bisect_left(self._keys, end) if end else len(self._keys)
        for key in self._keys[bisect_left(self._keys, start) : last]:
            value = self.value_at(key, ts)
            if value is not None:
                yield key, value

    def meta_at(self, ts: int) -> Iterator[tuple[bytes, bytes]]:
        """All metadata (keys that begin with ``m``) visible at ``ts``."""
        return self.scan_at(b"m", b"n", ts)

    # Changes, as the change stream gives them

    def job_changes(self) -> pa.RecordBatch:
        """Changes of mysql.tidb_ddl_job as RAW_CHANGE_SCHEMA, in commit order, from the bootstrap on."""
        return self._job_changes

    def row_changes(self, physical_id: int | None = None) -> pa.RecordBatch:
        """Row changes as RAW_CHANGE_SCHEMA with old values, by (commit_ts, start_ts, key).

        Of one physical table, or of all those that belong to no system schema: also ones that a
        changefeed must not take, such as partitions being filled and tables without a key, and
        deletes of rows that were never there (no value, no old value: put and deleted within one
        transaction), which the oracle's ``seq`` does not count.
        """
        if physical_id is not None:
            return self._raw_changes(lambda found: found == physical_id)
        system = self._system_ids
        return self._raw_changes(lambda found: found < _FIRST_FIXED_SYSTEM_ID and found not in system)

    def physical_ids(self) -> list[int]:
        """The physical ids of the tables in ``row_changes()``."""
        return sorted({physical_id_of(key) for key in self.row_changes().column("key").to_pylist()})

    # What the oracles say

    def marks(self) -> list[dict[str, Any]]:
        """TiDB's own SELECT: a dict per mark and table (ts, mark, schema, table, columns, types, rows).

        The lines that only close a mark are left out.
        """
        return [line for line in self._lines("marks.jsonl") if "rows" in line]

    def ticdc_rows(self) -> list[dict[str, Any]]:
        """Each row as TiCDC's mounter decodes it, in order of ``seq``."""
        return self._lines("ticdc-rows.jsonl.gz")

    def ticdc_ddl(self) -> list[dict[str, Any]]:
        """TiCDC's DDL events in order; with ``error`` where TiCDC itself fails."""
        return self._lines("ticdc-ddl.jsonl")

    def messages(self) -> pa.Table:
        """What TiCDC's encoders make of rows and DDLs: protocol, kind, ts, seq, key, value."""
        return pq.read_table(self.folder / "ticdc-messages.parquet")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        return [json.loads(line) for line in text.splitlines() if line]

    @cached_property
    def _rows(self) -> list[tuple[int, int, int, bytes, bytes]]:
        """(start_ts, commit_ts, op, key, value) in commit order."""
        ops = {"put": int(Op.PUT), "delete": int(Op.DELETE)}
        columns = [self.changes.column(c).to_pylist() for c in ("start_ts", "commit_ts", "op", "key", "value")]
        return [(s, c, ops[op], key, value or b"") for s, c, op, key, value in zip(*columns, strict=True)]

    @cached_property
    def _job_changes(self) -> pa.RecordBatch:
        return self._raw_changes(lambda physical_id: physical_id == JOB_TABLE_ID)

    @cached_property
    def _versions(self) -> dict[bytes, tuple[list[int], list[bytes | None]]]:
        versions: dict[bytes, tuple[list[int], list[bytes | None]]] = {}
        for _, commit_ts, op, key, value in self._rows:
            stamps, values = versions.setdefault(key, ([], []))
            stamps.append(commit_ts)
            values.append(value if op == Op.PUT else None)
        return versions

    @cached_property
    def _keys(self) -> list[bytes]:
        return sorted(self._versions)

    @cached_property
    def _system_ids(self) -> frozenset[int]:
        """Every physical id that a table of a system schema ever had."""
        schemas: set[bytes] = set()
        tables: list[tuple[bytes, bytes]] = []
        for _, _, op, key, value in self._rows:
            if key[:1] != b"m" or op != Op.PUT:
                continue
            name, at = decode_bytes(key, 1)
            if key[at : at + 8] != b"\0" * 7 + b"h":
                continue
            field = decode_bytes(key, at + 8)[0]
            if name == b"DBs" and json.loads(value)["db_name"]["L"] in _SYSTEM_SCHEMAS:
                schemas.add(field)
            elif field.startswith(b"Table:"):
                tables.append((name, value))
        ids: set[int] = set()
        for schema, document in tables:
            if schema in schemas:
                table = json.loads(document)
                ids.add(table["id"])
                ids.update(d["id"] for d in (table["partition"] or {}).get("definitions") or ())
        return frozenset(ids)

    def _raw_changes(self, wanted: Any) -> pa.RecordBatch:
        out: list[tuple[int, int, int, bytes, bytes, bytes]] = []
        for start_ts, commit_ts, op, key, value in self._rows:
            if is_record_key(key) and wanted(physical_id_of(key)):
                old = self.value_at(key, commit_ts - 1) or b""
                out.append((start_ts, commit_ts, op, key, value if op == Op.PUT else b"", old))
        out.sort(key=lambda row: (row[1], row[0], row[3]))
        columns = list(zip(*out, strict=True)) or [()] * len(RAW_CHANGE_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_CHANGE_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RAW_CHANGE_SCHEMA)


__all__ = ["FOLDER", "JOB_TABLE_ID", "History", "load"]
