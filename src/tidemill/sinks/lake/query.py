"""A lake table's rows as of a ts: the last change of each key up to it, unless it is a delete or its rows were ended.

    rows_at_sql(table, ts, "changes")            SQL for DuckDB or Spark over the table's changes
    rows_at(table, ts, changes)                  the same in Arrow

The columns are those that the table had at that ts. Where rows older than a column lie in another lake column, or have
the column's default, the query says so; ``tables.LakeTable`` knows.
"""

import base64
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError
from tidemill.model.ts import show
from tidemill.sinks.lake.columns import sql_type, type_named
from tidemill.sinks.lake.tables import LakeTable, Version, VersionColumn
from tidemill.tidb.lexer import quoted

Dialect = Literal["duckdb", "spark"]
Source = tuple[int | None, str | None]  # a lake column's id, or a default


def rows_at_sql(
    table: LakeTable, ts: int, relation: str, dialect: Dialect = "duckdb", *, with_unfit: bool = False
) -> str:
    """SQL that gives the table's rows as of ``ts``, with the columns and names it had then.

    ``relation`` is what stands in FROM: a table or view of the lake table's changes, or a table function. With
    ``with_unfit`` two more columns come out, ``_unfit`` and ``_version``: texts that their columns cannot hold.
    """
    version = _readable(table, ts)
    columns = [f"{_expression(table, version, c, dialect)} AS {_quoted(c.name, dialect)}" for c in version.columns]
    columns += ["_unfit", "_version"] if with_unfit else []
    by_name = {c.name: c for c in version.columns}
    key = ", ".join(_expression(table, version, by_name[name], dialect) for name in version.key)
    return (
        f"SELECT {', '.join(columns)}\n"
        f"FROM (\n"
        f"  SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _commit_ts DESC, _seq DESC) AS _rank\n"
        f"  FROM {relation} WHERE _commit_ts <= {int(ts)} AND _op <> 'T'\n"
        f") AS r\n"
        f"WHERE _rank = 1 AND _op <> 'D' AND NOT EXISTS (\n"
        f"  SELECT 1 FROM {relation} AS g\n"
        f"  WHERE g._op = 'T' AND g._commit_ts <= {int(ts)} AND (g._table_id IS NULL OR g._table_id = r._table_id)\n"
        f"    AND (g._commit_ts > r._commit_ts OR (g._commit_ts = r._commit_ts AND g._seq > r._seq))\n"
        f")"
    )


def rows_at(table: LakeTable, ts: int, changes: pa.Table) -> pa.Table:
    """The table's rows as of ``ts``, with the columns and names it had then, and ``_unfit``."""
    version = _readable(table, ts)
    changes = changes.filter(pc.field("_commit_ts") <= int(ts))
    changes = changes.sort_by([("_commit_ts", "ascending"), ("_seq", "ascending")])
    markers = changes.filter(pc.field("_op") == "T").select(["_table_id", "_commit_ts", "_seq"]).to_pylist()
    changes = changes.filter(pc.field("_op") != "T")
    values = {c.name: _values(table, version, c, changes) for c in version.columns}
    last = _last_of_each([values[name] for name in version.key], len(changes))
    is_kept = pc.not_equal(changes["_op"], "D").to_numpy(zero_copy_only=False)
    for marker in markers:
        is_kept &= ~_is_before(marker, changes)
    places = pa.array(last[is_kept[last]])
    out = {name: column.take(places) for name, column in values.items()}
    return pa.table({**out, "_unfit": changes["_unfit"].take(places)})


def _readable(table: LakeTable, ts: int) -> Version:
    version = table.version_at(ts)
    if not version.key:
        raise UsageError(
            f"table {version.schema}.{version.table} had no handle key at {show(ts)}, so its rows cannot be told "
            "apart. Read it at another ts."
        )
    return version


def _sources(table: LakeTable, version: Version, column: VersionColumn) -> dict[int, Source]:
    """Where rows of each version have the column."""
    return {v.ts: _source(v, column) for v in table.versions if v.ts != version.ts}


def _source(version: Version, column: VersionColumn) -> Source:
    for found in version.columns:
        if found.id == column.id:
            return found.lake, None
    for found in version.columns:
        if version.is_interim and found.name == column.name:
            return found.lake, None
    return None, column.default


def _expression(table: LakeTable, version: Version, column: VersionColumn, dialect: Dialect) -> str:
    wanted = table.column(column.lake).type
    own: Source = (column.lake, None)
    others: dict[Source, list[int]] = {}
    for ts, source in _sources(table, version, column).items():
        if source != own:
            others.setdefault(source, []).append(ts)
    ours = _sql_of(table, own, wanted, dialect)
    if not others:
        return ours
    cases = " ".join(
        f"WHEN _version IN ({', '.join(map(str, versions))}) THEN {_sql_of(table, source, wanted, dialect)}"
        for source, versions in others.items()
    )
    return f"CASE {cases} ELSE {ours} END"


def _sql_of(table: LakeTable, source: Source, wanted: str, dialect: Dialect) -> str:
    lake, default = source
    kind = sql_type(wanted, dialect)
    if lake is not None:
        column = table.column(lake)
        name = _quoted(column.name, dialect)
        if column.type == wanted:
            return name
        return f"{'TRY_CAST' if dialect == 'duckdb' else 'try_cast'}({name} AS {kind})"
    if default is None:
        return f"CAST(NULL AS {kind})"
    text = default.replace("'", "''") if dialect == "duckdb" else default.replace("\\", "\\\\").replace("'", "\\'")
    if wanted == "binary":
        return f"{'from_base64' if dialect == 'duckdb' else 'unbase64'}('{text}')"
    if "UTC" in wanted:
        text += "+00:00"
    return f"CAST('{text}' AS {kind})"


def _quoted(name: str, dialect: Dialect) -> str:
    return '"' + name.replace('"', '""') + '"' if dialect == "duckdb" else quoted(name)


def _values(table: LakeTable, version: Version, column: VersionColumn, changes: pa.Table) -> pa.ChunkedArray:
    wanted = type_named(table.column(column.lake).type)
    values = changes[table.column(column.lake).name]
    found: Mapping[int, Source] = _sources(table, version, column)
    for ts, (lake, default) in found.items():
        if lake == column.lake:
            continue
        if lake is not None:
            other = _cast(changes[table.column(lake).name], wanted)
        else:
            other = _scalar(default, wanted)
        values = pc.if_else(pc.equal(changes["_version"], ts), other, values)
    return values


def _cast(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:  # interim rows of a lossy change, whose values the older type cannot hold
        return pa.chunked_array([pa.nulls(len(values), wanted)])


def _scalar(text: str | None, wanted: pa.DataType) -> pa.Scalar:
    if text is None:
        return pa.scalar(None, wanted)
    if wanted == pa.binary():
        return pa.scalar(base64.b64decode(text), wanted)
    if pa.types.is_timestamp(wanted):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(wanted)
    return pa.scalar(text).cast(wanted)


def _last_of_each(keys: list[pa.ChunkedArray], rows: int) -> npt.NDArray[np.int64]:
    if not rows:
        return np.empty(0, np.int64)
    names = [f"k{number}" for number in range(len(keys))]
    frame = pa.table([*keys, pa.array(np.arange(rows))], names=[*names, "place"])
    found: npt.NDArray[np.int64] = frame.group_by(names).aggregate([("place", "max")])["place_max"].to_numpy()
    return np.sort(found)


def _is_before(marker: Mapping[str, int | None], changes: pa.Table) -> npt.NDArray[np.bool_]:
    ts, seq = (changes[name].to_numpy() for name in ("_commit_ts", "_seq"))
    before: npt.NDArray[np.bool_] = (ts < marker["_commit_ts"]) | (
        (ts == marker["_commit_ts"]) & (seq < marker["_seq"])
    )
    if marker["_table_id"] is not None:
        before &= changes["_table_id"].to_numpy() == marker["_table_id"]
    return before
