"""Where transactions begin and end, from behind the first word."""

from tidebox.sql.syntax.queries import QueryParser
from tidebox.sql.syntax.tree import Begin, End, Ending, Savepoint, Statement
from tidemill.tidb.lexer import Kind


def begin(p: QueryParser) -> Statement:
    for mode in ("PESSIMISTIC", "OPTIMISTIC"):
        if p.accept(mode):
            return Begin(mode.lower())
    p.accept("WORK")
    return Begin()


def start(p: QueryParser) -> Statement:
    p.expect("TRANSACTION")
    mode, is_read_only, as_of = "", False, None
    while p.token.kind is Kind.WORD:
        if p.accept("READ", "ONLY"):
            is_read_only = True
            if p.is_word("AS"):
                as_of = p.as_of()
        elif p.accept("READ", "WRITE") or p.accept("WITH", "CONSISTENT", "SNAPSHOT"):
            pass
        elif p.accept("PESSIMISTIC"):
            mode = "pessimistic"
        elif p.accept("OPTIMISTIC"):
            mode = "optimistic"
        else:
            raise p.error()
        p.accept_sign(",")
    return Begin(mode, is_read_only, as_of)


def commit(p: QueryParser) -> Statement:
    p.accept("WORK")
    return End(Ending.COMMIT)


def rollback(p: QueryParser) -> Statement:
    p.accept("WORK")
    if p.accept("TO"):
        p.accept("SAVEPOINT")
        return Savepoint(p.name().lower(), "rollback")
    return End(Ending.ROLLBACK)


def savepoint(p: QueryParser) -> Statement:
    return Savepoint(p.name().lower())


def release(p: QueryParser) -> Statement:
    p.expect("SAVEPOINT")
    return Savepoint(p.name().lower(), "release")
