"""How MySQL's text is spelled: what strings, quoted names and comments look like, in one place.

The patterns are for ``re.VERBOSE`` and without it alike, and need ``re.DOTALL``.
"""

from typing import Final

STRING: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
PLAIN_STRING: Final = r"""'(?:[^']|'')*'|"(?:[^"]|"")*\""""  # under NO_BACKSLASH_ESCAPES
NAME: Final = r"`(?:[^`]|``)*`"
LINE_COMMENT: Final = r"\#[^\n]*|--(?=\s|$)[^\n]*"
COMMENT: Final = rf"/\*.*?\*/|{LINE_COMMENT}"


def quoted(name: str) -> str:
    """A name as it may stand in any statement."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """What a name in a statement says, with or without its quotes."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def qualified(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}"


def literal(text: str) -> str:
    """A string as it may stand in a statement of the default sql_mode."""
    escaped = text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n").replace("\r", "\\r")
    return "'" + escaped.replace("\0", "\\0") + "'"
