"""Which statement it is: DDL goes to our grammar, queries and DML to sqlglot, and the rest to the session."""

from typing import Any

from tidemill.store.sql.parse.cursor import Cursor
from tidemill.store.sql.parse.lexer import Kind, syntax_error, tokenize
from tidemill.store.sql.parse.statements import (
    Begin,
    CancelJobs,
    Commit,
    Dml,
    Other,
    Query,
    Rollback,
    ShowJobs,
    Statement,
    Use,
)
from tidemill.store.sql.parse.tables import parse_alter, parse_create, parse_drop, parse_rename, parse_truncate
from tidemill.store.sql.wire.errors import Errno, sql_error

_DDL = {
    "CREATE": parse_create,
    "DROP": parse_drop,
    "ALTER": parse_alter,
    "TRUNCATE": parse_truncate,
    "RENAME": parse_rename,
}
_QUERIES = frozenset({"SELECT", "WITH", "TABLE", "VALUES", "("})
_DML = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
_SESSION = frozenset(
    {"SET", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "ANALYZE", "PREPARE", "EXECUTE", "DEALLOCATE", "KILL", "FLUSH", "DO",
     "SAVEPOINT", "LOCK", "UNLOCK", "RELEASE"}
)  # fmt: skip
_OUTSIDE = {
    "GRANT": "GRANT", "REVOKE": "REVOKE", "CALL": "CALL", "LOAD": "LOAD DATA", "RECOVER": "RECOVER TABLE",
    "FLASHBACK": "FLASHBACK", "BACKUP": "BACKUP", "RESTORE": "RESTORE", "IMPORT": "IMPORT INTO", "SPLIT": "SPLIT",
    "HANDLER": "HANDLER", "XA": "XA", "OPTIMIZE": "OPTIMIZE TABLE", "REPAIR": "REPAIR TABLE", "CHECK": "CHECK TABLE",
    "CHECKSUM": "CHECKSUM TABLE", "INSTALL": "INSTALL", "BINLOG": "BINLOG", "TRACE": "TRACE", "BATCH": "BATCH",
    "DECLARE": "DECLARE", "CHANGE": "CHANGE", "PURGE": "PURGE", "SHUTDOWN": "SHUTDOWN", "RESTART": "RESTART",
    "PLAN": "PLAN REPLAYER", "CALIBRATE": "CALIBRATE", "QUERY": "QUERY WATCH", "CANCEL": "CANCEL",
}  # fmt: skip


def split(sql: str) -> list[str]:
    """The statements between semicolons, without those that hold nothing."""
    found: list[str] = []
    start = 0
    is_empty = True
    for token in tokenize(sql):
        if token.kind is Kind.END or (token.kind is Kind.SIGN and token.text == ";"):
            if not is_empty:
                found.append(sql[start : token.start].strip())
            start, is_empty = token.end, True
        else:
            is_empty = False
    return found


def parse(sql: str) -> Statement:
    """One statement. 1064 with its place if it cannot be read, 1235 with its name if it is not served."""
    cursor = Cursor(sql, tokenize(sql))
    while len(cursor.tokens) > 1 and cursor.tokens[-2].text == ";" and cursor.tokens[-2].kind is Kind.SIGN:
        del cursor.tokens[-2]
    first = cursor.token
    if first.kind is Kind.END:
        raise sql_error(Errno.EMPTY_QUERY)
    word = first.upper or first.text
    if word in _DDL:
        statement: Statement = _DDL[word](cursor)
        cursor.end()
        return statement
    if word in _QUERIES:
        return Query(sql, _by_sqlglot(sql))
    if word in _DML:
        return Dml(word, sql, _by_sqlglot(sql))
    if word in _OUTSIDE:
        raise cursor.refuse(_OUTSIDE[word])
    return _of_session(cursor, word)


def _of_session(cursor: Cursor, word: str) -> Statement:
    match word:
        case "BEGIN":
            cursor.take()
            kind = cursor.one_of("PESSIMISTIC", "OPTIMISTIC")
            cursor.end()
            return Begin(None if kind is None else kind == "PESSIMISTIC")
        case "START":
            return _start(cursor)
        case "COMMIT" | "ROLLBACK":
            if word == "ROLLBACK" and cursor.ahead().upper == "TO":
                return Other(word, cursor.sql)
            cursor.take()
            cursor.accept("WORK")
            if cursor.is_word("AND", "RELEASE", "NO"):
                raise cursor.refuse(f"{word} {cursor.token.upper}")
            cursor.end()
            return Commit() if word == "COMMIT" else Rollback()
        case "USE":
            cursor.take()
            schema = cursor.name()
            cursor.end()
            return Use(schema)
        case "ADMIN":
            return _admin(cursor)
    if word in _SESSION:
        return Other(word, cursor.sql)
    raise cursor.error()


def _start(cursor: Cursor) -> Begin:
    cursor.expect("START", "TRANSACTION")
    if cursor.are_words("WITH", "CONSISTENT", "SNAPSHOT"):
        cursor.at += 3
    elif cursor.accept("READ", "WRITE"):
        pass
    elif cursor.is_word("READ", "WITH"):
        raise cursor.refuse(f"START TRANSACTION {cursor.token.upper} {cursor.ahead().upper}")
    cursor.end()
    return Begin(None)


def _admin(cursor: Cursor) -> Statement:
    cursor.take()
    if cursor.accept("CANCEL", "DDL", "JOBS"):
        ids = [cursor.integer()]
        while cursor.accept_sign(","):
            ids.append(cursor.integer())
        cursor.end()
        return CancelJobs(tuple(ids))
    if cursor.accept("SHOW", "DDL", "JOBS"):
        limit = cursor.integer() if cursor.token.kind is Kind.INTEGER else None
        cursor.end()
        return ShowJobs(limit)
    if cursor.is_word("CHECK"):
        return Other("ADMIN", cursor.sql)
    raise cursor.refuse(f"ADMIN {cursor.token.upper}")


def _by_sqlglot(sql: str) -> Any:  # sqlglot's expression; its module is only imported when it is needed
    import sqlglot
    from sqlglot.errors import ParseError, TokenError

    try:
        return sqlglot.parse_one(sql, dialect="mysql")
    except ParseError as error:
        place = error.errors[0] if error.errors else {}
        at = sql.find(str(place.get("highlight") or "")) if place.get("highlight") else len(sql)
        raise syntax_error(sql, max(at, 0)) from error
    except TokenError as error:
        raise syntax_error(sql, 0) from error
