"""Statements as a session of the default sql_mode would read them.

A DDL job keeps its statement as it was typed, and the sql_mode under which it was: there ``"a"`` may be a name
(ANSI_QUOTES), and a backslash a plain character (NO_BACKSLASH_ESCAPES). Everybody downstream reads by the default.
"""

import re
from typing import Final

from tidemill.tidb.lexer import COMMENT, NAME, PLAIN_STRING, STRING, quoted

ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20

_ESCAPING = re.compile(f"{NAME}|{COMMENT}|{STRING}", re.DOTALL)
_PLAIN = re.compile(f"{NAME}|{COMMENT}|{PLAIN_STRING}", re.DOTALL)


def in_default_mode(query: str, sql_mode: int) -> str:
    """``query``, typed under ``sql_mode``, with the same meaning under the default one."""
    if not sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES):
        return query
    has_escapes = not sql_mode & NO_BACKSLASH_ESCAPES

    def respelled(found: re.Match[str]) -> str:
        text = found.group()
        if text[0] == '"' and sql_mode & ANSI_QUOTES:
            return quoted(text[1:-1].replace('""', '"'))
        return text if has_escapes or text[0] not in "'\"" else text.replace("\\", "\\\\")

    return (_ESCAPING if has_escapes else _PLAIN).sub(respelled, query)
