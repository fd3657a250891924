"""Clauses of a DDL that a MySQL or MariaDB does without. Each rule tells how many tokens from ``at`` on are such a
clause; 0: none."""

from collections.abc import Callable, Sequence
from typing import Final

from tidemill.tidb.lexer import Kind
from tidemill.tidb.tokens import Tokens

_NUMBER_OPTIONS: Final = ("SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE")
_STRING_OPTIONS: Final = ("TTL_ENABLE", "TTL_JOB_INTERVAL", "AFFINITY")


def _clustering(text: Tokens, at: int) -> int:
    is_behind_key = at > 0 and text.tokens[at - 1].word in (")", "KEY")
    return int(is_behind_key and text.word(at) in ("CLUSTERED", "NONCLUSTERED"))


def _auto_random(text: Tokens, at: int) -> int:
    if text.word(at) != "AUTO_RANDOM" or text.word(at - 1) in ("(", ",", "COLUMN"):
        return 0
    return text.closing(at + 1) - at if text.word(at + 1) == "(" else 1


def _number_option(text: Tokens, at: int) -> int:
    return _option(text, at, _NUMBER_OPTIONS, Kind.INTEGER)


def _string_option(text: Tokens, at: int) -> int:
    return _option(text, at, _STRING_OPTIONS, Kind.STRING)


def _option(text: Tokens, at: int, names: Sequence[str], kind: Kind) -> int:
    if text.word(at) not in names:
        return 0
    end = at + 2 if text.word(at + 1) == "=" else at + 1
    return end + 1 - at if end < len(text.tokens) and text.tokens[end].kind is kind else 0


def _ttl(text: Tokens, at: int) -> int:
    """``TTL [=] column + INTERVAL number unit``"""
    if text.word(at) != "TTL":
        return 0
    column = at + 2 if text.word(at + 1) == "=" else at + 1
    return column + 5 - at if [text.word(column + 1), text.word(column + 2)] == ["+", "INTERVAL"] else 0


def _placement(text: Tokens, at: int) -> int:
    if [text.word(at), text.word(at + 1)] != ["PLACEMENT", "POLICY"]:
        return 0
    return 4 if text.word(at + 2) == "=" else 3


def _force(text: Tokens, at: int) -> int:
    """``FORCE AUTO_INCREMENT = 1`` lets the counter go back, as it does elsewhere without a word."""
    return int(text.word(at) == "FORCE" and text.word(at + 1) in ("AUTO_INCREMENT", "AUTO_RANDOM_BASE"))


def _sequence_default(text: Tokens, at: int) -> int:
    """``DEFAULT NEXT VALUE FOR name`` or ``DEFAULT NEXTVAL(name)``: every row brings its value."""
    if text.word(at) != "DEFAULT":
        return 0
    if [text.word(at + n) for n in (1, 2, 3)] == ["NEXT", "VALUE", "FOR"]:
        return text.name_end(at + 4) - at
    if [text.word(at + n) for n in (1, 2, 3)] == ["(", "NEXTVAL", "("]:
        return text.closing(at + 1) - at
    return text.closing(at + 2) - at if [text.word(at + 1), text.word(at + 2)] == ["NEXTVAL", "("] else 0


def _global_index(text: Tokens, at: int) -> int:
    return int(text.word(at) == "GLOBAL" and text.word(at - 1) in (")", "UNIQUE", "KEY"))


def _index_updates(text: Tokens, at: int) -> int:
    """``UPDATE INDEXES (name GLOBAL, …)`` behind a new partitioning"""
    is_it = [text.word(at + n) for n in range(3)] == ["UPDATE", "INDEXES", "("]
    return text.closing(at + 2) - at if is_it else 0


def _definer(text: Tokens, at: int) -> int:
    """``DEFINER = user@host`` of a view: a user that others need not have, nor we may act for."""
    if text.word(0) != "CREATE" or [text.word(at), text.word(at + 1)] != ["DEFINER", "="]:
        return 0
    if at + 3 < len(text.tokens) and text.tokens[at + 3].kind is Kind.USER_VARIABLE:
        return 4  # ``@host``
    return 5 if text.word(at + 3) in ("@", "(") else 3


def _introducer(text: Tokens, at: int) -> int:
    """``_utf8mb4'\\\\'`` in an expression: MariaDB writes it down without the escape, and reads another text."""
    behind = text.tokens[at + 1] if at + 1 < len(text.tokens) else None
    has_escape = behind is not None and behind.kind is Kind.STRING and "\\" in behind.text
    return int(has_escape and text.word(at) == "_UTF8MB4")


def _partition_comment(text: Tokens, at: int) -> int:
    """``COMMENT 'it''s'`` of a table partition: MariaDB writes it down so that it cannot read it any more."""
    if text.word(at) != "COMMENT":
        return 0
    end = at + 2 if text.word(at + 1) == "=" else at + 1
    if end >= len(text.tokens) or text.tokens[end].kind is not Kind.STRING:
        return 0
    begin, _ = text.clause(at)
    is_broken = any(sign in text.tokens[end].text[1:-1] for sign in "'\"\\")
    return end + 1 - at if text.word(begin) == "PARTITION" and is_broken else 0


def _empty_name(text: Tokens, at: int) -> int:
    """Of an index, which TiDB lets be so: others find one."""
    return int(text.tokens[at].text == "``" and text.word(at - 1) in ("KEY", "INDEX"))


def _enforcement(text: Tokens, at: int) -> int:
    """``[NOT] ENFORCED`` behind a check; sessions do not check anyway."""
    if at == 0 or text.tokens[at - 1].word != ")":
        return 0
    return 2 if [text.word(at), text.word(at + 1)] == ["NOT", "ENFORCED"] else int(text.word(at) == "ENFORCED")


def _validation(text: Tokens, at: int) -> int:
    """``WITHOUT VALIDATION``: MariaDB validates anyway. MySQL would keep rows in a partition in which it does not
    look for them later; where it refuses, they are exchanged as rows."""
    is_it = text.word(at) in ("WITH", "WITHOUT") and text.word(at + 1) == "VALIDATION"
    return 2 if is_it else 0


Rule = Callable[[Tokens, int], int]
TIDB_CLAUSES: Final[tuple[Rule, ...]] = (
    _clustering, _auto_random, _number_option, _string_option, _ttl, _placement, _sequence_default, _global_index,
    _index_updates, _validation, _definer, _empty_name, _force,
)  # fmt: skip
MARIADB_CLAUSES: Final[tuple[Rule, ...]] = (_enforcement, _partition_comment, _introducer)
