"""Statements of our subset drawn by lot, for two clients of one database.

``story(seed)`` yields a ``Step`` and is told whether the statement was taken, so that it knows its tables. The same
seed with the same answers gives the same statements.
"""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from tests.tidebox.sql.random_queries import Queries
from tests.tidebox.sql.random_values import BYTES, INTEGERS, ColumnType, draw_type, draw_value

STATEMENTS = 60
_MODES = (
    "", "", "", "", "", "",
    "NO_ENGINE_SUBSTITUTION,STRICT_TRANS_TABLES",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    client: int  # 0 or 1
    sql: str


@dataclass(frozen=True)
class Column:
    name: str
    type: ColumnType
    is_not_null: bool = False
    is_generated: bool = False
    is_auto: bool = False


@dataclass
class Table:
    name: str
    columns: list[Column]
    primary: tuple[str, ...] = ()
    is_clustered: bool = True
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    @property
    def written(self) -> list[Column]:
        return [c for c in self.columns if not c.is_generated]

    @property
    def is_ordered(self) -> bool:
        """Whether rows lie in the order of what was written, not of when."""
        return bool(self.primary) and self.is_clustered

    @property
    def has_auto(self) -> bool:
        return any(c.is_auto for c in self.columns)


Talk = Generator[Step, bool, None]


def story(seed: int) -> Talk:
    yield from _Story(random.Random(seed)).tell()


class _Lot:
    """What is drawn from, and what is there."""

    def __init__(self, lot: random.Random) -> None:
        self.lot = lot
        self.tables: dict[str, Table] = {}
        self.queries = Queries(lot)
        self.names = 0
        self.is_pessimistic = False
        self.is_open = False

    def _one(self) -> Talk:
        kinds: tuple[tuple[int, Callable[[], Talk]], ...] = (
            (26, self._insert), (12, self._update), (7, self._delete), (14, self._select), (18, self._alter),
            (2, self._create), (5, self._transaction), (2, self._table_ddl), (5, self._show), (3, self._other_client),
        )  # fmt: skip
        weights = [w for w, _ in kinds]
        chosen = self.lot.choices([k for _, k in kinds], weights)[0]
        yield from chosen()

    def _table(self) -> Table:
        return self.tables[self.lot.choice(sorted(self.tables))]

    def _fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"


class _Definitions(_Lot):
    """Columns and keys, as a CREATE or ALTER TABLE has them."""

    def _column(self) -> Column:
        return Column(self._fresh("c"), draw_type(self.lot), self.lot.random() < 0.25)

    def _definition(self, column: Column, *, added: bool = False) -> str:
        text = str(column.type)
        if column.is_not_null:
            text += " not null"
        elif self.lot.random() < 0.1:
            text += " null"
        if self.lot.random() < 0.35:
            text += self._default(column, added=added)
        if self.lot.random() < 0.08:
            text += " comment 'c''s note'"
        return text

    def _default(self, column: Column, *, added: bool) -> str:
        kind = column.type
        if kind.kind in ("datetime", "timestamp") and self.lot.random() < 0.5 and not added:
            size = f"({kind.sizes[0]})" if kind.sizes else ""
            update = f" on update current_timestamp{size}" if self.lot.random() < 0.4 else ""
            return f" default current_timestamp{size}{update}"
        return f" default {self._default_value(kind)}"

    def _default_value(self, kind: ColumnType) -> str:
        """Without bytes that are no text, which TiDB's documents lose, and digits that are only rounded off."""
        if kind.kind == "time":
            return self.lot.choice(("'10:00:00'", "12345", "-12345", "NULL", "'1 02:03:04'"))
        if kind.kind == "year":
            return self.lot.choice(("1999", "'2000'", "NULL", "2155"))
        if kind.kind == "bit":
            return self.lot.choice(("0", "1", "b'1'", "NULL", "'abc'"))
        if kind.kind in BYTES:
            return self.lot.choice(("'a'", "'B'", "NULL", "x'41'"))
        if kind.kind == "decimal":
            return self.lot.choice(("0", "'0'", "NULL", "0.0", "'abc'", "0.1" if kind.sizes[1] else "7"))
        return draw_value(self.lot, kind, wrong=0.05)

    def _primary(self, table: Table, parts: list[str]) -> list[str]:
        drawn = self.lot.random()
        if drawn < 0.35:
            table.columns.insert(0, Column("id", ColumnType(self.lot.choice(("int", "bigint"))), True))
            auto = self.lot.random() < 0.5
            if auto:
                table.columns[0] = Column("id", table.columns[0].type, True, is_auto=True)
            table.is_clustered = self.lot.random() < 0.7
            word = "clustered" if table.is_clustered else "nonclustered"
            word = "" if self.lot.random() < 0.3 and table.is_clustered else word
            parts.insert(0, f"id {table.columns[0].type}{' auto_increment' * auto} primary key {word}".rstrip())
            table.primary = ("id",)
            return []
        if drawn < 0.75:
            usable = [c for c in table.columns if c.type.fits_keys]
            if not usable:
                return []
            chosen = self.lot.sample(usable, min(len(usable), self.lot.choice((1, 1, 2, 3))))
            table.is_clustered = self.lot.random() < 0.7
            table.primary = tuple(c.name for c in chosen)
            word = "clustered" if table.is_clustered else "nonclustered"
            return [f"primary key ({', '.join(self._part(c) for c in chosen)}) {word}"]
        table.is_clustered = False
        return []

    def _part(self, column: Column) -> str:
        kind = column.type
        if kind.needs_length_in_keys:
            return f"{column.name}({self.lot.choice((1, 2, 3, 10))})" if self.lot.random() < 0.97 else column.name
        if (kind.is_text or kind.kind in BYTES) and self.lot.random() < 0.25:
            return f"{column.name}({self.lot.choice((1, 2, 3))})"
        return column.name

    def _key(self, table: Table) -> str:
        usable = [c for c in table.columns if c.type.fits_keys or self.lot.random() < 0.03]
        if not usable:
            return f"key ({table.columns[0].name})"
        chosen = self.lot.sample(usable, min(len(usable), self.lot.choice((1, 1, 2, 3))))
        name = self._fresh("k")
        table.keys[name] = tuple(c.name for c in chosen)
        unique = "unique " * (self.lot.random() < 0.4)
        return f"{unique}key {name} ({', '.join(self._part(c) for c in chosen)})"


class _Changes(_Definitions):
    """Rows."""

    def _insert(self) -> Talk:
        table = self._table()
        yield Step(0, self._insert_text(table))

    def _insert_text(self, table: Table) -> str:
        lot = self.lot
        verb = lot.choices(("insert into", "replace into", "insert ignore into"), (8, 2, 1))[0]
        columns = table.written if lot.random() < 0.5 else lot.sample(table.written, lot.randint(1, len(table.written)))
        names = [c.name for c in columns]
        is_ignore = verb == "insert ignore into"
        if lot.random() < 0.01 and not is_ignore:
            names.append(lot.choice(("nope", names[0])))
        head = f"{verb} {table.name} ({', '.join(names)})"
        if lot.random() < 0.07 and not is_ignore:
            source = self._table()
            picked = [self._alike(source, column) for column in columns]
            body = f" select {', '.join(picked)} from {source.name}"
            if not source.is_ordered or lot.random() < 0.5:
                body += f" order by {', '.join(str(i + 1) for i in range(len(picked)))} limit {lot.randint(0, 5)}"
        else:
            rows = [
                f"({', '.join(self._values(columns, names, is_ignore=is_ignore))})"
                for _ in range(lot.choice((1, 1, 2, 3, 5)))
            ]
            body = f" values {', '.join(rows)}"
        if verb == "insert into" and lot.random() < 0.15 and " select " not in body:
            body += f" on duplicate key update {self._sets(table, is_duplicate=True)}"
        return head + body

    def _alike(self, source: Table, column: Column) -> str:
        """A column of the same type, or a literal."""
        names = [c.name for c in source.columns if c.type.kind == column.type.kind]
        return self.lot.choice(names) if names else draw_value(self.lot, column.type)

    def _values(self, columns: list[Column], names: list[str], *, is_ignore: bool) -> Iterator[str]:
        for column in columns:
            drawn = self.lot.random()
            if drawn < 0.04 and not column.is_auto and not is_ignore:
                yield "default"
            elif drawn < 0.07 and not column.is_auto:
                yield self.queries.value(column.type)
            elif column.is_auto:
                # The last numbers of the type would only show how they run out.
                yield self.lot.choice(("NULL", "0", "DEFAULT", str(self.lot.randint(-5, 60))))
            else:
                value = draw_value(self.lot, column.type)
                yield value if value != "NULL" or not column.is_not_null or drawn > 0.9 else "1"
        for _ in names[len(columns) :]:
            yield "1"

    def _sets(self, table: Table, *, is_duplicate: bool = False) -> str:
        chosen = self.lot.sample(table.written, min(len(table.written), self.lot.choice((1, 1, 2))))
        found = []
        for column in chosen:
            drawn = self.lot.random()
            if drawn < 0.15 and column.type.is_number:
                value = f"{column.name} {self.lot.choice('+-*')} {self.lot.choice(('1', '2', '0.5'))}"
            elif drawn < 0.25 and column.type.is_text:
                value = f"concat({column.name}, 'x')"
            elif drawn < 0.32:
                value = self._alike(table, column)
            elif drawn < 0.42 and is_duplicate:
                value = f"values({column.name})"
            elif drawn < 0.45:
                value = "default"
            else:
                value = draw_value(self.lot, column.type)
            found.append(f"{column.name} = {value}")
        return ", ".join(found)

    def _update(self) -> Talk:
        yield Step(0, self._update_text(self._table()))

    def _update_text(self, table: Table) -> str:
        text = f"update {table.name} set {self._sets(table)}"
        if self.lot.random() < 0.85:
            text += f" where {self.queries.condition(table.columns)}"
        if self.lot.random() < 0.1 and table.primary and table.is_ordered:
            text += f" order by {', '.join(table.primary)} limit {self.lot.randint(0, 3)}"
        return text

    def _delete(self) -> Talk:
        yield Step(0, self._delete_text(self._table()))

    def _delete_text(self, table: Table) -> str:
        text = f"delete from {table.name}"
        if self.lot.random() < 0.95:
            text += f" where {self.queries.condition(table.columns)}"
        if self.lot.random() < 0.1 and table.is_ordered:
            text += f" order by {', '.join(table.primary)} limit {self.lot.randint(0, 3)}"
        return text


class _Alterations(_Changes):
    """The clauses of an ALTER TABLE."""

    def _alter(self) -> Talk:
        table = self._table()
        self.is_open = False
        clauses = [self._clause(table)]
        for _ in range(self.lot.choice((0, 0, 0, 0, 1, 2))):
            another = self._clause(table)
            # What two clauses do to one column or index is judged in an order of TiDB's own.
            used = {word for text, _ in clauses for word in text.split() if word[-1:].isdigit()}
            if not {"nokey", "nope", "drop", *used} & set(another[0].split()):
                clauses.append(another)
        if (yield Step(0, f"alter table {table.name} {', '.join(text for text, _ in clauses)}")):
            for _, apply in clauses:
                apply(table)

    def _clause(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        choices = (
            self._add_column, self._add_column, self._drop_column, self._modify, self._modify, self._change,
            self._rename_column, self._add_key, self._add_key, self._drop_key, self._rename_key, self._set_default,
            self._add_column, self._drop_key, self._setting,
        )  # fmt: skip
        return self.lot.choice(choices)(table)

    def _place(self, table: Table) -> str:
        if self.lot.random() < 0.7:
            return ""
        return self.lot.choice((" first", f" after {self.lot.choice(table.columns).name}"))

    def _add_column(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        column = self._column()
        if self.lot.random() < 0.03:
            column = Column(self.lot.choice(table.columns).name, column.type)
        exists = "if not exists " if self.lot.random() < 0.1 else ""
        text = f"add column {exists}{column.name} {self._definition(column, added=True)}{self._place(table)}"

        def apply(table: Table) -> None:
            if not any(c.name == column.name for c in table.columns):
                table.columns.append(column)

        return text, apply

    def _drop_column(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        name = self.lot.choice(table.columns).name if self.lot.random() < 0.95 else "nope"
        exists = "if exists " if self.lot.random() < 0.1 else ""

        def apply(table: Table) -> None:
            table.columns = [c for c in table.columns if c.name != name]
            for key, columns in list(table.keys.items()):
                if name in columns:
                    table.keys[key] = tuple(c for c in columns if c != name)

        return f"drop column {exists}{name}", apply

    def _new_type(self, old: ColumnType) -> ColumnType:
        drawn = self.lot.random()
        if drawn < 0.4 and old.kind in INTEGERS:
            return ColumnType(self.lot.choice(sorted(INTEGERS)), is_unsigned=old.is_unsigned ^ (drawn < 0.05))
        if drawn < 0.4 and old.kind in ("char", "varchar"):
            size = self.lot.choice((old.sizes[0], old.sizes[0] + 5, max(1, old.sizes[0] - 3)))
            return ColumnType(self.lot.choice(("char", "varchar")), (size,), collation=old.collation)
        if drawn < 0.6:
            return old
        new = draw_type(self.lot, collation=False)
        is_other = (
            new.kind == "vector"
            or (new.kind == "decimal" and old.is_number and old.kind not in INTEGERS)
            or (new.is_text and old.kind in BYTES)
            or (new.kind in BYTES and old.is_text)
        )
        return old if is_other or (new.is_unsigned and not old.is_unsigned) else new

    def _modify(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        old = self.lot.choice(table.columns)
        new = Column(old.name, self._new_type(old.type), self.lot.random() < 0.2)
        return f"modify column {new.name} {self._definition(new, added=True)}{self._place(table)}", _replacing(old, new)

    def _change(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        old = self.lot.choice(table.columns)
        new = Column(self._fresh("c"), self._new_type(old.type), self.lot.random() < 0.2)
        return f"change column {old.name} {new.name} {self._definition(new, added=True)}", _replacing(old, new)

    def _rename_column(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        old = self.lot.choice(table.columns)
        name = self._fresh("c") if self.lot.random() < 0.95 else self.lot.choice(table.columns).name
        return f"rename column {old.name} to {name}", _replacing(
            old, Column(name, old.type, old.is_not_null, old.is_generated, old.is_auto)
        )

    def _add_key(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        keys = dict(table.keys)
        text = self._key(table)
        added = {name: columns for name, columns in table.keys.items() if name not in keys}
        table.keys = keys
        return f"add {text}", lambda table: table.keys.update(added)

    def _drop_key(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        name = self.lot.choice(sorted(table.keys)) if table.keys and self.lot.random() < 0.95 else "nokey"
        if table.primary and self.lot.random() < 0.05:
            return "drop primary key", lambda _: None

        def apply(table: Table) -> None:
            table.keys.pop(name, None)

        return f"drop index {name}", apply

    def _rename_key(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        name = self.lot.choice(sorted(table.keys)) if table.keys else "nokey"
        new = self._fresh("k")

        def apply(table: Table) -> None:
            if name in table.keys:
                table.keys[new] = table.keys.pop(name)

        return f"rename index {name} to {new}", apply

    def _set_default(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        column = self.lot.choice([c for c in table.columns if not c.is_auto] or table.columns)
        if column.is_auto:
            return "comment = ''", lambda _: None
        if self.lot.random() < 0.3:
            return f"alter column {column.name} drop default", lambda _: None
        value = self._default_value(column.type)
        return f"alter column {column.name} set default {value}", lambda _: None


class _Story(_Alterations):
    def tell(self) -> Talk:
        mode = self.lot.choice(_MODES)
        for client in (0, 1):
            yield Step(client, "set timestamp = 1700000000.123456")
            yield Step(client, f"set time_zone = '{self.lot.choice(('+00:00', '+05:30', '-03:00'))}'")
            if mode:
                yield Step(client, f"set sql_mode = '{mode}'")
        for _ in range(self.lot.randint(1, 3)):
            yield from self._create()
        for _ in range(STATEMENTS):
            if not self.tables:
                yield from self._create()
                continue
            yield from self._one()
        if self.is_open:
            yield Step(0, self.lot.choice(("commit", "rollback")))
        yield from self._look_at_all()

    def _create(self) -> Talk:
        if self.lot.random() < 0.1 and self.tables:
            yield from self._create_like()
            return
        table = Table(self._fresh("t"), [self._column() for _ in range(self.lot.randint(1, 6))])
        parts = [f"{c.name} {self._definition(c)}" for c in table.columns]
        parts += self._primary(table, parts)
        for _ in range(self.lot.choice((0, 0, 1, 1, 2))):
            parts.append(self._key(table))
        options = self.lot.choice(("", "", "", " charset=latin1", " collate=utf8mb4_general_ci", " comment='it''s'"))
        if table.has_auto and self.lot.random() < 0.3:
            options += f" auto_increment={self.lot.choice((5, 100, 1000000))}"
        exists = " if not exists" if self.lot.random() < 0.1 else ""
        if (yield Step(0, f"create table{exists} {table.name} ({', '.join(parts)}){options}")):
            self.tables[table.name] = table

    def _create_like(self) -> Talk:
        source = self._table()
        name = self._fresh("t")
        if (yield Step(0, f"create table {name} like {source.name}")):
            self.tables[name] = Table(
                name, list(source.columns), source.primary, source.is_clustered, dict(source.keys)
            )

    def _transaction(self) -> Talk:
        if not self.is_open:
            self.is_pessimistic = self.lot.random() < 0.5
            how = self.lot.choice(("begin", "start transaction")) if self.lot.random() < 0.2 else "begin"
            if how == "begin":
                how += " pessimistic" if self.is_pessimistic else " optimistic"
            else:
                self.is_pessimistic = True
            yield Step(0, how)
            self.is_open = True
        elif self.lot.random() < 0.2:
            name = self.lot.choice(("s1", "s2"))
            yield Step(0, self.lot.choice((f"savepoint {name}", f"rollback to {name}", f"release savepoint {name}")))
        else:
            yield Step(0, self.lot.choice(("commit", "commit", "rollback")))
            self.is_open = False

    def _other_client(self) -> Talk:
        """The other client writes, too: not where it would have to wait."""
        table = self._table()
        if (self.is_open and self.is_pessimistic) or table.has_auto or not table.is_ordered:
            yield Step(1, self.queries.select(table.name, table.columns, table.primary))
            return
        write = self.lot.choice((self._insert_text, self._update_text, self._delete_text))
        yield Step(1, write(table))

    def _select(self) -> Talk:
        table = self._table()
        other = self._table()
        if self.lot.random() < 0.2:
            text = self.queries.join(table.name, table.columns, other.name, other.columns)
        else:
            text = self.queries.select(table.name, table.columns, table.primary)
        yield Step(0, text)

    def _show(self) -> Talk:
        name = self._table().name
        yield Step(
            0,
            self.lot.choice(
                (
                    f"show create table {name}", f"describe {name}", f"show full columns from {name}",
                    f"show index from {name}", "select last_insert_id()", "show tables", "show warnings",
                    f"admin check table {name}", "show full tables",
                    f"select count(*) from {name}", "select @@autocommit, database()",
                )
            ),
        )  # fmt: skip

    def _look_at_all(self) -> Talk:
        for name in sorted(self.tables):
            yield Step(1, f"select * from {name}")
            yield Step(0, f"show create table {name}")
            yield Step(0, f"admin check table {name}")
            yield Step(1, f"show index from {name}")
        yield Step(0, _COLUMNS)
        yield Step(1, _TABLES)
        yield Step(0, _STATISTICS)

    def _table_ddl(self) -> Talk:
        table = self._table()
        self.is_open = False
        drawn = self.lot.random()
        if drawn < 0.3:
            yield Step(0, f"truncate table {table.name}")
        elif drawn < 0.6:
            name = self._fresh("t")
            if (yield Step(0, f"rename table {table.name} to {name}")):
                del self.tables[table.name]
                table.name = name
                self.tables[name] = table
        elif drawn < 0.9:
            if (yield Step(0, f"drop table {self.lot.choice(('', 'if exists '))}{table.name}")):
                del self.tables[table.name]
        else:
            yield Step(0, self.lot.choice(("drop table nope", "drop table if exists nope", "truncate nope")))

    def _setting(self, table: Table) -> tuple[str, Callable[[Table], None]]:
        texts = ["comment = 'new note'", "comment = ''"]
        if table.keys:
            texts.append(f"alter index {self.lot.choice(sorted(table.keys))} {self.lot.choice(('in', ''))}visible")
        if table.has_auto:
            self.names += 1  # always more than before: less is only warned of
            texts.append(f"auto_increment = {self.names * 1000000}")
        return self.lot.choice(texts), lambda _: None


def _replacing(old: Column, new: Column) -> Callable[[Table], None]:
    def apply(table: Table) -> None:
        table.columns = [new if c.name == old.name else c for c in table.columns]
        if old.name in table.primary:
            table.primary = tuple(new.name if n == old.name else n for n in table.primary)
        for key, columns in table.keys.items():
            table.keys[key] = tuple(new.name if n == old.name else n for n in columns)

    return apply


_COLUMNS = (
    "select table_name, column_name, ordinal_position, column_default, is_nullable, data_type,"
    " character_maximum_length, character_octet_length,"
    " numeric_precision, numeric_scale, datetime_precision, character_set_name, collation_name,"
    " column_type, column_key, extra, column_comment from information_schema.columns where table_schema = database()"
    " order by table_name, ordinal_position"
)
_TABLES = (
    "select table_name, table_type, engine, row_format, table_collation, create_options, table_comment"
    " from information_schema.tables where table_schema = database() order by table_name"
)
_STATISTICS = (
    "select table_name, non_unique, index_name, seq_in_index, column_name, collation, sub_part, nullable, index_type,"
    " index_comment, is_visible, expression from information_schema.statistics where table_schema = database()"
    " order by table_name, index_name, seq_in_index"
)
