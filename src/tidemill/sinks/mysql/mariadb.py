"""What MariaDB spells otherwise than MySQL, or cannot have."""

from functools import partial
from itertools import pairwise
from typing import Final

from tidemill.sinks.mysql.clauses import MARIADB_CLAUSES
from tidemill.tidb.tokens import Tokens

# MariaDB has no collation of Unicode 9; these are its nearest, without padding as those are.
_COLLATIONS: Final = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_as_ci": "utf8mb4_uca1400_nopad_as_ci",
    "utf8mb4_0900_as_cs": "utf8mb4_uca1400_nopad_as_cs",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}
_OLD_COLLATIONS: Final = {  # before MariaDB 10.10.1
    "utf8mb4_0900_ai_ci": "utf8mb4_unicode_520_nopad_ci",
    "utf8mb4_0900_as_ci": "utf8mb4_unicode_520_nopad_ci",
    "utf8mb4_0900_as_cs": "utf8mb4_nopad_bin",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}


def respell_for_mariadb(text: Tokens, version: tuple[int, ...]) -> None:
    collations = _COLLATIONS if version >= (10, 10, 1) else _OLD_COLLATIONS
    for at, token in enumerate(text.tokens):
        if token.text.strip("'\"").lower() in collations:
            token.text = collations[token.text.strip("'\"").lower()]
        is_index_end = at > 0 and (text.tokens[at - 1].word == ")" or text.word(at - 2) == "INDEX")
        if token.word in ("INVISIBLE", "VISIBLE") and is_index_end:
            token.text = "IGNORED" if token.word == "INVISIBLE" else "NOT IGNORED"
    text.sweep([partial(rule, text) for rule in MARIADB_CLAUSES])
    _drop_expression_indexes(text)
    _free_generated(text)
    for at in range(len(text.tokens) - 1, -1, -1):
        _spare_missing_index(text, at, version)
        _fill_json(text, at)


def _drop_expression_indexes(text: Tokens) -> None:
    """MariaDB has no indexes of expressions. No row needs one: it is never the handle key."""
    on = 2 if text.word(1) == "INDEX" else 3
    if text.word(0) == "CREATE" and "INDEX" in (text.word(1), text.word(2)) and text.word(1) != "TABLE":
        while on < len(text.tokens) and text.word(on) != "ON":
            on += 1
        if _has_expression(text, text.name_end(on + 1)):
            text.remove(0, len(text.tokens))
        return
    at = 0
    while at < len(text.tokens):
        end = _index_end(text, at)
        if not end:
            at += 1
        elif text.word(end) == ",":
            text.remove(at, end + 1)
        else:
            text.remove(at - (text.word(at - 1) == ","), end)


def _index_end(text: Tokens, at: int) -> int:
    """Behind the clause ``[ADD] [UNIQUE] INDEX [name] (… (expression) …) …`` from ``at`` on; 0: none."""
    begin = at + 1 if text.word(at) == "ADD" else at
    if begin == at and text.word(at - 1) not in (",", "("):
        return 0
    columns = begin + 1 if text.word(begin) == "UNIQUE" else begin
    if text.word(columns) in ("INDEX", "KEY"):
        columns += 1
    if columns == begin:
        return 0
    columns += 3 if text.word(columns) == "IF" else 0
    columns += 1 if text.word(columns) != "(" else 0
    columns += 2 if text.word(columns) == "USING" else 0
    if not _has_expression(text, columns):
        return 0
    end = text.closing(columns)
    while text.word(end) not in (",", ")", ";") and end < len(text.tokens):
        end += 1
    return end


def _has_expression(text: Tokens, at: int) -> bool:
    """Whether a list of key parts stands at ``at``, one of them an expression in parentheses of its own."""
    if text.word(at) != "(":
        return False
    depth = 0
    for token, before in zip(text.tokens[at : text.closing(at)], [None, *text.tokens[at:]], strict=False):
        if token.word == "(" and depth == 1 and before is not None and before.word in ("(", ","):
            return True
        depth += {"(": 1, ")": -1}.get(token.word, 0)
    return False


def _spare_missing_index(text: Tokens, at: int, version: tuple[int, ...]) -> None:
    """An index that was left out above and is dropped, renamed or hidden must not take the rest of its statement
    along."""
    verbs = ("DROP", "RENAME", "ALTER") if version >= (10, 6) else ("DROP",)
    if text.word(at) in verbs and text.word(at + 1) in ("INDEX", "KEY") and text.word(at + 2) != "IF":
        text.insert(at + 2, "IF EXISTS")


def _fill_json(text: Tokens, at: int) -> None:
    """``ADD COLUMN j JSON NOT NULL``: rows that were there have the JSON null, where MariaDB has an empty text."""
    if text.word(at) != "JSON" or [text.word(0), text.word(1)] != ["ALTER", "TABLE"]:
        return
    begin, end, depth = at, at, 0
    while begin > 2 and text.word(begin - 1) not in (",", "("):
        begin -= 1
    while end < len(text.tokens) and (depth or text.word(end) not in (",", ")")):
        depth += {"(": 1, ")": -1}.get(text.word(end), 0)
        end += 1
    words = [text.word(n) for n in range(begin, end)]
    is_other = {"MODIFY", "CHANGE", "DEFAULT", "AS"} & set(words)
    if not is_other and ("NOT", "NULL") in pairwise(words):
        text.insert(at + 1, "DEFAULT 'null'")


def _free_generated(text: Tokens) -> None:
    """MariaDB takes no NOT NULL of a column that it generates."""
    if "TABLE" not in (text.word(1), text.word(2)):
        return
    for at in range(len(text.tokens) - 1, 0, -1):
        if text.word(at) == "AS" and text.word(at + 1) == "(":
            drop_nullness(text, *text.clause(at))


def drop_nullness(text: Tokens, begin: int, end: int) -> None:
    """``[NOT] NULL`` of a column, outside of parentheses."""
    at, found = begin, list[tuple[int, int]]()
    while at < end:
        if text.word(at) == "(":
            at = text.closing(at)
            continue
        if text.word(at) == "NULL" and text.word(at - 1) != "DEFAULT":
            found.append((at - (text.word(at - 1) == "NOT"), at + 1))
        at += 1
    for first, last in reversed(found):
        text.remove(first, last)
