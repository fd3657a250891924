"""Statements as a session of the default sql_mode would read them.

A DDL job keeps its statement as it was typed, and the sql_mode under which it was: there ``"a"`` may be a name
(ANSI_QUOTES), and a backslash a plain character (NO_BACKSLASH_ESCAPES). Everybody downstream reads by the default.
Other modes change what operators and types mean; these are told by name, to whoever runs the statement.
"""

from typing import Final

from tidemill.tidb.lexer import ANSI_QUOTES, NO_BACKSLASH_ESCAPES, Kind, Piece, pieces, quoted

# By TiDB's bits.
_MEANINGS: Final = {
    1 << 0: "REAL_AS_FLOAT",
    1 << 1: "PIPES_AS_CONCAT",
    1 << 3: "IGNORE_SPACE",
    1 << 29: "HIGH_NOT_PRECEDENCE",
}


def modes_of(sql_mode: int) -> tuple[str, ...]:
    """Those in which a statement means something else than by default, spelled as it may be."""
    return tuple(name for bit, name in _MEANINGS.items() if sql_mode & bit)


def in_default_mode(query: str, sql_mode: int) -> str:
    """``query``, typed under ``sql_mode``, with the same meaning under the default one."""
    if not sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES):
        return query
    return "".join(_respelled(piece, sql_mode) for piece in pieces(query, sql_mode))


def _respelled(piece: Piece, sql_mode: int) -> str:
    if piece.kind is Kind.NAME and piece.text[0] == '"':
        return quoted(piece.text[1:-1].replace('""', '"'))
    if piece.kind is Kind.STRING and sql_mode & NO_BACKSLASH_ESCAPES:
        return piece.text.replace("\\", "\\\\")
    return piece.text
