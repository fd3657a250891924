"""Which statement it is: each kind goes to its own grammar."""

from tidebox.sql.parse.cursor import Cursor
from tidebox.sql.parse.statements import CancelJobs, ShowJobs, Statement
from tidebox.sql.parse.tables import parse_alter, parse_create, parse_drop, parse_rename, parse_truncate
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.tidb.lexer import Kind

_KINDS = {
    "CREATE": parse_create,
    "DROP": parse_drop,
    "ALTER": parse_alter,
    "TRUNCATE": parse_truncate,
    "RENAME": parse_rename,
}


def parse(sql: str) -> Statement:
    """One statement. 1064 with its place if it cannot be read, 1235 with its name if it is not served."""
    cursor = Cursor(sql)
    while len(cursor.tokens) > 1 and cursor.tokens[-2].text == ";" and cursor.tokens[-2].kind is Kind.OPERATOR:
        del cursor.tokens[-2]
    if cursor.token.kind is Kind.END:
        raise sql_error(Errno.EMPTY_QUERY)
    word = cursor.token.upper
    if word not in _KINDS and word != "ADMIN":
        raise cursor.error()
    statement: Statement = _KINDS[word](cursor) if word in _KINDS else _admin(cursor)
    cursor.end()
    return statement


def _admin(cursor: Cursor) -> Statement:
    cursor.take()
    if cursor.accept("CANCEL", "DDL", "JOBS"):
        ids = [cursor.integer()]
        while cursor.accept_sign(","):
            ids.append(cursor.integer())
        return CancelJobs(tuple(ids))
    if cursor.accept("SHOW", "DDL", "JOBS"):
        return ShowJobs(cursor.integer() if cursor.token.kind is Kind.INTEGER else None)
    raise cursor.refuse(f"ADMIN {cursor.token.upper}")
