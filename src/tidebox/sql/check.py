"""ADMIN CHECK TABLE: every row has its index entries, and every entry its row."""

from tidebox.sql.codec.indexes import index_prefix
from tidebox.sql.tables import TableUse
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import SqlError


def check_table(use: TableUse, transaction: Transaction) -> None:
    """8223 or 8134, as in TiDB, where they do not agree."""
    codec = use.access.codec
    public = {index.id for index in use.info.indexes}
    for physical_id in use.info.physical_ids:
        wanted: dict[bytes, bytes] = {}
        for row in use.scan(transaction):
            if row.key[:9] != index_prefix(physical_id, 0)[:9]:
                continue
            datums = [row.datums[at] for at in use.access.written_places]
            entries = codec.index_entries(row.handle, datums, physical_id)
            for index, entry in zip(codec.indexes, entries, strict=True):
                if index.index.id in public:
                    wanted[entry.key] = entry.value
        for index in codec.indexes:
            if index.index.id not in public:
                continue
            prefix = index_prefix(physical_id, index.index.id)
            found = dict(transaction.scan(prefix, prefix + b"\xff" * 9))
            expected = {key: value for key, value in wanted.items() if key.startswith(prefix)}
            _compare(use, index.index.name, expected, found)


def _compare(use: TableUse, name: str, expected: dict[bytes, bytes], found: dict[bytes, bytes]) -> None:
    table = use.info.full_name
    missing = expected.keys() - found.keys()
    if missing:
        raise SqlError(
            8223, "HY000", f"data inconsistency in table: {table}, index: {name}: {len(missing)} rows have no entry"
        )
    orphans = found.keys() - expected.keys()
    if orphans:
        raise SqlError(
            8223, "HY000", f"data inconsistency in table: {table}, index: {name}: {len(orphans)} entries have no row"
        )
    wrong = [key for key, value in expected.items() if found[key] != value]
    if wrong:
        raise SqlError(
            8223, "HY000", f"data inconsistency in table: {table}, index: {name}: {len(wrong)} entries differ"
        )
