"""The text of statements: heads and tails around rows that are there already."""

from dataclasses import dataclass
from typing import Any

from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.sinks.mysql.literals import written_columns
from tidemill.sinks.mysql.plan import Form, Plan, Statement
from tidemill.tidb.lexer import quoted


def _new(column: ColumnInfo) -> str:
    """The new value. That of an ENUM or SET would pass as a text, and the empty member of a SET be lost."""
    value = f"VALUES({quoted(column.name)})"
    return f"CAST({value} AS UNSIGNED)" if column.type in (ColumnType.ENUM, ColumnType.SET) else value


@dataclass(frozen=True, slots=True)
class Shapes:
    """What stands before and behind the rows, by form."""

    heads: dict[Form, bytes]
    tails: dict[Form, bytes]

    @classmethod
    def of(cls, table: TableInfo, plain: frozenset[str] = frozenset()) -> "Shapes":
        into = f"{quoted(table.schema)}.{quoted(table.name)}"
        written = [column for _, column in written_columns(table, plain)]
        columns = [quoted(column.name) for column in written]
        key = [quoted(column.name) for column in table.handle_key]
        keys = {column.offset for column in table.handle_key}
        values = f"INTO {into} ({','.join(columns)}) VALUES "
        sets = ",".join(f"{quoted(column.name)}={_new(column)}" for column in written if column.offset not in keys)
        where = key[0] if len(key) == 1 else f"({','.join(key)})"
        # A table of nothing but its key has nothing to update: the row is there.
        update = f" ON DUPLICATE KEY UPDATE {sets or f'{key[0]}={key[0]}'}"
        # A TiDB (8.5) turns round the bytes of a BIT in VALUES(), whatever is made of it there.
        is_replaced = any(column.type is ColumnType.BIT and column.flen > 8 for column in written)
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
