"""Random histories of one table with three unique keys, and rows as the downstream should have them.

The table is one whose rows keep an identity of their own (no clustered key), so an update may change any of its keys,
two rows may swap theirs in one transaction, and text keys differ from each other in case or trailing spaces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, NOT_NULL, Row, column, rows_of
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnFlag, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts


def keyed_table(schema: str, *, text_key: bool = False) -> TableInfo:
    """id and a (text, compared without case) and b (a number or NULL) are unique, v is not; id or a is primary."""
    columns = [
        column("id", ColumnType.LONG, NOT_NULL),
        column("a", ColumnType.VARCHAR, NOT_NULL, flen=20),
        column("b", ColumnType.LONG),
        column("v", ColumnType.VARCHAR, flen=20),
    ]
    placed = tuple(_placed(c, i) for i, c in enumerate(columns))
    primary = 1 if text_key else 0
    indexes = (
        IndexInfo(1, "PRIMARY", (IndexColumn(primary, -1),), True, True),
        IndexInfo(2, "u1", (IndexColumn(1 - primary, -1),), True, False),
        IndexInfo(3, "u2", (IndexColumn(2, -1),), True, False),
    )
    return TableInfo(120, 1, schema, "t", Ts(1), placed, indexes)


def create_table(table: TableInfo) -> str:
    key, other = ("a", "id") if table.indexes[0].columns[0].offset == 1 else ("id", "a")
    return (
        f"CREATE TABLE `{table.schema}`.t (id INT NOT NULL, a VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL, b INT, "
        f"v VARCHAR(20), PRIMARY KEY ({key}), UNIQUE u1 ({other}), UNIQUE u2 (b))"
    )


def _placed(info: Any, offset: int) -> Any:
    fields = {name: getattr(info, name) for name in info.__slots__}
    is_text = info.type is ColumnType.VARCHAR
    more = {"collate": "utf8mb4_general_ci"} if info.name == "a" else {"collate": "utf8mb4_bin"} if is_text else {}
    flag = info.flag | (ColumnFlag.PRI_KEY if offset == 0 else 0)
    return type(info)(**{**fields, "id": offset + 1, "offset": offset, "flag": flag, **more})


@dataclass(frozen=True)
class Past:
    """Transactions: lists of (old row, new row); and the rows after each."""

    transactions: list[list[tuple[Row | None, Row | None]]]
    states: list[list[Row]]

    def rows(self, table: TableInfo, first: int, last: int) -> RowBatch:
        changes = [change for txn in self.transactions[first:last] for change in txn]
        stamps = [COMMIT_TS + 10 * n for n in range(first, last) for _ in self.transactions[n]]
        return rows_of(table, *changes, ts=stamps)

    def after(self, count: int) -> list[Row]:
        return self.states[count]


IDS, TEXTS, NUMBERS = range(1, 6), ("x", "X", "y", "Y ", "z", "é", "E"), (None, None, 1, 2, 3, -1)


def folded(text: str) -> str:
    return text.lower().rstrip(" ").replace("é", "e")


def is_consistent(rows: list[Row]) -> bool:
    keys = [
        [row["id"] for row in rows],
        [folded(row["a"]) for row in rows],
        [row["b"] for row in rows if row["b"] is not None],
    ]
    return all(len(set(key)) == len(key) for key in keys)


@st.composite
def pasts(draw: Any, most: int = 8) -> Past:
    state: dict[int, Row] = {}
    transactions: list[list[tuple[Row | None, Row | None]]] = []
    states: list[list[Row]] = [[]]
    identity = 0
    for _ in range(draw(st.integers(1, most))):
        after = dict(state)
        for _ in range(draw(st.integers(1, 4))):
            what = draw(st.sampled_from(("insert", "update", "update", "delete", "swap")))
            if what == "insert":
                identity += 1
                after[identity] = _row(draw)
            elif what == "swap" and len(after) > 1:
                one, two = draw(st.permutations(sorted(after)))[:2]
                field = draw(st.sampled_from(("id", "a", "b")))
                first, second = after[one], after[two]
                after[one], after[two] = {**first, field: second[field]}, {**second, field: first[field]}
            elif after and what == "update":
                one = draw(st.sampled_from(sorted(after)))
                field = draw(st.sampled_from(("id", "a", "b", "v", "v")))
                after[one] = {**after[one], field: _row(draw)[field]}
            elif after and what == "delete":
                after.pop(draw(st.sampled_from(sorted(after))))
        if not is_consistent(list(after.values())):
            continue
        changes = list(_changes(state, after))
        if changes:
            transactions.append(changes)
            states.append(list(after.values()))
            state = after
    return Past(transactions, states)


def _changes(before: dict[int, Row], after: dict[int, Row]) -> Iterator[tuple[Row | None, Row | None]]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield before.get(key), after.get(key)


def _row(draw: Any) -> Row:
    return {
        "id": draw(st.sampled_from(IDS)),
        "a": draw(st.sampled_from(TEXTS)),
        "b": draw(st.sampled_from(NUMBERS)),
        "v": draw(st.sampled_from(("p", "q", "it's", None))),
    }
