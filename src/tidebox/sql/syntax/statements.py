"""Statements: ``parse`` reads one, without its semicolon."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from tidebox.sql.syntax import changes, settings, shows, transactions
from tidebox.sql.syntax.queries import QueryParser
from tidebox.sql.syntax.tree import (
    AdminCheck,
    Deallocate,
    Do,
    Execute,
    Expression,
    Kill,
    Nothing,
    Prepare,
    Statement,
    Use,
)
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.tidb.lexer import Kind


class Parsed(NamedTuple):
    statement: Statement
    parameter_count: int


@lru_cache(maxsize=512)
def parse(text: str) -> Parsed:
    """Raises 1064 where it is no SQL, 1235 where it is outside the subset."""
    parser = QueryParser(text)
    if parser.token.kind is Kind.END:
        raise sql_error(Errno.EMPTY_QUERY)
    statement = _statement(parser)
    parser.end()
    return Parsed(statement, parser.parameter_count)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """An expression alone, as schemas keep them for generated columns and defaults."""
    parser = QueryParser(text)
    found = parser.expression()
    parser.end()
    return found


def _statement(p: QueryParser) -> Statement:
    if p.is_sign("(") or p.is_word("SELECT", "WITH"):
        return p.query()
    word = p.token.upper
    if word in _REFUSED:
        raise p.refuse(_REFUSED[word])
    if word not in _STATEMENTS:
        raise p.error()
    p.at += 1
    return _STATEMENTS[word](p)


def _use(p: QueryParser) -> Statement:
    return Use(p.name())


def _prepare(p: QueryParser) -> Statement:
    name = p.name().lower()
    p.expect("FROM")
    return Prepare(name, p.expression())


def _execute(p: QueryParser) -> Statement:
    name = p.name().lower()
    using: list[str] = []
    if p.accept("USING"):
        while True:
            if p.token.kind is not Kind.USER_VARIABLE:
                raise p.error()
            using.append(p.token.text)
            p.at += 1
            if not p.accept_sign(","):
                break
    return Execute(name, tuple(using))


def _deallocate(p: QueryParser) -> Statement:
    p.expect("PREPARE")
    return Deallocate(p.name().lower())


def _kill(p: QueryParser) -> Statement:
    p.accept("TIDB")
    is_query = p.accept("QUERY")
    if not is_query:
        p.accept("CONNECTION")
    return Kill(p.expression(), is_query)


def _do(p: QueryParser) -> Statement:
    return Do(p.expressions())


def _nothing(p: QueryParser) -> Statement:
    what = p.tokens[p.at - 1].upper
    p.at = len(p.tokens) - 1
    return Nothing(what)


def _lock(p: QueryParser) -> Statement:
    if not (p.accept("TABLES") or p.accept("TABLE")):
        raise p.refuse("LOCK")
    return _nothing(p)


def _admin(p: QueryParser) -> Statement:
    if not p.accept("CHECK", "TABLE"):
        raise p.refuse(f"ADMIN {p.token.upper}")
    tables = [p.table_name()]
    while p.accept_sign(","):
        tables.append(p.table_name())
    return AdminCheck(tuple(tables))


_STATEMENTS: Final[dict[str, Callable[[QueryParser], Statement]]] = {
    "INSERT": changes.insert,
    "REPLACE": changes.replace,
    "UPDATE": changes.update,
    "DELETE": changes.delete,
    "BEGIN": transactions.begin,
    "START": transactions.start,
    "COMMIT": transactions.commit,
    "ROLLBACK": transactions.rollback,
    "SAVEPOINT": transactions.savepoint,
    "RELEASE": transactions.release,
    "SET": settings.set_,
    "USE": _use,
    "SHOW": shows.show,
    "DESCRIBE": shows.describe,
    "DESC": shows.describe,
    "EXPLAIN": shows.describe,
    "PREPARE": _prepare,
    "EXECUTE": _execute,
    "DEALLOCATE": _deallocate,
    "KILL": _kill,
    "DO": _do,
    "FLUSH": _nothing,
    "ANALYZE": _nothing,
    "UNLOCK": _nothing,
    "LOCK": _lock,
    "ADMIN": _admin,
}
# Statements that exist and that this is not for.
_REFUSED: Final = {
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
