"""The few things done to whole statements: telling a CREATE TABLE … LIKE, and taking merged ones apart."""

from tidemill.tidb.lexer import Kind, MalformedTextError, split_statements, tokens


def is_create_like(query: str) -> bool:
    """CREATE TABLE … LIKE …, which says what the table has by another table's name."""
    try:
        found = tokens(query)
    except MalformedTextError:
        return False
    words = [token.text if token.kind is Kind.OPERATOR else token.upper for token in found]
    if words[:2] != ["CREATE", "TABLE"]:
        return False
    at = 5 if words[2:5] == ["IF", "NOT", "EXISTS"] else 2
    at += 3 if words[at + 1 : at + 2] == ["."] else 1
    at += words[at : at + 1] == ["("]
    return words[at : at + 1] == ["LIKE"]


def merged_statements(text: str) -> list[str]:
    """The statements of ``text``, each ending with one semicolon."""
    return [statement + ";" for statement in split_statements(text)]
