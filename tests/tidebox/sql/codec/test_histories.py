"""What a real TiDB wrote: every record of the histories, read and written again, has the same bytes, and every
index entry follows from the record."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.tidebox.sql.codec.recorded import Recorded, Transaction, Version, recorded, with_generated
from tidebox.sql.codec import ChecksumVersion, handle_in, split_index_key, split_index_value
from tidebox.sql.codec.flagged import cut_cell
from tidebox.sql.codec.rows import split_row
from tidebox.sql.codec.table import TableCodec
from tidemill.model.table import STRING_TYPES
from tidemill.model.ts import Ts
from tidemill.tidb.documents import parse_table
from tidemill.tidb.keys import physical_id_of, record_prefix

# How each record came about, and how many there are:
#   written     as the schema at the transaction's start-ts says
#   neighbour   by a server that had the schema before or after that one
#   backfilled  by a lossy MODIFY COLUMN that filled its new column: all columns are in the row
#   copied      byte for byte to or from another partition's id, with columns that are gone
RECORDS = {
    "types": {("user", "written"): 371, ("system", "written"): 1302},
    "ddl": {
        ("user", "written"): 139,
        ("user", "backfilled"): 28,
        ("user", "copied"): 4,
        ("system", "written"): 1935,
    },
    "online": {
        ("user", "written"): 22305,
        ("user", "neighbour"): 10,
        ("user", "backfilled"): 2266,
        ("user", "copied"): 315,
        ("system", "written"): 1276,
    },
}

# Of index entries:
#   put           with the record that they belong to
#   filled in     by ADD INDEX or a copy of rows, from the record as it then was
#   deleted       because the record before had them
#   deleted blind in a partition that is being filled, whose record was still elsewhere
ENTRIES = {
    "types": {("user", "put"): 27, ("user", "deleted"): 11, ("system", "put"): 987},
    "ddl": {
        ("user", "put"): 18,
        ("user", "filled in"): 28,
        ("user", "deleted"): 4,
        ("system", "put"): 1034,
        ("system", "deleted"): 79,
    },
    "online": {
        ("user", "put"): 12876,
        ("user", "filled in"): 1934,
        ("user", "deleted"): 12034,
        ("user", "deleted blind"): 8,
        ("system", "put"): 842,
        ("system", "deleted"): 78,
    },
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_written_as_tidb_wrote_it(name: str) -> None:
    history = recorded(name)
    found = Counter(
        ("system" if history.is_system(physical_id_of(key)) else "user", origin_of_record(history, transaction, key))
        for transaction in history.transactions
        for key, value in transaction.records.items()
        if value is not None
    )
    assert dict(found) == RECORDS[name]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_index_entry_follows_from_its_record(name: str) -> None:
    history = recorded(name)
    found: Counter[tuple[str, str]] = Counter()
    for transaction in history.transactions:
        by_table = defaultdict(list)
        for key in transaction.entries:
            by_table[physical_id_of(key)].append(key)
        for physical_id, keys in by_table.items():
            side = "system" if history.is_system(physical_id) else "user"
            found.update((side, origin) for origin in origins_of_entries(history, transaction, physical_id, keys))
    assert dict(found) == ENTRIES[name]


@pytest.mark.parametrize("name", ENTRIES)
def test_no_index_entry_is_missing_for_a_record_written_by_a_session(name: str) -> None:
    """An insert puts an entry into each index that is written, an update into each whose entry changes.
    Only rows that a reorganization copies to a new partition get their entries in a later transaction."""
    history = recorded(name)
    missing = []
    for transaction in history.transactions:
        for key, value in transaction.records.items():
            if value is None or value in values_elsewhere(history, key, transaction.commit_ts - 1):
                continue
            versions = nearby(history, transaction, key)
            is_right = any(
                is_written_with(v, key, value) and is_complete(history, transaction, v, key, value) for v in versions
            )
            if not is_right and any(is_written_with(v, key, value) for v in versions):
                missing.append(key.hex())
    assert missing == []


def origin_of_record(history: Recorded, transaction: Transaction, key: bytes) -> str:
    value = transaction.records[key]
    assert value is not None
    physical_id, handle = physical_id_of(key), handle_in(key)
    for place, version in enumerate(nearby(history, transaction, key)):
        if is_written_with(version, key, value):
            return "neighbour" if place else "written"
        row = version.codec.decode(key, value)
        if version.codec.backfilled_record(handle, row, physical_id) == (key, value):
            return "backfilled"
    return "copied" if value in values_elsewhere(history, key, transaction.commit_ts) else "unexplained"


def values_elsewhere(history: Recorded, key: bytes, ts: int) -> list[bytes | None]:
    """What the records with the same handle under the table's other physical ids hold at ``ts``."""
    return [
        history.history.value_at(record_prefix(other) + handle_in(key), ts)
        for other in history.related_ids(physical_id_of(key))
    ]


def is_written_with(version: Version, key: bytes, value: bytes) -> bool:
    """Whether a row read from the record makes the record's key and value again."""
    codec = version.codec if value[0] == 0x80 else version.legacy_codec
    row = codec.decode(key, value)
    is_clustered = version.table.pk_is_handle or version.table.is_common_handle
    handle = codec.handle_of(row) if is_clustered else handle_in(key)
    return codec.record(handle, row, physical_id_of(key)) == (key, value)


def nearby(history: Recorded, transaction: Transaction, key: bytes) -> list[Version]:
    return list(history.versions(physical_id_of(key), transaction.start_ts))


def origins_of_entries(history: Recorded, transaction: Transaction, physical_id: int, keys: list[bytes]) -> list[str]:
    """By the first version of the schema that explains all, else by the one that explains most."""
    best: list[str] = ["unexplained"] * len(keys)
    for version in history.versions(physical_id, transaction.start_ts):
        deleted = deleted_by(history, transaction, version, physical_id)
        origins = [
            deleted.get(key, "unexplained")
            if transaction.entries[key] is None
            else origin_of_put(history, transaction, version, key)
            for key in keys
        ]
        best = min(best, origins, key=lambda found: found.count("unexplained"))
        if "unexplained" not in best:
            break
    return best


def origin_of_put(history: Recorded, transaction: Transaction, version: Version, key: bytes) -> str:
    value = transaction.entries[key]
    assert value is not None
    record_key = record_prefix(physical_id_of(key)) + handle_of_entry(version, key, value)
    record = transaction.records.get(record_key)
    origin = "put"
    if record is None:
        origin = "filled in"
        record = history.history.value_at(record_key, transaction.start_ts)
    return origin if entries_of(version.codec, record_key, record).get(key) == value else "unexplained"


def deleted_by(history: Recorded, transaction: Transaction, version: Version, physical_id: int) -> dict[bytes, str]:
    """The entries of the records that the transaction changes, as they were before."""
    origins: dict[bytes, str] = {}
    if all(value is not None for value in transaction.entries.values()):
        return origins
    before_ts = transaction.commit_ts - 1
    for record_key in transaction.records:
        if physical_id_of(record_key) != physical_id:
            continue
        before = history.history.value_at(record_key, before_ts)
        if before is not None:
            origins.update(dict.fromkeys(entries_of(version.deleting_codec, record_key, before), "deleted"))
            continue
        for elsewhere in values_elsewhere(history, record_key, before_ts):
            for entry_key in entries_of(version.deleting_codec, record_key, elsewhere):
                origins.setdefault(entry_key, "deleted blind")
    return origins


def is_complete(history: Recorded, transaction: Transaction, version: Version, key: bytes, value: bytes) -> bool:
    before_ts = transaction.commit_ts - 1
    before = entries_of(version.codec, key, history.history.value_at(key, before_ts))
    if not before:  # an update of a row that is still to be copied here touches only what it changes
        for elsewhere in values_elsewhere(history, key, before_ts):
            before |= entries_of(version.codec, key, elsewhere)
    after = entries_of(version.codec, key, value)
    changed = {k: v for k, v in after.items() if before.get(k) != v}
    return all(transaction.entries.get(k) == v for k, v in changed.items())


def entries_of(codec: TableCodec, key: bytes, value: bytes | None) -> dict[bytes, bytes]:
    """The index entries of a record, by key; none if there is no record."""
    if not value:
        return {}
    row = with_generated(codec.table, codec.decode(key, value))
    return {e.key: e.value for e in codec.index_entries(handle_in(key), row, physical_id_of(key))}


def handle_of_entry(version: Version, key: bytes, value: bytes) -> bytes:
    """Read back from the entry itself: from its value if that has it, else from behind the indexed values."""
    in_value = split_index_value(value).handle
    if in_value is not None:
        return in_value
    parts = split_index_key(key)
    index = next((i for i in version.table.indexes if i.id == parts.index_id), None)
    if index is None:
        return b""
    at = 0
    for _ in index.columns:
        _, at = cut_cell(parts.values, at)
    rest = parts.values[at:]
    return rest if version.table.is_common_handle else rest[1:]


def test_rows_of_both_formats_and_both_forms_are_among_them() -> None:
    seen = Counter(
        (value[0], value[1] & 1 if value[0] == 0x80 else None)
        for name in RECORDS
        for transaction in recorded(name).transactions
        for value in transaction.records.values()
        if value and split_row(value)
    )
    assert set(seen) == {(0x80, 0), (0x80, 1), (0x08, None)}


CLUSTERED = [json.loads(line) for line in (Path(__file__).parent / "clustered.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recording", CLUSTERED, ids=lambda recording: recording["table"]["name"]["O"])
def test_clustered_tables_with_collated_keys_are_written_as_tidb_wrote_them(recording: dict[str, Any]) -> None:
    """What TiDB 8.4 stored for tables of a kind that the histories lack: clustered with common handles, secondary
    indexes and prefixes, in utf8mb4_bin and utf8mb4_general_ci, one with checksums. Every value it stored is here
    beside its row."""
    t = parse_table(recording["table"], 0, "recorded", Ts(0))
    checksum = recording["checksum"]
    codec = TableCodec(t, checksum=None if checksum is None else ChecksumVersion(checksum))
    for recorded_row in recording["rows"]:
        row = [
            bytes.fromhex(value) if column.type in STRING_TYPES and column.is_binary else value
            for column, value in zip(t.columns, recorded_row["values"], strict=True)
        ]
        handle = codec.handle_of(row)
        record = codec.record(handle, row)
        written = dict([record, *((e.key, e.value) for e in codec.index_entries(handle, row))])
        assert {key.hex(): value.hex() for key, value in written.items()} == recorded_row["stored"]
        assert codec.decode(*record) == row
