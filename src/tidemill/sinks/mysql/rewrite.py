"""DDL text of TiDB for a MySQL or MariaDB: what only TiDB has is left out, what is spelled otherwise is respelled.

Only words outside strings, quoted names and comments are looked at, and only where the grammar puts such a clause; what
is not known here is sent as it stands, and the server's error tells.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tidemill.sinks.mysql.session import Downstream, Flavor
from tidemill.tidb.lexer import Kind, quoted, unquoted
from tidemill.tidb.tokens import Token, Tokens, tokens_of

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
# What TiDB takes where a character set is named alone; others have another one.
_USUAL_COLLATIONS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
_DATABASE_OPTIONS: Final = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "PLACEMENT")
_NUMBER_OPTIONS: Final = ("SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE")
_STRING_OPTIONS: Final = ("TTL_ENABLE", "TTL_JOB_INTERVAL", "AFFINITY")


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """What becomes of a statement's foreign keys, whose names are unique in a table upstream and in a database here.
    ``added`` gives the name for a new one, ``dropped`` that of one that is there; None: there is none."""

    added: Callable[[str], str] = str
    dropped: Callable[[str], str | None] = str
    are_kept: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """How far a statement is bent to what the downstream can hold."""

    has_vectors: bool = False
    plain_columns: frozenset[str] = frozenset()  # generated ones that are to be plain, in small letters
    keeps_partitions: bool = True
    keeps_default_expressions: bool = True
    expressions: Mapping[str, str] = field(default_factory=dict)  # of generated columns, by name in small letters
    left_indexes: frozenset[str] = frozenset()  # that a CREATE TABLE does without, in small letters
    text_columns: frozenset[str] = frozenset()  # VARCHAR that is to be TEXT, in small letters
    place: tuple[str, str] | None = None  # the names of what it alters, as they are spelled; no table: a database
    widens_latin1: bool = True
    foreign_keys: ForeignKeys = ForeignKeys()


def rewritten(query: str, downstream: Downstream, fit: Fit = Fit()) -> str:  # noqa: B008 (it is frozen)
    """``query`` as the downstream takes it; empty if nothing of it is left to do there."""
    if downstream.flavor is Flavor.TIDB:
        return _Text(query).without_vectors() if not fit.has_vectors else query
    text = _Text(query, keeps_features=False)
    if fit.place is not None:
        text.spell_place(*fit.place)
    text.name_collations()
    text.drop_tidb_clauses()
    text.replace_vectors()
    text.fit_foreign_keys(fit.foreign_keys)
    if fit.expressions:
        text.spell_expressions(fit.expressions)
    if fit.plain_columns:
        text.make_plain(fit.plain_columns)
    if fit.left_indexes:
        text.leave_indexes(fit.left_indexes)
    if fit.text_columns:
        text.make_text(fit.text_columns)
    if not fit.keeps_partitions:
        text.drop_partitioning()
    if not fit.keeps_default_expressions:
        text.drop_default_expressions()
    if fit.widens_latin1:
        text.widen_latin1()
    if downstream.flavor is Flavor.MARIADB:
        text.respell_for_mariadb(downstream.version)
    else:
        text.relax_checks()
    return text.result()


class _Text(Tokens):
    def without_vectors(self) -> str:
        self.replace_vectors()
        return self.result()

    def drop_tidb_clauses(self) -> None:
        self._sweep(
            [
                self._clustering,
                self._auto_random,
                self._number_option,
                self._string_option,
                self._ttl,
                self._placement,
                self._sequence_default,
                self._global_index,
                self._index_updates,
                self._validation,
                self._definer,
                self._empty_name,
            ]
        )

    def spell_place(self, schema: str, table: str) -> None:
        """Names of tables and databases are taken in any case by TiDB, and by others often only as they were given."""
        if self._word(0) == "ALTER" and self._word(1) == "IGNORE":
            self._remove(1, 2)  # which means nothing to TiDB, and lost rows to others
        at = self._place_at() if table else self._database_at()
        if at is None:
            return
        is_missing = not table and self._word(0) == "ALTER" and self._word(at) in _DATABASE_OPTIONS
        if not is_missing:
            self._remove(at, self._name_end(at))
        self._insert(at, f"{quoted(schema)}.{quoted(table)}" if table else quoted(schema))

    def _place_at(self) -> int | None:
        """Where the name of the table stands that the statement alters."""
        if [self._word(0), self._word(1)] == ["ALTER", "TABLE"]:
            return 2
        if self._word(0) == "TRUNCATE":
            return 2 if self._word(1) == "TABLE" else 1
        if self._word(0) in ("CREATE", "DROP") and "INDEX" in (self._word(1), self._word(2)):
            on = next((at for at in range(2, len(self._tokens)) if self._word(at) == "ON"), None)
            return None if on is None else on + 1
        return None

    def _database_at(self) -> int | None:
        if self._word(0) not in ("ALTER", "DROP") or self._word(1) not in ("DATABASE", "SCHEMA"):
            return None
        return 4 if [self._word(2), self._word(3)] == ["IF", "EXISTS"] else 2

    def name_collations(self) -> None:
        """A character set alone means a collation by default, which is not the same everywhere."""
        for at in range(len(self._tokens) - 1, 0, -1):
            before = at - 1 if self._word(at - 1) != "=" else at - 2
            is_set = self._word(before) == "SET" and self._word(before - 1) in ("CHARACTER", "CHAR")
            collation = _USUAL_COLLATIONS.get(self._tokens[at].text.strip("'\"`").lower())
            if collation is None or not (is_set or self._word(before) == "CHARSET"):
                continue
            begin, end = self._clause(at)
            is_cast = self._word(begin - 1) == "(" and self._word(begin - 2) in ("CAST", "CONVERT")
            if not is_cast and not any(self._word(n) == "COLLATE" for n in range(begin, end)):
                self._insert(at + 1, collation)
                self._insert(at + 1, "COLLATE")

    def drop_default_expressions(self) -> None:
        """``DEFAULT (…)``: every row brings its value."""
        self._sweep([lambda at: self._closing(at + 1) - at if self._is_expression(at) else 0])

    def _is_expression(self, at: int) -> bool:
        return self._word(at) == "DEFAULT" and self._word(at + 1) == "("

    def replace_vectors(self) -> None:
        """A column type VECTOR or VECTOR(n), which stands behind the column's name."""
        at = 1
        while at < len(self._tokens):
            token, before = self._tokens[at], self._tokens[at - 1]
            is_type = token.word == "VECTOR" and (
                before.kind is Kind.NAME or (before.kind is Kind.WORD and before.word not in ("ADD", "CREATE"))
            )
            if is_type and self._word(at + 1) not in ("INDEX", "KEY"):
                end = self._closing(at + 1) if self._word(at + 1) == "(" else at + 1
                self._tokens[at] = Token(Kind.WORD, "LONGTEXT")
                self._remove(at + 1, end)
            at += 1

    def respell_for_mariadb(self, version: tuple[int, ...]) -> None:
        collations = _COLLATIONS if version >= (10, 10, 1) else _OLD_COLLATIONS
        for at, token in enumerate(self._tokens):
            if token.text.strip("'\"").lower() in collations:
                token.text = collations[token.text.strip("'\"").lower()]
            is_index_end = at > 0 and (self._tokens[at - 1].word == ")" or self._word(at - 2) == "INDEX")
            if token.word in ("INVISIBLE", "VISIBLE") and is_index_end:
                token.text = "IGNORED" if token.word == "INVISIBLE" else "NOT IGNORED"
        self._sweep([self._enforcement, self._partition_comment, self._introducer])
        self._drop_expression_indexes()
        self._free_generated()
        for at in range(len(self._tokens) - 1, -1, -1):
            self._spare_missing_index(at, version)
            self._fill_json(at)

    def _drop_expression_indexes(self) -> None:
        """MariaDB has no indexes of expressions. No row needs one: it is never the handle key."""
        on = 2 if self._word(1) == "INDEX" else 3
        if self._word(0) == "CREATE" and "INDEX" in (self._word(1), self._word(2)) and self._word(1) != "TABLE":
            while on < len(self._tokens) and self._word(on) != "ON":
                on += 1
            if self._has_expression(self._name_end(on + 1)):
                self._remove(0, len(self._tokens))
            return
        at = 0
        while at < len(self._tokens):
            end = self._index_end(at)
            if not end:
                at += 1
            elif self._word(end) == ",":
                self._remove(at, end + 1)
            else:
                self._remove(at - (self._word(at - 1) == ","), end)

    def _index_end(self, at: int) -> int:
        """Behind the clause ``[ADD] [UNIQUE] INDEX [name] (… (expression) …) …`` from ``at`` on; 0: none."""
        begin = at + 1 if self._word(at) == "ADD" else at
        if begin == at and self._word(at - 1) not in (",", "("):
            return 0
        columns = begin + 1 if self._word(begin) == "UNIQUE" else begin
        if self._word(columns) in ("INDEX", "KEY"):
            columns += 1
        if columns == begin:
            return 0
        columns += 3 if self._word(columns) == "IF" else 0
        columns += 1 if self._word(columns) != "(" else 0
        columns += 2 if self._word(columns) == "USING" else 0
        if not self._has_expression(columns):
            return 0
        end = self._closing(columns)
        while self._word(end) not in (",", ")", ";") and end < len(self._tokens):
            end += 1
        return end

    def _has_expression(self, at: int) -> bool:
        """Whether a list of key parts stands at ``at``, one of them an expression in parentheses of its own."""
        if self._word(at) != "(":
            return False
        depth = 0
        for token, before in zip(self._tokens[at : self._closing(at)], [None, *self._tokens[at:]], strict=False):
            if token.word == "(" and depth == 1 and before is not None and before.word in ("(", ","):
                return True
            depth += {"(": 1, ")": -1}.get(token.word, 0)
        return False

    def _spare_missing_index(self, at: int, version: tuple[int, ...]) -> None:
        """An index that was left out above and is dropped, renamed or hidden must not take the rest of its statement
        along."""
        verbs = ("DROP", "RENAME", "ALTER") if version >= (10, 6) else ("DROP",)
        if self._word(at) in verbs and self._word(at + 1) in ("INDEX", "KEY") and self._word(at + 2) != "IF":
            self._insert(at + 2, "IF EXISTS")

    def _fill_json(self, at: int) -> None:
        """``ADD COLUMN j JSON NOT NULL``: rows that were there have the JSON null, where MariaDB has an empty text."""
        if self._word(at) != "JSON" or [self._word(0), self._word(1)] != ["ALTER", "TABLE"]:
            return
        begin, end, depth = at, at, 0
        while begin > 2 and self._word(begin - 1) not in (",", "("):
            begin -= 1
        while end < len(self._tokens) and (depth or self._word(end) not in (",", ")")):
            depth += {"(": 1, ")": -1}.get(self._word(end), 0)
            end += 1
        words = [self._word(n) for n in range(begin, end)]
        is_other = {"MODIFY", "CHANGE", "DEFAULT", "AS"} & set(words)
        if not is_other and ("NOT", "NULL") in pairwise(words):
            self._insert(at + 1, "DEFAULT 'null'")

    def relax_checks(self) -> None:
        """Checks are dropped upstream without a DDL that reaches us, so the downstream must not enforce them."""
        for at in range(len(self._tokens) - 1, -1, -1):
            if self._word(at) == "CHECK" and self._word(at + 1) == "(":
                end = self._closing(at + 1)
                if self._word(end) != "ENFORCED" and self._word(end + 1) != "ENFORCED":
                    self._insert(end, "NOT ENFORCED")

    def widen_latin1(self) -> None:
        """TiDB keeps any character in a latin1 column, where others refuse most: so it is UTF-8 there."""
        for at, token in enumerate(self._tokens):
            before = self._word(at - 1) if self._word(at - 1) != "=" else self._word(at - 2)
            text = token.text.strip("'\"").lower()
            if before in ("CHARSET", "SET") and text == "latin1":
                token.text = "utf8mb4"
            elif before == "COLLATE" and text.startswith("latin1_"):
                token.text = "utf8mb4_bin" if text == "latin1_bin" else "utf8mb4_general_ci"

    def drop_partitioning(self) -> None:
        """``PARTITION BY …``, which is the end of a CREATE TABLE."""
        for at in range(len(self._tokens)):
            if [self._word(at), self._word(at + 1)] == ["PARTITION", "BY"]:
                self._remove(at, len(self._tokens))
                return

    def make_plain(self, columns: Container[str]) -> None:
        """``name type [GENERATED ALWAYS] AS (…) [STORED]`` of these columns, their names in small letters. No row tells
        what a virtual one is: it becomes NULL."""
        for begin, end in self._elements():
            at = self._column_at(begin)
            if at >= end or self._tokens[at].name not in columns:
                continue
            clause = self._generation(at, end)
            if clause < end:
                behind = self._closing(clause + 1)
                is_stored = self._word(behind) in ("STORED", "PERSISTENT")
                if not is_stored:
                    self._drop_nullness(at, end)
                    clause = self._generation(at, end)
                    behind = self._closing(clause + 1)
                behind += self._word(behind) in ("STORED", "VIRTUAL", "PERSISTENT")
                first = clause - 2 if self._word(clause - 1) == "ALWAYS" else clause
                self._remove(first, behind)

    def spell_expressions(self, expressions: Mapping[str, str]) -> None:
        """As TiDB understood them: ``a || b`` and ``j->'$.k'`` mean something else to others, or nothing."""
        for begin, end in self._elements():
            at = self._column_at(begin)
            clause = self._generation(at, end)
            if at < end and clause < end and self._tokens[at].name in expressions:
                self._remove(clause + 2, self._closing(clause + 1) - 1)
                for token in reversed(tokens_of(expressions[self._tokens[at].name])):
                    self._tokens.insert(clause + 2, token)
                    self._before.insert(clause + 2, "" if token.word in ("(", ")", ",") else " ")

    def leave_indexes(self, names: Container[str]) -> None:
        """``[UNIQUE] KEY name (…)`` of these names, in a CREATE TABLE."""
        for begin, end in self._elements():
            at = begin + (self._word(begin) == "UNIQUE")
            at += self._word(at) in ("KEY", "INDEX")
            if begin < at < end and self._tokens[at].name in names:
                self._remove_element(begin, end)

    def make_text(self, columns: Container[str]) -> None:
        """``name VARCHAR(n)`` as TEXT, ``VARBINARY(n)`` as BLOB: they do not count against the length of a row."""
        for begin, end in self._elements():
            at = self._column_at(begin)
            kind = {"VARCHAR": "TEXT", "VARBINARY": "BLOB"}.get(self._word(at + 1))
            if at < end and kind is not None and self._tokens[at].name in columns and self._word(at + 2) == "(":
                self._remove(at + 1, self._closing(at + 2))
                self._insert(at + 1, kind)

    def _column_at(self, at: int) -> int:
        """Where the name stands that a column has after the clause which begins at ``at``."""
        is_change = self._word(at) == "CHANGE"
        while self._word(at) in ("ADD", "COLUMN", "MODIFY", "CHANGE"):
            at += 1
        if self._word(at) == "IF":
            at += 3 if self._word(at + 1) == "NOT" else 2
        return at + is_change

    def _generation(self, begin: int, end: int) -> int:
        """Where ``AS (`` stands; ``end``: nowhere."""
        return next((n for n in range(begin, end) if self._word(n) == "AS" and self._word(n + 1) == "("), end)

    def _drop_nullness(self, begin: int, end: int) -> None:
        """``[NOT] NULL`` of a column, outside of parentheses."""
        at, found = begin, list[tuple[int, int]]()
        while at < end:
            if self._word(at) == "(":
                at = self._closing(at)
                continue
            if self._word(at) == "NULL" and self._word(at - 1) != "DEFAULT":
                found.append((at - (self._word(at - 1) == "NOT"), at + 1))
            at += 1
        for first, last in reversed(found):
            self._remove(first, last)

    def _free_generated(self) -> None:
        """MariaDB takes no NOT NULL of a column that it generates."""
        if "TABLE" not in (self._word(1), self._word(2)):
            return
        for at in range(len(self._tokens) - 1, 0, -1):
            if self._word(at) == "AS" and self._word(at + 1) == "(":
                self._drop_nullness(*self._clause(at))

    def fit_foreign_keys(self, keys: "ForeignKeys") -> None:
        for begin, end in self._elements():
            words = [self._word(n) for n in range(begin, end)]
            if words[:3] == ["DROP", "FOREIGN", "KEY"]:
                at = begin + 3 + (2 if self._word(begin + 3) == "IF" else 0)
                found = keys.dropped(self._tokens[at].name)
                if found is None:
                    self._remove_element(begin, end)
                else:
                    self._tokens[at] = Token(Kind.NAME, quoted(found))
                continue
            if ("FOREIGN", "KEY") not in pairwise(words) or "REFERENCES" not in words:
                continue
            key = begin + words.index("FOREIGN")
            if not keys.are_kept:
                self._remove_element(begin, end)
            elif self._word(key - 2) == "CONSTRAINT":
                name = self._tokens[key - 1]
                self._tokens[key - 1] = Token(Kind.NAME, quoted(keys.added(unquoted(name.text))))

    # Each of these tells how many tokens from ``at`` on are such a clause; 0: none.

    def _clustering(self, at: int) -> int:
        is_behind_key = at > 0 and self._tokens[at - 1].word in (")", "KEY")
        return int(is_behind_key and self._word(at) in ("CLUSTERED", "NONCLUSTERED"))

    def _auto_random(self, at: int) -> int:
        if self._word(at) != "AUTO_RANDOM" or self._word(at - 1) in ("(", ",", "COLUMN"):
            return 0
        return self._closing(at + 1) - at if self._word(at + 1) == "(" else 1

    def _number_option(self, at: int) -> int:
        return self._option(at, _NUMBER_OPTIONS, Kind.INTEGER)

    def _string_option(self, at: int) -> int:
        return self._option(at, _STRING_OPTIONS, Kind.STRING)

    def _option(self, at: int, names: Sequence[str], kind: Kind) -> int:
        if self._word(at) not in names:
            return 0
        end = at + 2 if self._word(at + 1) == "=" else at + 1
        return end + 1 - at if end < len(self._tokens) and self._tokens[end].kind is kind else 0

    def _ttl(self, at: int) -> int:
        """``TTL [=] column + INTERVAL number unit``"""
        if self._word(at) != "TTL":
            return 0
        column = at + 2 if self._word(at + 1) == "=" else at + 1
        return column + 5 - at if [self._word(column + 1), self._word(column + 2)] == ["+", "INTERVAL"] else 0

    def _placement(self, at: int) -> int:
        if [self._word(at), self._word(at + 1)] != ["PLACEMENT", "POLICY"]:
            return 0
        return 4 if self._word(at + 2) == "=" else 3

    def _sequence_default(self, at: int) -> int:
        """``DEFAULT NEXT VALUE FOR name`` or ``DEFAULT NEXTVAL(name)``: every row brings its value."""
        if self._word(at) != "DEFAULT":
            return 0
        if [self._word(at + n) for n in (1, 2, 3)] == ["NEXT", "VALUE", "FOR"]:
            return self._name_end(at + 4) - at
        if [self._word(at + n) for n in (1, 2, 3)] == ["(", "NEXTVAL", "("]:
            return self._closing(at + 1) - at
        return self._closing(at + 2) - at if [self._word(at + 1), self._word(at + 2)] == ["NEXTVAL", "("] else 0

    def _global_index(self, at: int) -> int:
        return int(self._word(at) == "GLOBAL" and self._word(at - 1) in (")", "UNIQUE", "KEY"))

    def _index_updates(self, at: int) -> int:
        """``UPDATE INDEXES (name GLOBAL, …)`` behind a new partitioning"""
        is_it = [self._word(at + n) for n in range(3)] == ["UPDATE", "INDEXES", "("]
        return self._closing(at + 2) - at if is_it else 0

    def _definer(self, at: int) -> int:
        """``DEFINER = user@host`` of a view: a user that others need not have, nor we may act for."""
        if self._word(0) != "CREATE" or [self._word(at), self._word(at + 1)] != ["DEFINER", "="]:
            return 0
        if at + 3 < len(self._tokens) and self._tokens[at + 3].kind is Kind.USER_VARIABLE:
            return 4  # ``@host``
        return 5 if self._word(at + 3) in ("@", "(") else 3

    def _introducer(self, at: int) -> int:
        """``_utf8mb4'\\\\'`` in an expression: MariaDB writes it down without the escape, and reads another text."""
        behind = self._tokens[at + 1] if at + 1 < len(self._tokens) else None
        has_escape = behind is not None and behind.kind is Kind.STRING and "\\" in behind.text
        return int(has_escape and self._word(at) == "_UTF8MB4")

    def _partition_comment(self, at: int) -> int:
        """``COMMENT 'it''s'`` of a table partition: MariaDB writes it down so that it cannot read it any more."""
        if self._word(at) != "COMMENT":
            return 0
        end = at + 2 if self._word(at + 1) == "=" else at + 1
        if end >= len(self._tokens) or self._tokens[end].kind is not Kind.STRING:
            return 0
        begin, _ = self._clause(at)
        is_broken = any(sign in self._tokens[end].text[1:-1] for sign in "'\"\\")
        return end + 1 - at if self._word(begin) == "PARTITION" and is_broken else 0

    def _empty_name(self, at: int) -> int:
        """Of an index, which TiDB lets be so: others find one."""
        return int(self._tokens[at].text == "``" and self._word(at - 1) in ("KEY", "INDEX"))

    def _enforcement(self, at: int) -> int:
        """``[NOT] ENFORCED`` behind a check; sessions do not check anyway."""
        if at == 0 or self._tokens[at - 1].word != ")":
            return 0
        return 2 if [self._word(at), self._word(at + 1)] == ["NOT", "ENFORCED"] else int(self._word(at) == "ENFORCED")

    def _validation(self, at: int) -> int:
        """``WITHOUT VALIDATION``: MariaDB validates anyway. MySQL would keep rows in a partition in which it does not
        look for them later; where it refuses, they are exchanged as rows."""
        is_it = self._word(at) in ("WITH", "WITHOUT") and self._word(at + 1) == "VALIDATION"
        return 2 if is_it else 0
