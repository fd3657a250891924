"""Statements as a session of the default sql_mode would read them.

A DDL job keeps its statement as it was typed, and the sql_mode under which it was: there ``"a"`` may be a name
(ANSI_QUOTES), and a backslash a plain character (NO_BACKSLASH_ESCAPES). Everybody downstream reads by the default.
"""

import re
from typing import Final

ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20

_SKIPPED = r"`(?:[^`]|``)*`|/\*.*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*"
_ESCAPING = re.compile(rf"""{_SKIPPED}|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_PLAIN = re.compile(rf"""{_SKIPPED}|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL)


def in_default_mode(query: str, sql_mode: int) -> str:
    """``query``, typed under ``sql_mode``, with the same meaning under the default one."""
    if not sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES):
        return query
    has_escapes = not sql_mode & NO_BACKSLASH_ESCAPES

    def respelled(found: re.Match[str]) -> str:
        text = found.group()
        if text[0] == '"' and sql_mode & ANSI_QUOTES:
            return "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`"
        return text if has_escapes or text[0] not in "'\"" else text.replace("\\", "\\\\")

    return (_ESCAPING if has_escapes else _PLAIN).sub(respelled, query)
