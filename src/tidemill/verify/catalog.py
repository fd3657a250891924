"""Which tables are to be checked: what the upstream has at a ts, by filter or by name. Runs on the driver."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import UsageError
from tidemill.flow.filter import TableFilter
from tidemill.flow.schema.effects import SYSTEM_SCHEMAS
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.source.scan import ReadHold, ScanClient, TableName
from tidemill.tidb.documents import parse_database, parse_table
from tidemill.tidb.meta import read_snapshot, scan_ranges
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


def read_name(text: str) -> TableName:
    schema, dot, table = text.partition(".")
    if not dot or not schema or not table:
        raise UsageError(f"--table {text!r} is not the name of a table. Write it with its database, as in shop.item.")
    return TableName(schema.strip("`"), table.strip("`"))


@dataclass(frozen=True, slots=True)
class Chosen:
    tables: list[TableInfo]
    left_out: tuple[str, ...] = ()  # names of tables that the rules ask for and whose rows cannot be told apart


def chosen_tables(client: ScanClient, ts: Ts, names: Sequence[TableName], filter: TableFilter) -> Chosen:
    """Those named, or else all that the filter captures. Raises UsageError for a name that means nothing at ``ts``."""
    claim(client, ts)
    if not names:
        found = sorted(client.ask(lambda pd: _all_tables(pd, ts)), key=lambda table: table.full_name)
        left_out = tuple(table.full_name for table in found if filter.leaves_out(table))
        return Chosen([table for table in found if filter.captures(table)], left_out)
    tables = [client.find_table(name, ts) for name in dict.fromkeys(names)]
    for table in tables:
        if not table.handle_key:
            raise UsageError(
                f"cannot check {table.full_name}: it has neither a primary key nor a unique one of NOT NULL columns, "
                "so its rows cannot be told apart. No changefeed replicates it."
            )
    return Chosen(tables)


def claim(client: ScanClient, ts: Ts) -> ReadHold:
    """Keep the upstream from collecting what is to be read at ``ts``; ``StartTsCollectedError`` if it has."""
    if ts > client.now():
        raise UsageError(f"cannot check at {show(ts)}: it lies in the upstream's future. Give an earlier --at.")
    hold = ReadHold.new(ts)
    client.keep(hold)
    return hold


async def _all_tables(pd: PdClient, ts: Ts) -> list[TableInfo]:
    pairs: list[tuple[bytes, bytes]] = []
    reader = SnapshotReader(pd, RegionCache(pd))
    try:
        start, end = scan_ranges()[0]
        async for batch in reader.scan(start, end, ts):
            pairs.extend(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    finally:
        await reader.close()
    documents = read_snapshot(pairs)
    schemas = {i: parse_database(raw, i).name for i, raw in documents.databases.items()}
    wanted = {i: name for i, name in schemas.items() if name.lower() not in SYSTEM_SCHEMAS}
    return [
        parse_table(raw, schema_id, wanted[schema_id], ts, table_id)
        for (schema_id, table_id), raw in documents.tables.items()
        if schema_id in wanted
    ]
