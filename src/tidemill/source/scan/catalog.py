"""Which table a name means, as of a ts: in the form in which TiDB's own SELECT shows it at that moment.

Only the databases' list and one database's tables are read, not all of the metadata. In the middle of an online DDL
that is the form its document has then: columns on their way in or out are not shown.
"""

from dataclasses import dataclass

import orjson

from tidemill.errors import UsageError, suggestion
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.tidb.documents import Document, parse_database, parse_table
from tidemill.tidb.meta import hash_range, read_snapshot, table_key
from tidemill.upstream.snapshot import SnapshotReader


@dataclass(frozen=True, slots=True)
class TableName:
    """Names of databases and tables are the same in capitals and small letters, as in TiDB."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    def is_of(self, table: TableInfo) -> bool:
        return (table.schema.lower(), table.name.lower()) == (self.schema.lower(), self.table.lower())


async def find_table(reader: SnapshotReader, name: TableName, ts: Ts) -> TableInfo:
    """The table of that name at ``ts``; ``UsageError`` where there is none, or none with rows."""
    databases = read_snapshot(await _pairs(reader, b"DBs", ts)).databases
    names = {parse_database(raw, i).name: i for i, raw in databases.items()}
    schema = next((n for n in names if n.lower() == name.schema.lower()), None)
    if schema is None:
        hint = suggestion(name.schema, names) or " Check the option table."
        raise UsageError(f"there is no database {name.schema!r} at {show(ts)}.{hint}")
    schema_id = names[schema]
    documents = read_snapshot(await _pairs(reader, b"DB:%d" % schema_id, ts)).tables
    tables = [parse_table(raw, schema_id, schema, ts, i[1]) for i, raw in documents.items()]
    found = next((table for table in tables if name.is_of(table)), None)
    if found is None:
        hint = suggestion(name.table, [table.name for table in tables]) or " Check the option table."
        raise UsageError(f"there is no table {name.table!r} in database {schema!r} at {show(ts)}.{hint}")
    if found.is_view or found.is_sequence:
        kind = "a view" if found.is_view else "a sequence"
        raise UsageError(f"cannot read {found.full_name}: it is {kind}, which has no rows of its own. Choose a table.")
    return found


async def table_document(reader: SnapshotReader, table: TableInfo, ts: Ts) -> Document:
    """TiDB's own document of a table at ``ts``, which tells what its ``TableInfo`` leaves out."""
    raw = await reader.get(table_key(table.schema_id, table.id), ts)
    if raw is None:
        raise UsageError(f"there is no table {table.full_name} (id {table.id}) at {show(ts)}. Check the ts.")
    document: Document = orjson.loads(raw)
    return document


async def _pairs(reader: SnapshotReader, hash_name: bytes, ts: Ts) -> list[tuple[bytes, bytes]]:
    pairs: list[tuple[bytes, bytes]] = []
    async for batch in reader.scan(*hash_range(hash_name), ts):
        pairs.extend(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return pairs
