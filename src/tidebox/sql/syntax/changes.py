"""INSERT, REPLACE, UPDATE and DELETE, from behind their first word."""

from tidebox.sql.syntax.queries import QueryParser
from tidebox.sql.syntax.tree import Assignment, Delete, Expression, Insert, Query, Statement, Update


def insert(p: QueryParser, *, is_replace: bool = False) -> Statement:
    p.accept("LOW_PRIORITY") or p.accept("HIGH_PRIORITY") or p.accept("DELAYED")
    is_ignore = p.accept("IGNORE")
    p.accept("INTO")
    table = p.table_name()
    if p.is_word("PARTITION"):
        raise p.refuse("PARTITION")
    columns: tuple[str, ...] | None = None
    rows: tuple[tuple[Expression, ...], ...] = ()
    query: Query | None = None
    if p.is_sign("(") and p.ahead().upper not in ("SELECT", "WITH"):
        columns = _column_list(p)
    if p.accept("SET"):
        assignments = _assignments(p)
        columns = tuple(a.column.column for a in assignments)
        rows = (tuple(a.value for a in assignments),)
    elif p.accept("VALUES") or p.accept("VALUE"):
        rows = _rows(p)
    else:
        query = p.query()
    alias = p.name() if p.accept("AS") else ""
    on_duplicate: tuple[Assignment, ...] = ()
    if p.accept("ON", "DUPLICATE", "KEY", "UPDATE"):
        if is_replace:
            raise p.error()
        on_duplicate = _assignments(p)
    return Insert(table, columns, rows, query, is_ignore, is_replace, on_duplicate, alias)


def replace(p: QueryParser) -> Statement:
    return insert(p, is_replace=True)


def _column_list(p: QueryParser) -> tuple[str, ...]:
    p.expect_sign("(")
    names: list[str] = []
    while not p.accept_sign(")"):
        if names:
            p.expect_sign(",")
        names.append(p.plain_name().column)
    return tuple(names)


def _rows(p: QueryParser) -> tuple[tuple[Expression, ...], ...]:
    rows = []
    while True:
        p.accept("ROW")
        p.expect_sign("(")
        values: tuple[Expression, ...] = () if p.is_sign(")") else p.expressions()
        p.expect_sign(")")
        rows.append(values)
        if not p.accept_sign(","):
            return tuple(rows)


def _assignments(p: QueryParser) -> tuple[Assignment, ...]:
    found = []
    while True:
        name = p.plain_name()
        if not p.accept_sign("="):
            p.expect_sign(":=")
        found.append(Assignment(name, p.expression()))
        if not p.accept_sign(","):
            return tuple(found)


def update(p: QueryParser) -> Statement:
    p.accept("LOW_PRIORITY")
    is_ignore = p.accept("IGNORE")
    source = p.table_source()
    if not p.is_word("SET"):
        if p.is_sign(",") or p.is_word("JOIN", "INNER", "LEFT", "RIGHT", "CROSS"):
            raise p.refuse("UPDATE of several tables")
        raise p.error()
    p.at += 1
    assignments = _assignments(p)
    where = p.expression() if p.accept("WHERE") else None
    return Update(source, assignments, where, p.order_by(), p.limit(), is_ignore)


def delete(p: QueryParser) -> Statement:
    p.accept("LOW_PRIORITY")
    p.accept("QUICK")
    if p.accept("IGNORE"):
        raise p.refuse("DELETE IGNORE")
    if not p.accept("FROM"):
        raise p.refuse("DELETE of several tables")
    source = p.table_source()
    if p.is_sign(",") or p.is_word("USING", "JOIN", "INNER", "LEFT", "RIGHT", "CROSS"):
        raise p.refuse("DELETE of several tables")
    where = p.expression() if p.accept("WHERE") else None
    return Delete(source, where, p.order_by(), p.limit())
