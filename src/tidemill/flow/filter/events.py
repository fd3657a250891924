"""The words of ``ignore-event``: kinds of changes, and groups of them."""

from collections.abc import Iterable
from typing import Final

from tidemill.errors import FilterError, suggestion
from tidemill.model.ddl import ActionType
from tidemill.model.row import RowOp

ROWS: Final[dict[str, frozenset[RowOp]]] = {
    "all dml": frozenset(RowOp),
    "insert": frozenset({RowOp.INSERT}),
    "update": frozenset({RowOp.UPDATE}),
    "delete": frozenset({RowOp.DELETE}),
}

_A = ActionType
_SINGLE: Final[dict[str, frozenset[int]]] = {
    "create schema": frozenset({_A.CREATE_SCHEMA}),
    "create database": frozenset({_A.CREATE_SCHEMA}),
    "drop schema": frozenset({_A.DROP_SCHEMA}),
    "drop database": frozenset({_A.DROP_SCHEMA}),
    "modify schema charset and collate": frozenset({_A.MODIFY_SCHEMA_CHARSET}),
    "create table": frozenset({_A.CREATE_TABLE, _A.CREATE_TABLES}),
    "drop table": frozenset({_A.DROP_TABLE}),
    "truncate table": frozenset({_A.TRUNCATE_TABLE}),
    "rename table": frozenset({_A.RENAME_TABLE, _A.RENAME_TABLES}),
    "recover table": frozenset({_A.RECOVER_TABLE}),
    "create view": frozenset({_A.CREATE_VIEW}),
    "drop view": frozenset({_A.DROP_VIEW}),
    "create index": frozenset({_A.ADD_INDEX}),
    "drop index": frozenset({_A.DROP_INDEX}),
    "rename index": frozenset({_A.RENAME_INDEX}),
    "alter index visibility": frozenset({_A.ALTER_INDEX_VISIBILITY}),
    "add primary key": frozenset({_A.ADD_PRIMARY_KEY}),
    "drop primary key": frozenset({_A.DROP_PRIMARY_KEY}),
    "add foreign key": frozenset({_A.ADD_FOREIGN_KEY}),
    "drop foreign key": frozenset({_A.DROP_FOREIGN_KEY}),
    "add column": frozenset({_A.ADD_COLUMN, _A.ADD_COLUMNS}),
    "drop column": frozenset({_A.DROP_COLUMN, _A.DROP_COLUMNS}),
    "modify column": frozenset({_A.MODIFY_COLUMN}),
    "set default value": frozenset({_A.SET_DEFAULT_VALUE}),
    "rebase auto id": frozenset({_A.REBASE_AUTO_ID}),
    "modify table comment": frozenset({_A.MODIFY_TABLE_COMMENT}),
    "modify table charset and collate": frozenset({_A.MODIFY_TABLE_CHARSET}),
    "add table partition": frozenset({_A.ADD_TABLE_PARTITION}),
    "drop table partition": frozenset({_A.DROP_TABLE_PARTITION}),
    "truncate table partition": frozenset({_A.TRUNCATE_TABLE_PARTITION}),
    "exchange table partition": frozenset({_A.EXCHANGE_PARTITION}),
    "reorganize table partition": frozenset({_A.REORGANIZE_PARTITION}),
    "alter table partitioning": frozenset({_A.ALTER_TABLE_PARTITIONING}),
    "remove table partitioning": frozenset({_A.REMOVE_PARTITIONING}),
    "alter ttl info": frozenset({_A.ALTER_TTL}),
    "alter ttl remove": frozenset({_A.REMOVE_TTL}),
    "multi schema change": frozenset({_A.MULTI_SCHEMA_CHANGE}),
}
_NOT_ALTERING: Final = frozenset(
    {
        "create schema", "create database", "drop schema", "drop database", "modify schema charset and collate",
        "create table", "drop table", "truncate table", "recover table", "create view", "drop view",
    }
)  # fmt: skip

DDLS: Final[dict[str, frozenset[int]]] = {
    "all ddl": frozenset().union(*_SINGLE.values()),
    # RENAME TABLE too: TiDB does not tell it from ALTER TABLE … RENAME.
    "alter table": frozenset().union(*(kinds for word, kinds in _SINGLE.items() if word not in _NOT_ALTERING)),
    **_SINGLE,
}


def read(words: Iterable[str], place: str) -> tuple[frozenset[RowOp], frozenset[int]]:
    """The kinds of changes of rows, and of DDLs, that the words stand for."""
    rows: frozenset[RowOp] = frozenset()
    ddls: frozenset[int] = frozenset()
    for at, word in enumerate(words):
        spelled = " ".join(word.lower().split())
        if spelled not in ROWS and spelled not in DDLS:
            known = [*ROWS, *DDLS]
            hint = suggestion(spelled, known) or f" Known are {', '.join(known)}."
            raise FilterError(f"{place}[{at}]: unknown event {word!r}.{hint}")
        rows |= ROWS.get(spelled, frozenset())
        ddls |= DDLS.get(spelled, frozenset())
    return rows, ddls
