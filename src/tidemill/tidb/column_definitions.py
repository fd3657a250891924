"""The columns that a CREATE TABLE or an ALTER TABLE spells out: their types and defaults, as they are written there.

Of the rest of the statement nothing is read. A text that is no SQL has none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.tidb.lexer import Kind, MalformedTextError, Token, tokens

_NO_COLUMN = frozenset(
    {"PRIMARY", "KEY", "INDEX", "UNIQUE", "CONSTRAINT", "FOREIGN", "CHECK", "FULLTEXT", "SPATIAL", "LIKE", "PARTITION"}
)
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_LITERALS = (Kind.STRING, Kind.INTEGER, Kind.DECIMAL)
NULL = "NULL"  # the default of a column that says DEFAULT NULL
CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    name: str
    type: str = ""  # its first word, in capitals; "": it is left as it is
    length: int = -1  # in parentheses behind it; -1: none is given
    default: str | None = None  # a literal's text, NULL, a function's name; None: none is given, or another expression


def column_definitions(query: str) -> list[ColumnDefinition]:
    try:
        found = tokens(query)[:-1]
    except MalformedTextError:
        return []
    words = [token.upper for token in found[:4]]
    if words[:1] == ["CREATE"] and "TABLE" in words:
        return [_definition(line) for line in _lines(_within(found)) if _is_column(line)]
    if words[:2] == ["ALTER", "TABLE"]:
        return list(_altered(found[2:]))
    return []


def _altered(found: Sequence[Token]) -> Iterator[ColumnDefinition]:
    name_end = 3 if len(found) > 1 and found[1].text == "." else 1
    for clause in _lines(found[name_end:]):
        verb, rest = clause[0].upper, _behind(clause[1:], "COLUMN")
        is_named = len(rest) < len(clause) - 1
        rest = _behind(_behind(_behind(rest, "IF"), "NOT"), "EXISTS")
        if verb == "CHANGE":
            rest = rest[1:]
        if verb == "ADD" and rest and _is(rest[0], "("):
            yield from (_definition(line) for line in _lines(_within(rest)) if _is_column(line))
        elif verb in ("ADD", "MODIFY", "CHANGE") and (is_named or _is_column(rest)) and len(rest) > 1:
            yield _definition(rest)
        elif verb == "ALTER" and len(rest) > 1 and rest[1].upper in ("SET", "DROP"):
            yield ColumnDefinition(rest[0].text)


def _definition(line: Sequence[Token]) -> ColumnDefinition:
    length = -1
    if len(line) > 3 and _is(line[2], "(") and line[3].kind is Kind.INTEGER:
        length = int(line[3].text)
    depth, default = 0, None
    for at, token in enumerate(line):
        depth += _is(token, "(") - _is(token, ")")
        if depth == 0 and at > 1 and token.upper == "DEFAULT":
            default = _default(line[at + 1 :])
    return ColumnDefinition(line[0].text, line[1].upper, length, default)


def _default(rest: Sequence[Token]) -> str | None:
    while rest and _is(rest[0], "("):
        rest = rest[1:]
    if not rest:
        return None
    first = rest[0]
    if first.kind in _LITERALS:
        return first.text
    if first.upper in _NOW:
        return CURRENT_TIMESTAMP
    if first.upper == NULL:
        return NULL
    return first.text if first.kind is Kind.WORD and len(rest) > 1 and _is(rest[1], "(") else None


def _is(token: Token, operator: str) -> bool:
    return token.kind is Kind.OPERATOR and token.text == operator


def _is_column(line: Sequence[Token]) -> bool:
    return len(line) > 1 and line[0].upper not in _NO_COLUMN and line[1].kind is Kind.WORD


def _behind(found: Sequence[Token], word: str) -> Sequence[Token]:
    return found[1:] if found and found[0].upper == word else found


def _within(found: Sequence[Token]) -> Sequence[Token]:
    """What stands in the first parentheses."""
    begin = next((at for at, token in enumerate(found) if _is(token, "(")), len(found))
    depth = 0
    for at in range(begin, len(found)):
        depth += _is(found[at], "(") - _is(found[at], ")")
        if depth == 0:
            return found[begin + 1 : at]
    return ()


def _lines(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """What stands between commas that no parentheses enclose; nothing that is empty."""
    begin = depth = 0
    for at, token in enumerate(found):
        depth += _is(token, "(") - _is(token, ")")
        if depth == 0 and _is(token, ","):
            if at > begin:
                yield found[begin:at]
            begin = at + 1
    if len(found) > begin:
        yield found[begin:]
