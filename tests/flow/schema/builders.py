"""Documents, jobs and rows as TiDB writes them, small enough to read in a test."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.flow.schema import JOB_TABLE_ID, SchemaStore
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState, SchemaState
from tidemill.tidb.keys import record_key
from tidemill.tidb.meta import database_key, table_key

SHOP = 2
JobChange = tuple[int, int, bytes, bytes]


def name(text: str) -> dict[str, str]:
    return {"O": text, "L": text.lower()}


def column(column_id: int, text: str, *, flag: int = 0, state: int = SchemaState.PUBLIC, **more: Any) -> dict[str, Any]:
    kind = {"Tp": 3, "Flag": flag, "Flen": 11, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
    return {"id": column_id, "name": name(text), "offset": 0, "type": kind, "state": state} | more


def index(index_id: int, text: str, offsets: Sequence[int], **more: Any) -> dict[str, Any]:
    columns = [{"name": name("?"), "offset": offset, "length": -1} for offset in offsets]
    return {"id": index_id, "idx_name": name(text), "idx_cols": columns, "state": SchemaState.PUBLIC} | more


def table(table_id: int, text: str, *, partitions: Mapping[int, str] | None = None, **more: Any) -> dict[str, Any]:
    """A table with one integer primary key, eligible unless told otherwise."""
    document = {
        "id": table_id,
        "name": name(text),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [column(1, "id", flag=3)],
        "index_info": None,
        "state": SchemaState.PUBLIC,
        "pk_is_handle": True,
        "is_common_handle": False,
        "partition": partition_by(partitions) if partitions else None,
        "view": None,
        "sequence": None,
    }
    return document | more


def partition_by(partitions: Mapping[int, str], **more: Any) -> dict[str, Any]:
    definitions = [{"id": i, "name": name(text)} for i, text in partitions.items()]
    return {"enable": True, "type": 1, "definitions": definitions} | more


def database(schema_id: int, text: str) -> dict[str, Any]:
    return {"id": schema_id, "db_name": name(text), "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}


def store_with(*tables: dict[str, Any], ts: int = 10, schemas: Mapping[int, str] | None = None) -> SchemaStore:
    """A store at ``ts`` whose database ``shop`` (id 2) holds ``tables``."""
    pairs = [(database_key(i), pack(database(i, text))) for i, text in ({SHOP: "shop"} | dict(schemas or {})).items()]
    pairs += [(table_key(SHOP, document["id"]), pack(document)) for document in tables]
    return SchemaStore.from_snapshot(pairs, Ts(ts))


def pack(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def job(
    commit_ts: int,
    job_id: int,
    kind: int,
    *,
    state: int = JobState.DONE,
    schema_state: int = SchemaState.PUBLIC,
    schema_id: int = SHOP,
    table_id: int = 0,
    args: Any = None,
    version: int = 7,
    db: Any = None,
    after: Any = None,
    many: Any = None,
    query: str = "alter",
    start_ts: int = 0,
    **more: Any,
) -> JobChange:
    """A transition of a job, as a change of the job table."""
    document = {
        "id": job_id,
        "type": kind,
        "schema_id": schema_id,
        "table_id": table_id,
        "state": state,
        "schema_state": schema_state,
        "raw_args": args,
        "query": query,
        "real_start_ts": start_ts,
        "binlog": {"SchemaVersion": version, "DBInfo": db, "TableInfo": after, "MultipleTableInfos": many},
    } | more
    return commit_ts, commit_ts - 1, record_key(JOB_TABLE_ID, job_id), row_v2({1: b"?", 5: pack(document)})


def gone(commit_ts: int, job_id: int) -> JobChange:
    return commit_ts, commit_ts - 1, record_key(JOB_TABLE_ID, job_id), b""


def row_v2(cells: Mapping[int, bytes | None], *, large: bool | None = None) -> bytes:
    full = sorted((i, cell) for i, cell in cells.items() if cell is not None)
    empty = sorted(i for i, cell in cells.items() if cell is None)
    data = b"".join(cell for _, cell in full)
    if large is None:
        large = len(data) > 0xFFFF or max(cells, default=0) > 0xFF
    id_size, offset_size = (4, 4) if large else (1, 2)
    out = bytes([0x80, int(large)]) + len(full).to_bytes(2, "little") + len(empty).to_bytes(2, "little")
    out += b"".join(i.to_bytes(id_size, "little") for i in [*(i for i, _ in full), *empty])
    end = 0
    for _, cell in full:
        end += len(cell)
        out += end.to_bytes(offset_size, "little")
    return out + data


def row_v1(cells: Mapping[int, bytes | int | None]) -> bytes:
    out = bytearray()
    for column_id, cell in cells.items():
        out += b"\x08" + varint(column_id)
        match cell:
            case None:
                out.append(0)
            case int():
                out += b"\x08" + varint(cell)
            case bytes():
                out += b"\x02" + varint(len(cell)) + cell
    return bytes(out) or b"\0"


def varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
