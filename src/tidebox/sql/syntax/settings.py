"""SET, from behind its word."""

from tidebox.sql.syntax.queries import QueryParser
from tidebox.sql.syntax.tree import Expression, Literal, Set, SetNames, SetVariable, Statement
from tidemill.tidb.lexer import Kind


def set_(p: QueryParser) -> Statement:
    if p.accept("NAMES"):
        charset = "default" if p.accept("DEFAULT") else _word_or_string(p)
        collation = _word_or_string(p) if p.accept("COLLATE") else ""
        return SetNames(charset, collation)
    if p.accept("CHARACTER", "SET") or p.accept("CHARSET"):
        return SetNames("default" if p.accept("DEFAULT") else _word_or_string(p))
    if p.is_word("PASSWORD", "ROLE", "CONFIG"):
        raise p.refuse(f"SET {p.token.upper}")
    found: list[SetVariable] = []
    while True:
        found += _set_one(p)
        if not p.accept_sign(","):
            return Set(tuple(found))


def _word_or_string(p: QueryParser) -> str:
    return p.string() if p.token.kind is Kind.STRING else p.name(any_word=True)


def _set_one(p: QueryParser) -> list[SetVariable]:
    token = p.token
    if token.kind is Kind.USER_VARIABLE:
        p.at += 1
        _equals(p)
        return [SetVariable("user", token.text, p.expression())]
    if token.kind is Kind.SYSTEM_VARIABLE:
        p.at += 1
        scope, _, name = token.text.rpartition(".")
        scope = {"": "session", "local": "session"}.get(scope, scope)
        _equals(p)
        return [SetVariable(scope, name, _setting(p))]
    scope = "session"
    if p.accept("GLOBAL"):
        scope = "global"
    elif p.accept("SESSION") or p.accept("LOCAL"):
        scope = "session"
    elif p.is_word("TRANSACTION"):
        scope = "transaction"
    if p.accept("TRANSACTION"):
        return _set_transaction(p, scope)
    name = p.name(any_word=True).lower()
    if p.accept_sign("."):
        name = f"{name}.{p.name(any_word=True).lower()}"
    _equals(p)
    return [SetVariable(scope, name, _setting(p))]


def _set_transaction(p: QueryParser, scope: str) -> list[SetVariable]:
    found = []
    while True:
        if p.accept("ISOLATION", "LEVEL"):
            level = p.name(any_word=True).upper()
            if level in ("READ", "REPEATABLE"):
                level += f"-{p.name(any_word=True).upper()}"
            found.append(SetVariable(scope, "transaction_isolation", Literal(level)))
        else:
            p.expect("READ")
            value = 1 if p.accept("ONLY") else 0
            if not value:
                p.expect("WRITE")
            found.append(SetVariable(scope, "transaction_read_only", Literal(value)))
        if not p.accept_sign(","):
            return found


def _equals(p: QueryParser) -> None:
    if not p.accept_sign("=") and not p.accept_sign(":="):
        raise p.error()


def _setting(p: QueryParser) -> Expression:
    """A value; a bare word such as ``ON`` or ``utf8mb4`` stands for itself."""
    token = p.token
    if token.kind is Kind.WORD and p.ahead().text in ("", ",", ";"):
        if token.upper in ("NULL", "TRUE", "FALSE", "DEFAULT"):
            return p.expression()
        p.at += 1
        return Literal(token.text)
    return p.expression()
