"""Statements: ``parse`` reads one, without its semicolon."""

from functools import lru_cache
from typing import NamedTuple

from tidebox.sql.syntax.expressions import ExpressionParser
from tidebox.sql.syntax.tokens import Kind
from tidebox.sql.syntax.tree import (
    AdminCheck,
    Assignment,
    Begin,
    Deallocate,
    Delete,
    Derived,
    Do,
    End,
    Ending,
    Execute,
    Expression,
    Insert,
    Item,
    Join,
    Kill,
    Limit,
    Literal,
    Locking,
    Name,
    Nothing,
    Ordering,
    Prepare,
    Query,
    Row,
    Savepoint,
    Select,
    Set,
    SetNames,
    SetVariable,
    Show,
    Source,
    Star,
    Statement,
    TableName,
    TableSource,
    Union,
    Update,
    Use,
    With,
)
from tidebox.sql.wire.errors import Errno, sql_error


class Parsed(NamedTuple):
    statement: Statement
    parameter_count: int


@lru_cache(maxsize=512)
def parse(text: str) -> Parsed:
    """Raises 1064 where it is no SQL, 1235 where it is outside the subset."""
    parser = StatementParser(text)
    if parser.token.kind is Kind.END:
        raise sql_error(Errno.EMPTY_QUERY)
    statement = parser.statement()
    parser.expect_end()
    return Parsed(statement, parser.parameter_count)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """An expression alone, as schemas keep them for generated columns and defaults."""
    parser = StatementParser(text)
    found = parser.expression()
    parser.expect_end()
    return found


_CLAUSES = frozenset(
    [
        "WHERE",
        "GROUP",
        "HAVING",
        "ORDER",
        "LIMIT",
        "UNION",
        "ON",
        "USING",
        "SET",
        "JOIN",
        "INNER",
        "LEFT",
        "RIGHT",
        "CROSS",
        "NATURAL",
        "STRAIGHT_JOIN",
        "FOR",
        "LOCK",
        "AS",
        "USE",
        "FORCE",
        "IGNORE",
        "PARTITION",
        "VALUES",
        "WINDOW",
        "INTO",
        "EXCEPT",
        "INTERSECT",
        "TABLESAMPLE",
    ]
)


class StatementParser(ExpressionParser):
    def statement(self) -> Statement:
        token = self.token
        if token.kind is Kind.OPERATOR and token.value == "(":
            return self.query()
        name = token.upper.lower() if token.kind is Kind.WORD else ""
        read = getattr(self, f"_{name}_statement", None)
        if read is None:
            if token.kind is Kind.WORD and token.upper in _REFUSED:
                raise self.refuse(_REFUSED[token.upper])
            raise self.error()
        self.at += 1
        found: Statement = read()
        return found

    # Queries

    def _select_statement(self) -> Statement:
        self.at -= 1
        return self.query()

    _with_statement = _select_statement

    def query(self) -> Query:
        if self.is_word("WITH"):
            return self._with()
        parts: list[Query] = [self._query_term()]
        is_all: bool | None = None
        while self.is_word("UNION", "EXCEPT", "INTERSECT"):
            if not self.take_word("UNION"):
                raise self.refuse(self.token.upper)
            every = self.take_word("ALL")
            if not every:
                self.take_word("DISTINCT")
            if is_all is not None and every != is_all:
                raise self.refuse("UNION and UNION ALL in one query")
            is_all = every
            parts.append(self._query_term())
        if is_all is None:
            return parts[0]
        last = parts[-1]
        order_by, limit = self._order_by(), self._limit()
        if isinstance(last, Select) and (last.order_by or last.limit) and not self._was_parenthesis:
            # Written behind the last part, they belong to the whole.
            order_by, limit = last.order_by, last.limit
            parts[-1] = _without_tail(last)
        return Union(tuple(parts), bool(is_all), order_by, limit)

    def _query_term(self) -> Query:
        self._was_parenthesis = self.is_operator("(")
        if self.take_operator("("):
            found = self.query()
            self.expect_operator(")")
            self._was_parenthesis = True
            if isinstance(found, Select) and not found.order_by and found.limit is None:
                order_by, limit = self._order_by(), self._limit()
                if order_by or limit:
                    return Union((found,), True, order_by, limit)
            return found
        self.expect_word("SELECT")
        found = self._select()
        self._was_parenthesis = False
        return found

    def _with(self) -> With:
        self.at += 1
        if self.is_word("RECURSIVE"):
            raise self.refuse("recursive common table expressions")
        tables = []
        while True:
            name = self.identifier()
            columns = self._name_list() if self.is_operator("(") else ()
            self.expect_word("AS")
            self.expect_operator("(")
            tables.append((name, columns, self.query()))
            self.expect_operator(")")
            if not self.take_operator(","):
                break
        return With(tuple(tables), self.query())

    def _select(self) -> Select:
        is_distinct = False
        while self.token.kind is Kind.WORD and self.token.upper in _SELECT_OPTIONS:
            is_distinct = is_distinct or self.token.upper in ("DISTINCT", "DISTINCTROW")
            self.at += 1
        items = [self._item()]
        while self.take_operator(","):
            items.append(self._item())
        if self.is_word("INTO"):
            raise self.refuse("SELECT INTO")
        source = where = having = None
        group_by: tuple[Expression, ...] = ()
        if self.take_word("FROM") and not self.take_word("DUAL"):
            source = self._sources()
        if self.take_word("WHERE"):
            where = self.expression()
        if self.take_word("GROUP", "BY"):
            group_by = tuple(ordering.by for ordering in self.orderings())
            if self.is_word("WITH"):
                raise self.refuse("WITH ROLLUP")
        if self.take_word("HAVING"):
            having = self.expression()
        if self.is_word("WINDOW"):
            raise self.refuse("window functions")
        order_by, limit = self._order_by(), self._limit()
        locking, is_nowait = self._locking()
        if self.is_word("INTO"):
            raise self.refuse("SELECT INTO")
        return Select(tuple(items), source, where, group_by, having, order_by, limit, is_distinct, locking, is_nowait)

    def _locking(self) -> tuple[Locking, bool]:
        if self.take_word("LOCK", "IN", "SHARE", "MODE"):
            return Locking.SHARE, False
        if not self.take_word("FOR"):
            return Locking.NONE, False
        locking = Locking.SHARE if self.take_word("SHARE") else Locking.UPDATE
        if locking is Locking.UPDATE:
            self.expect_word("UPDATE")
        if self.take_word("OF"):
            self._table_name()
        if self.is_word("SKIP", "WAIT"):
            raise self.refuse(f"FOR UPDATE {self.token.upper}")
        return locking, self.take_word("NOWAIT")

    def _order_by(self) -> tuple[Ordering, ...]:
        return self.orderings() if self.take_word("ORDER", "BY") else ()

    def _limit(self) -> Limit | None:
        if not self.take_word("LIMIT"):
            return None
        first = self._limit_number()
        if self.take_operator(","):
            return Limit(self._limit_number(), first)
        if self.take_word("OFFSET"):
            return Limit(first, self._limit_number())
        return Limit(first)

    def _limit_number(self) -> Expression:
        if self.token.kind is Kind.PARAMETER:
            return self.expression()
        return Literal(self.integer())

    def _item(self) -> Item:
        start = self.token.start
        value = self.expression()
        text = self.text[start : self.tokens[self.at - 1].end]
        if isinstance(value, Star):
            return Item(value, text)
        return Item(value, text, self._alias(has_strings=True))

    def _alias(self, *, has_strings: bool = False) -> str:
        is_explicit = self.take_word("AS")
        token = self.token
        if token.kind is Kind.STRING and has_strings:
            return self.string()
        if token.kind is Kind.QUOTED or is_explicit:
            return self.any_identifier()
        if token.kind is Kind.WORD and token.upper not in _CLAUSES:
            try:
                return self.identifier()
            except Exception:
                return ""
        return ""

    # Tables

    def _table_name(self) -> TableName:
        first = self.identifier()
        if self.take_operator("."):
            return TableName(self.any_identifier(), first)
        return TableName(first)

    def _sources(self) -> Source:
        left = self._joined()
        while self.take_operator(","):
            left = Join("INNER", left, self._joined())
        return left

    def _joined(self) -> Source:
        left = self._one_source()
        while True:
            is_natural = self.take_word("NATURAL")
            if self.take_word("LEFT") or self.take_word("RIGHT"):
                kind = self.tokens[self.at - 1].upper
                self.take_word("OUTER")
                self.expect_word("JOIN")
            elif (
                self.take_word("INNER", "JOIN")
                or self.take_word("CROSS", "JOIN")
                or self.take_word("JOIN")
                or self.take_word("STRAIGHT_JOIN")
            ):
                kind = "INNER"
            else:
                if is_natural:
                    raise self.error()
                return left
            right = self._one_source()
            on: Expression | None = None
            using: tuple[str, ...] = ()
            if self.take_word("ON"):
                on = self.expression()
            elif self.take_word("USING"):
                using = self._name_list()
            left = Join(kind, left, right, on, using, is_natural)

    def _one_source(self) -> Source:
        if self.take_operator("("):
            if self.is_word("SELECT", "WITH") or self.is_operator("("):
                query = self.query()
                self.expect_operator(")")
                alias = self._alias()
                if not alias:
                    raise sql_error(Errno.DERIVED_MUST_HAVE_ALIAS)
                columns = self._name_list() if self.is_operator("(") else ()
                return Derived(query, alias, columns)
            source = self._sources()
            self.expect_operator(")")
            return source
        return self._table_source()

    def _table_source(self) -> TableSource:
        table = self._table_name()
        if self.is_word("PARTITION") and self.peek().value == "(":
            raise self.refuse("PARTITION")
        as_of = None
        if self.is_word("AS") and self.peek().upper == "OF":
            as_of = self._as_of()
        alias = self._alias()
        if self.is_word("AS") and self.peek().upper == "OF":
            as_of = self._as_of()
        while self.is_word("USE", "FORCE", "IGNORE") and self.peek().upper in ("INDEX", "KEY"):
            self.at += 2
            if self.take_word("FOR"):
                self.at += 2 if self.is_word("ORDER", "GROUP") else 1
            self._skip_parenthesis()
        return TableSource(table, alias, as_of)

    def _as_of(self) -> Expression:
        self.expect_word("AS", "OF", "TIMESTAMP")
        return self.expression()

    def _skip_parenthesis(self) -> None:
        self.expect_operator("(")
        while not self.take_operator(")"):
            if self.token.kind is Kind.END:
                raise self.error()
            self.at += 1

    def _name_list(self) -> tuple[str, ...]:
        self.expect_operator("(")
        if self.take_operator(")"):
            return ()
        names = [self.any_identifier()]
        while self.take_operator(","):
            names.append(self.any_identifier())
        self.expect_operator(")")
        return tuple(names)

    # Changes

    def _insert_statement(self, *, is_replace: bool = False) -> Statement:
        self.take_word("LOW_PRIORITY") or self.take_word("HIGH_PRIORITY") or self.take_word("DELAYED")
        is_ignore = self.take_word("IGNORE")
        self.take_word("INTO")
        table = self._table_name()
        if self.is_word("PARTITION"):
            raise self.refuse("PARTITION")
        columns: tuple[str, ...] | None = None
        rows: tuple[tuple[Expression, ...], ...] = ()
        query: Query | None = None
        if self.is_operator("(") and self.peek().upper not in ("SELECT", "WITH"):
            columns = self._column_list()
        if self.take_word("SET"):
            assignments = self._assignments()
            columns = tuple(a.column.column for a in assignments)
            rows = (tuple(a.value for a in assignments),)
        elif self.take_word("VALUES") or self.take_word("VALUE"):
            rows = self._rows()
        else:
            query = self.query()
        alias = self.identifier() if self.take_word("AS") else ""
        on_duplicate: tuple[Assignment, ...] = ()
        if self.take_word("ON", "DUPLICATE", "KEY", "UPDATE"):
            if is_replace:
                raise self.error()
            on_duplicate = self._assignments()
        return Insert(table, columns, rows, query, is_ignore, is_replace, on_duplicate, alias)

    def _replace_statement(self) -> Statement:
        return self._insert_statement(is_replace=True)

    def _column_list(self) -> tuple[str, ...]:
        self.expect_operator("(")
        names: list[str] = []
        while not self.take_operator(")"):
            if names:
                self.expect_operator(",")
            names.append(self._plain_name().column)
        return tuple(names)

    def _rows(self) -> tuple[tuple[Expression, ...], ...]:
        rows = []
        while True:
            self.take_word("ROW")
            self.expect_operator("(")
            values: tuple[Expression, ...] = () if self.is_operator(")") else self.expressions()
            self.expect_operator(")")
            rows.append(values)
            if not self.take_operator(","):
                return tuple(rows)

    def _assignments(self) -> tuple[Assignment, ...]:
        found = []
        while True:
            name = self._plain_name()
            if not self.take_operator("="):
                self.expect_operator(":=")
            found.append(Assignment(name, self.expression()))
            if not self.take_operator(","):
                return tuple(found)

    def _update_statement(self) -> Statement:
        self.take_word("LOW_PRIORITY")
        is_ignore = self.take_word("IGNORE")
        source = self._table_source()
        if not self.is_word("SET"):
            if self.is_operator(",") or self.is_word("JOIN", "INNER", "LEFT", "RIGHT", "CROSS"):
                raise self.refuse("UPDATE of several tables")
            raise self.error()
        self.at += 1
        assignments = self._assignments()
        where = self.expression() if self.take_word("WHERE") else None
        return Update(source, assignments, where, self._order_by(), self._limit(), is_ignore)

    def _delete_statement(self) -> Statement:
        self.take_word("LOW_PRIORITY")
        self.take_word("QUICK")
        if self.take_word("IGNORE"):
            raise self.refuse("DELETE IGNORE")
        if not self.take_word("FROM"):
            raise self.refuse("DELETE of several tables")
        source = self._table_source()
        if self.is_operator(",") or self.is_word("USING", "JOIN", "INNER", "LEFT", "RIGHT", "CROSS"):
            raise self.refuse("DELETE of several tables")
        where = self.expression() if self.take_word("WHERE") else None
        return Delete(source, where, self._order_by(), self._limit())

    # Transactions

    def _begin_statement(self) -> Statement:
        for mode in ("PESSIMISTIC", "OPTIMISTIC"):
            if self.take_word(mode):
                return Begin(mode.lower())
        self.take_word("WORK")
        return Begin()

    def _start_statement(self) -> Statement:
        self.expect_word("TRANSACTION")
        mode, is_read_only, as_of = "", False, None
        while self.token.kind is Kind.WORD:
            if self.take_word("READ", "ONLY"):
                is_read_only = True
                if self.is_word("AS"):
                    as_of = self._as_of()
            elif self.take_word("READ", "WRITE") or self.take_word("WITH", "CONSISTENT", "SNAPSHOT"):
                pass
            elif self.take_word("PESSIMISTIC"):
                mode = "pessimistic"
            elif self.take_word("OPTIMISTIC"):
                mode = "optimistic"
            else:
                raise self.error()
            self.take_operator(",")
        return Begin(mode, is_read_only, as_of)

    def _commit_statement(self) -> Statement:
        self.take_word("WORK")
        return End(Ending.COMMIT)

    def _rollback_statement(self) -> Statement:
        self.take_word("WORK")
        if self.take_word("TO"):
            self.take_word("SAVEPOINT")
            return Savepoint(self.identifier().lower(), "rollback")
        return End(Ending.ROLLBACK)

    def _savepoint_statement(self) -> Statement:
        return Savepoint(self.identifier().lower())

    def _release_statement(self) -> Statement:
        self.expect_word("SAVEPOINT")
        return Savepoint(self.identifier().lower(), "release")

    # Settings

    def _set_statement(self) -> Statement:
        if self.take_word("NAMES"):
            charset = "default" if self.take_word("DEFAULT") else self._word_or_string()
            collation = self._word_or_string() if self.take_word("COLLATE") else ""
            return SetNames(charset, collation)
        if self.take_word("CHARACTER", "SET") or self.take_word("CHARSET"):
            return SetNames("default" if self.take_word("DEFAULT") else self._word_or_string())
        if self.is_word("PASSWORD", "ROLE", "CONFIG"):
            raise self.refuse(f"SET {self.token.upper}")
        found: list[SetVariable] = []
        while True:
            found += self._set_one()
            if not self.take_operator(","):
                return Set(tuple(found))

    def _word_or_string(self) -> str:
        return self.string() if self.token.kind is Kind.STRING else self.any_identifier()

    def _set_one(self) -> list[SetVariable]:
        token = self.token
        if token.kind is Kind.USER_VARIABLE:
            self.at += 1
            self._equals()
            return [SetVariable("user", str(token.value), self.expression())]
        if token.kind is Kind.SYSTEM_VARIABLE:
            self.at += 1
            scope, _, name = str(token.value).rpartition(".")
            scope = {"": "session", "local": "session"}.get(scope, scope)
            self._equals()
            return [SetVariable(scope, name, self._setting())]
        scope = "session"
        if self.take_word("GLOBAL"):
            scope = "global"
        elif self.take_word("SESSION") or self.take_word("LOCAL"):
            scope = "session"
        elif self.is_word("TRANSACTION"):
            scope = "transaction"
        if self.take_word("TRANSACTION"):
            return self._set_transaction(scope)
        name = self.any_identifier().lower()
        if self.take_operator("."):
            name = f"{name}.{self.any_identifier().lower()}"
        self._equals()
        return [SetVariable(scope, name, self._setting())]

    def _set_transaction(self, scope: str) -> list[SetVariable]:
        found = []
        while True:
            if self.take_word("ISOLATION", "LEVEL"):
                level = self.any_identifier().upper()
                if level in ("READ", "REPEATABLE"):
                    level += f"-{self.any_identifier().upper()}"
                found.append(SetVariable(scope, "transaction_isolation", Literal(level)))
            else:
                self.expect_word("READ")
                value = 1 if self.take_word("ONLY") else 0
                if not value:
                    self.expect_word("WRITE")
                found.append(SetVariable(scope, "transaction_read_only", Literal(value)))
            if not self.take_operator(","):
                return found

    def _equals(self) -> None:
        if not self.take_operator("=") and not self.take_operator(":="):
            raise self.error()

    def _setting(self) -> Expression:
        """A value; a bare word such as ``ON`` or ``utf8mb4`` stands for itself."""
        token = self.token
        if token.kind is Kind.WORD and self.peek().value in ("", ",", ";"):
            if token.upper in ("NULL", "TRUE", "FALSE", "DEFAULT"):
                return self.expression()
            self.at += 1
            return Literal(str(token.value))
        return self.expression()

    def _use_statement(self) -> Statement:
        return Use(self.identifier())

    # Looking

    def _show_statement(self) -> Statement:
        scope = ""
        for word in ("GLOBAL", "SESSION", "LOCAL"):
            if self.take_word(word):
                scope = word.lower()
        is_full = self.take_word("FULL")
        self.take_word("EXTENDED")
        start = self.at
        while self.token.kind is Kind.WORD and self.token.upper not in _SHOW_TAILS:
            self.at += 1
            what = " ".join(t.upper for t in self.tokens[start : self.at])
            if what in _SHOWS_OF_NAMES:
                break
        what = " ".join(t.upper for t in self.tokens[start : self.at])
        schema, table = "", None
        if what in ("CREATE TABLE", "CREATE VIEW"):
            table = self._table_name()
        elif what in ("CREATE DATABASE", "CREATE SCHEMA"):
            self.take_word("IF", "NOT", "EXISTS")
            schema = self.identifier()
        elif what in ("COLUMNS", "FIELDS", "INDEX", "INDEXES", "KEYS"):
            if not self.take_word("FROM"):
                self.expect_word("IN")
            table = self._table_name()
            if self.take_word("FROM") or self.take_word("IN"):
                table = TableName(table.name, self.identifier())
        elif self.take_word("FROM") or self.take_word("IN"):
            schema = self.identifier()
        like = where = None
        if self.take_word("LIKE"):
            like = self.string()
        elif self.take_word("WHERE"):
            where = self.expression()
        if self.take_word("LIMIT"):
            self.expression()
        if what in ("COUNT",) or self.is_operator("("):
            raise self.refuse("SHOW COUNT")
        return Show(what, is_full, schema, table, like, where, scope)

    def _describe_statement(self) -> Statement:
        if self.is_word("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "ANALYZE", "FORMAT", "EXTENDED"):
            raise self.refuse("EXPLAIN")
        table = self._table_name()
        like = None
        if self.token.kind is Kind.STRING:
            like = self.string()
        elif self.token.kind in (Kind.WORD, Kind.QUOTED):
            like = self.identifier()
        return Show("COLUMNS", False, "", table, like)

    _desc_statement = _explain_statement = _describe_statement

    # Prepared statements and the rest

    def _prepare_statement(self) -> Statement:
        name = self.identifier().lower()
        self.expect_word("FROM")
        return Prepare(name, self.expression())

    def _execute_statement(self) -> Statement:
        name = self.identifier().lower()
        using: list[str] = []
        if self.take_word("USING"):
            while True:
                if self.token.kind is not Kind.USER_VARIABLE:
                    raise self.error()
                using.append(str(self.token.value))
                self.at += 1
                if not self.take_operator(","):
                    break
        return Execute(name, tuple(using))

    def _deallocate_statement(self) -> Statement:
        self.expect_word("PREPARE")
        return Deallocate(self.identifier().lower())

    def _kill_statement(self) -> Statement:
        self.take_word("TIDB")
        is_query = self.take_word("QUERY")
        if not is_query:
            self.take_word("CONNECTION")
        return Kill(self.expression(), is_query)

    def _do_statement(self) -> Statement:
        return Do(self.expressions())

    def _nothing(self) -> Statement:
        what = self.tokens[self.at - 1].upper
        self.at = len(self.tokens) - 1
        return Nothing(what)

    _flush_statement = _analyze_statement = _unlock_statement = _nothing

    def _lock_statement(self) -> Statement:
        if not (self.take_word("TABLES") or self.take_word("TABLE")):
            raise self.refuse("LOCK")
        return self._nothing()

    def _admin_statement(self) -> Statement:
        if not self.take_word("CHECK", "TABLE"):
            raise self.refuse(f"ADMIN {self.token.upper}")
        tables = [self._table_name()]
        while self.take_operator(","):
            tables.append(self._table_name())
        return AdminCheck(tuple(tables))


def _without_tail(select: Select) -> Select:
    return Select(
        select.items,
        select.source,
        select.where,
        select.group_by,
        select.having,
        (),
        None,
        select.is_distinct,
        select.locking,
        select.is_nowait,
    )


_SELECT_OPTIONS = frozenset(
    [
        "ALL",
        "DISTINCT",
        "DISTINCTROW",
        "HIGH_PRIORITY",
        "STRAIGHT_JOIN",
        "SQL_SMALL_RESULT",
        "SQL_BIG_RESULT",
        "SQL_BUFFER_RESULT",
        "SQL_CACHE",
        "SQL_NO_CACHE",
        "SQL_CALC_FOUND_ROWS",
    ]
)
_SHOW_TAILS = frozenset({"FROM", "IN", "LIKE", "WHERE", "LIMIT", "FOR"})
_SHOWS_OF_NAMES = frozenset({"CREATE TABLE", "CREATE VIEW", "CREATE DATABASE", "CREATE SCHEMA"})
# Statements that exist and that this is not for.
_REFUSED = {
    "CALL": "stored procedures",
    "GRANT": "users and privileges",
    "REVOKE": "users and privileges",
    "LOAD": "LOAD DATA",
    "HANDLER": "HANDLER",
    "IMPORT": "IMPORT INTO",
    "BACKUP": "BACKUP",
    "RESTORE": "RESTORE",
    "CHECKSUM": "CHECKSUM TABLE",
    "OPTIMIZE": "OPTIMIZE TABLE",
    "REPAIR": "REPAIR TABLE",
    "CHECK": "CHECK TABLE",
    "SPLIT": "SPLIT TABLE",
    "TRACE": "TRACE",
    "XA": "XA transactions",
    "BATCH": "BATCH",
    "SHUTDOWN": "SHUTDOWN",
    "TABLE": "TABLE",
    "VALUES": "VALUES",
    "PLAN": "PLAN REPLAYER",
    "RECOVER": "RECOVER TABLE",
    "FLASHBACK": "FLASHBACK",
}
__all__ = ["Name", "Parsed", "Row", "StatementParser", "parse", "parse_expression"]
