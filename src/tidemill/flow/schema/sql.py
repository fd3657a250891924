"""The few things done to SQL text: quoting names, and taking merged CREATE TABLE statements apart."""

import re

# Quoted strings and names, comments, and everything else up to the next of these or a semicolon.
_TOKEN = re.compile(
    r"""  '(?:[^'\\]|\\.|'')*'
        | "(?:[^"\\]|\\.|"")*"
        | `(?:[^`]|``)*`
        | /\*.*?\*/
        | \#[^\n]*
        | --(?=\s|$)[^\n]*
        | ;
        | .
    """,
    re.VERBOSE | re.DOTALL,
)

_LIKE = re.compile(
    r"\s*create\s+table\s+(?:if\s+not\s+exists\s+)?(?:`(?:[^`]|``)*`|[^\s.(`]+)(?:\s*\.\s*(?:`(?:[^`]|``)*`|[^\s.(`]+))?"
    r"\s*\(?\s*like\b",
    re.IGNORECASE,
)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def qualified(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}"


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
