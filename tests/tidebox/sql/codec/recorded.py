"""The recorded histories as writers made them: which schema each transaction wrote with, and what it wrote.

A server writes with the schema it has loaded, which is the one in force at the transaction's start-ts or a
neighbour of it; columns and indexes that a running DDL adds or drops are written too, by their state.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.histories import History, load
from tidebox.sql.codec.datum import Datum, Json
from tidebox.sql.codec.rows import RowFormat
from tidebox.sql.codec.table import TableCodec
from tidemill.model.change import Op
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import SchemaState, parse_table
from tidemill.tidb.keys import is_record_key
from tidemill.tidb.meta import split_hash_key

WRITTEN = (SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG, SchemaState.PUBLIC)
DELETED_FROM = (*WRITTEN, SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG)


@dataclass(frozen=True)
class Version:
    """One document of a table, as servers that have loaded it write and delete rows."""

    table: TableInfo
    codec: TableCodec
    legacy_codec: TableCodec  # writes row format v1
    deleting_codec: TableCodec  # knows the columns and indexes that are only deleted from as well


@dataclass
class Transaction:
    start_ts: int
    commit_ts: int
    records: dict[bytes, bytes | None] = field(default_factory=dict)  # None: deleted
    entries: dict[bytes, bytes | None] = field(default_factory=dict)


@cache
def recorded(name: str) -> "Recorded":
    return Recorded(load(name))


class Recorded:
    def __init__(self, history: History) -> None:
        self.history = history
        self.transactions: list[Transaction] = []
        self._documents: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)  # by physical id
        self._related: dict[int, set[int]] = defaultdict(set)
        self._versions: dict[tuple[int, int], Version] = {}
        found: dict[int, Transaction] = {}
        for start_ts, commit_ts, op, key, value in history._rows:
            if key[:1] == b"m" and op == Op.PUT:
                self._note_document(commit_ts, key, value)
            elif key[:1] == b"t":
                transaction = found.get(start_ts)
                if transaction is None:
                    transaction = found[start_ts] = Transaction(start_ts, commit_ts)
                    self.transactions.append(transaction)
                into = transaction.records if is_record_key(key) else transaction.entries
                into[key] = value if op == Op.PUT else None

    def is_system(self, physical_id: int) -> bool:
        return physical_id in self.history._system_ids

    def related_ids(self, physical_id: int) -> set[int]:
        """The other physical ids that the same table has or had: rows are copied between them."""
        return self._related[physical_id] - {physical_id}

    def versions(self, physical_id: int, ts: int) -> Iterator[Version]:
        """What a writer at ``ts`` may have had loaded, the likeliest first: the version then in force, the two
        before it and the two behind it."""
        documents = self._documents[physical_id]
        at = bisect_right(documents, ts, key=lambda found: found[0])
        for place in (at - 1, at - 2, at, at - 3, at + 1):
            if 0 <= place < len(documents):
                yield self._version(physical_id, place)

    def _note_document(self, commit_ts: int, key: bytes, value: bytes) -> None:
        parts = split_hash_key(key)
        if parts is None or not parts[1].startswith(b"Table:"):
            return
        document = json.loads(value)
        partition = document["partition"] or {}
        ids = {document["id"], *(partition.get("new_partition_ids") or ())}
        for kind in ("definitions", "adding_definitions", "dropping_definitions"):
            ids.update(d["id"] for d in partition.get(kind) or ())
        for physical_id in ids:
            self._documents[physical_id].append((commit_ts, document))
            self._related[physical_id] |= ids

    def _version(self, physical_id: int, place: int) -> Version:
        found = self._versions.get((physical_id, place))
        if found is None:
            document = self._documents[physical_id][place][1]
            written, deleted_from = _as_public(document, WRITTEN), _as_public(document, DELETED_FROM)
            handles = document["common_handle_version"]
            found = self._versions[physical_id, place] = Version(
                written,
                TableCodec(written, common_handle_version=handles),
                TableCodec(written, common_handle_version=handles, row_format=RowFormat.V1),
                TableCodec(deleted_from, common_handle_version=handles),
            )
        return found


def _as_public(document: dict[str, Any], states: tuple[SchemaState, ...]) -> TableInfo:
    document = json.loads(json.dumps(document))
    for part in (*document["cols"], *(document["index_info"] or ())):
        if part["state"] in states:
            part["state"] = SchemaState.PUBLIC
    return parse_table(document, 0, "recorded", Ts(0))


def with_generated(table: TableInfo, row: list[Datum]) -> list[Datum]:
    """``row`` with the one virtual column computed that an index of the histories has: the ``name`` in column j."""
    names = [column.name for column in table.columns]
    for at, column in enumerate(table.columns):
        if column.is_virtual and column.name == "k":
            document = row[names.index("j")]
            row[at] = document.root["name"] if isinstance(document, Json) else None  # type: ignore[call-overload,index]
    return row
