"""Values of keys in messages."""

from collections.abc import Sequence

from tidebox.sql.codec import Datum
from tidebox.sql.compute import convert
from tidebox.sql.compute.kinds import Kind, Settings, Type, type_of
from tidebox.sql.values import reader
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import ColumnInfo, ColumnType, IndexInfo, TableInfo


def duplicate_entry(
    written: TableInfo,
    index: IndexInfo | None,
    row: Sequence[Datum],
    settings: Settings,
    *,
    is_from_key: bool = False,
    is_cut: bool = True,
) -> SqlError:
    """1062 in TiDB's words: the values of the key, joined; ``is_from_key``: as the key has them, moments in UTC;
    ``is_cut``: texts only as far as the index goes."""
    if index is None:
        name = "PRIMARY"
        offsets = [at for at, column in enumerate(written.columns) if column.flag & 2]
        for primary in written.indexes:
            if primary.is_primary:
                offsets = [part.offset for part in primary.columns]
    else:
        name, offsets = index.name, [part.offset for part in index.columns]
    parts = index.columns if index is not None else [p for i in written.indexes if i.is_primary for p in i.columns]
    lengths = {part.offset: part.length for part in parts}
    zone = Settings() if is_from_key else settings
    texts = []
    for at in offsets:
        raw = _raw(written.columns[at], row[at], zone)
        if lengths.get(at, -1) >= 0 and (is_cut or index is None):
            raw = raw[: lengths[at]]
            if is_from_key and isinstance(raw, str):
                raw = raw.rstrip(" ")  # a prefix in a key has lost them
        texts.append(raw if isinstance(raw, str) else _escaped(raw) if is_from_key else _plain(raw))
    shown = "-".join(texts)
    return sql_error(Errno.DUP_ENTRY, shown, f"{written.name}.{name}")


def shown_datum(column: ColumnInfo, datum: Datum) -> str:
    raw = _raw(column, datum, Settings())
    return raw if isinstance(raw, str) else _escaped(raw)


def _raw(column: ColumnInfo, datum: Datum, settings: Settings) -> str | bytes:
    if datum is None:
        return "NULL"
    read = reader(column, settings)
    kind = type_of(column)
    if kind.kind in (Kind.INT, Kind.YEAR):
        kind = Type(Kind.INT)  # without the zeros of ZEROFILL
    text = convert.shown(read(datum) if read is not None else datum, kind)
    if column.type is ColumnType.BIT and isinstance(datum, int):
        return datum.to_bytes((max(column.flen, 1) + 7) // 8, "big")
    return text


def _plain(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _escaped(data: bytes) -> str:
    """Bytes in a message: those that are no letters by their numbers."""
    return "".join(chr(b) if 0x20 <= b <= 0x7F else f"\\x{b:02X}" for b in data)
