"""The few things done to whole statements: telling a CREATE TABLE … LIKE, and taking merged ones apart."""

import re

from tidemill.tidb.lexer import COMMENT, NAME, STRING

# Quoted strings and names, comments, and everything else up to the next of these or a semicolon.
_TOKEN = re.compile(rf"{STRING}|{NAME}|{COMMENT}|;|.", re.DOTALL)

_PART = rf"(?:{NAME}|[^\s.(`]+)"  # of a name
_LIKE = re.compile(
    rf"\s*create\s+table\s+(?:if\s+not\s+exists\s+)?{_PART}(?:\s*\.\s*{_PART})?\s*\(?\s*like\b", re.IGNORECASE
)


def is_create_like(query: str) -> bool:
    """CREATE TABLE … LIKE …, which says what the table has by another table's name."""
    return _LIKE.match(query) is not None


def split_statements(text: str) -> list[str]:
    """The statements of ``text``, each ending with one semicolon. Semicolons in strings and comments do not count."""
    statements, start = [], 0
    for token in _TOKEN.finditer(text):
        if token.group() == ";":
            statements.append(text[start : token.start()].strip())
            start = token.end()
    statements.append(text[start:].strip())
    return [s + ";" for s in statements if s]
