"""Where one statement ends and the next begins, in what a client sends in one go.

A semicolon ends a statement unless it stands in a string, in a quoted name or in a comment.
``/*! … */``, ``/*T! … */`` and ``/*M! … */`` hold SQL that is executed, so strings inside them are
strings; a semicolon inside them does not end the statement around them. ``DELIMITER`` is the client's affair.
"""

import re
from functools import cache

# What may hide a semicolon. An unclosed string or comment hides everything up to the end.
_COMMENT = r"--(?=[\s\x00-\x1f]|\Z)[^\n]*|\#[^\n]*"
_NAME = r"`[^`]*(?:`|\Z)"
_STRINGS = r"'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)|" r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_STRINGS_WITHOUT_ESCAPES = r"'[^']*(?:'|\Z)|" r'"[^"]*(?:"|\Z)'
_EXECUTED = r"/\*[TM]?!"
_BLOCK = r"/\*.*?(?:\*/|\Z)"


@cache
def _pattern(has_backslash_escapes: bool) -> re.Pattern[str]:
    strings = _STRINGS if has_backslash_escapes else _STRINGS_WITHOUT_ESCAPES
    return re.compile(
        rf"(?P<comment>{_COMMENT})|(?P<quoted>{_NAME}|{strings})|(?P<open>{_EXECUTED})|(?P<block>{_BLOCK})"
        r"|(?P<close>\*/)|(?P<end>;)|(?P<other>[^\s;'\"`#/*-]+|\S)",
        re.DOTALL,
    )


def split(sql: str, *, has_backslash_escapes: bool = True) -> list[str]:
    """The statements of ``sql`` in order, trimmed, without semicolons; what holds only comments is left out.

    ``has_backslash_escapes`` is False under the SQL mode NO_BACKSLASH_ESCAPES.
    """
    trimmed = sql.strip().rstrip(";").rstrip()
    if ";" not in trimmed and trimmed[:1].isalpha():
        return [trimmed]  # nearly all
    statements: list[str] = []
    start = 0
    depth = 0  # inside comments that are executed
    has_content = False
    for token in _pattern(has_backslash_escapes).finditer(sql):
        kind = token.lastgroup
        if kind == "end" and depth == 0:
            if has_content:
                statements.append(sql[start : token.start()].strip())
            start, has_content = token.end(), False
        elif kind == "open":
            depth += 1
            has_content = True
        elif kind == "close" and depth:
            depth -= 1
        elif kind == "block":
            # A hint belongs to its statement but makes none.
            continue
        elif kind != "comment":
            has_content = True
    if has_content:
        statements.append(sql[start:].strip())
    return statements
