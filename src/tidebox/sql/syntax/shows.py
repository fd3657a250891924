"""SHOW and DESCRIBE, from behind their words."""

from tidebox.sql.syntax.queries import QueryParser
from tidebox.sql.syntax.tree import Show, Statement, TableName
from tidemill.tidb.lexer import Kind

_SHOW_TAILS = frozenset({"FROM", "IN", "LIKE", "WHERE", "LIMIT", "FOR"})
_SHOWS_OF_NAMES = frozenset({"CREATE TABLE", "CREATE VIEW", "CREATE DATABASE", "CREATE SCHEMA"})


def show(p: QueryParser) -> Statement:
    scope = ""
    for word in ("GLOBAL", "SESSION", "LOCAL"):
        if p.accept(word):
            scope = word.lower()
    is_full = p.accept("FULL")
    p.accept("EXTENDED")
    start = p.at
    while p.token.kind is Kind.WORD and p.token.upper not in _SHOW_TAILS:
        p.at += 1
        what = " ".join(t.upper for t in p.tokens[start : p.at])
        if what in _SHOWS_OF_NAMES:
            break
    what = " ".join(t.upper for t in p.tokens[start : p.at])
    schema, table = "", None
    if what in ("CREATE TABLE", "CREATE VIEW"):
        table = p.table_name()
    elif what in ("CREATE DATABASE", "CREATE SCHEMA"):
        p.accept("IF", "NOT", "EXISTS")
        schema = p.name()
    elif what in ("COLUMNS", "FIELDS", "INDEX", "INDEXES", "KEYS"):
        if not p.accept("FROM"):
            p.expect("IN")
        table = p.table_name()
        if p.accept("FROM") or p.accept("IN"):
            table = TableName(table.name, p.name())
    elif p.accept("FROM") or p.accept("IN"):
        schema = p.name()
    like = where = None
    if p.accept("LIKE"):
        like = p.string()
    elif p.accept("WHERE"):
        where = p.expression()
    if p.accept("LIMIT"):
        p.expression()
    if what in ("COUNT",) or p.is_sign("("):
        raise p.refuse("SHOW COUNT")
    return Show(what, is_full, schema, table, like, where, scope)


def describe(p: QueryParser) -> Statement:
    if p.is_word("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "ANALYZE", "FORMAT", "EXTENDED"):
        raise p.refuse("EXPLAIN")
    table = p.table_name()
    like = None
    if p.token.kind is Kind.STRING:
        like = p.string()
    elif p.token.kind in (Kind.WORD, Kind.NAME):
        like = p.name()
    return Show("COLUMNS", False, "", table, like)
