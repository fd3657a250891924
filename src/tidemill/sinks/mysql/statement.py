"""The text of statements: heads and tails around rows that are there already."""

from dataclasses import dataclass
from typing import Any

from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.sinks.mysql.literals import written_columns
from tidemill.sinks.mysql.plan import Form, Plan, Statement
from tidemill.tidb.lexer import quoted


def _new(column: ColumnInfo, *, is_tidb: bool) -> str:
    """The new value. That of an ENUM or SET would pass as a text, and the empty member of a SET be lost. A TiDB cannot
    cast it (error 1105)."""
    value = f"VALUES({quoted(column.name)})"
    is_number = column.type in (ColumnType.ENUM, ColumnType.SET) and not is_tidb
    return f"CAST({value} AS UNSIGNED)" if is_number else value


def _is_lost_in_values(column: ColumnInfo, *, is_tidb: bool) -> bool:
    """A TiDB (8.5) turns round the bytes of a BIT in VALUES(), whatever is made of it there; and takes members by their
    texts: an ENUM's index 0 for the empty member, without changing its indexes, so that it contradicts itself."""
    if column.type in (ColumnType.ENUM, ColumnType.SET):
        return is_tidb and "" in column.elems
    return column.type is ColumnType.BIT and column.flen > 8


@dataclass(frozen=True, slots=True)
class Shapes:
    """What stands before and behind the rows, by form."""

    heads: dict[Form, bytes]
    tails: dict[Form, bytes]

    @classmethod
    def of(cls, table: TableInfo, plain: frozenset[str] = frozenset(), *, is_tidb: bool = False) -> "Shapes":
        into = f"{quoted(table.schema)}.{quoted(table.name)}"
        written = [column for _, column in written_columns(table, plain)]
        columns = [quoted(column.name) for column in written]
        key = [quoted(column.name) for column in table.handle_key]
        keys = {column.offset for column in table.handle_key}
        values = f"INTO {into} ({','.join(columns)}) VALUES "
        changed = (column for column in written if column.offset not in keys)
        sets = ",".join(f"{quoted(column.name)}={_new(column, is_tidb=is_tidb)}" for column in changed)
        where = key[0] if len(key) == 1 else f"({','.join(key)})"
        # A table of nothing but its key has nothing to update: the row is there.
        update = f" ON DUPLICATE KEY UPDATE {sets or f'{key[0]}={key[0]}'}"
        is_replaced = any(_is_lost_in_values(column, is_tidb=is_tidb) for column in written)
        heads = {
            Form.DELETE: f"DELETE FROM {into} WHERE {where} IN (",
            Form.REPLACE: f"REPLACE {values}",
            Form.INSERT: f"INSERT {values}",
            Form.UPDATE: f"{'REPLACE' if is_replaced else 'INSERT'} {values}",
        }
        tails = {Form.DELETE: ")", Form.REPLACE: "", Form.INSERT: "", Form.UPDATE: "" if is_replaced else update}
        return cls(
            {form: text.encode() for form, text in heads.items()}, {form: text.encode() for form, text in tails.items()}
        )

    def text(self, plan: Plan, statement: Statement, *, is_safe: bool) -> list[Any]:
        """The parts of a statement, to be joined."""
        form = statement.form
        if is_safe and form is not Form.DELETE:
            form = Form.REPLACE
        return [self.heads[form], plan.slice(statement.first, statement.last), self.tails[form]]
