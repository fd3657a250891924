"""DDL text of TiDB for a MySQL or MariaDB: what only TiDB has is left out, what is spelled otherwise is respelled.

Only words outside strings, quoted names and comments are looked at, and only where the grammar puts such a clause; what
is not known here is sent as it stands, and the server's error tells.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from tidemill.sinks.mysql.clauses import TIDB_CLAUSES
from tidemill.sinks.mysql.mariadb import drop_nullness, respell_for_mariadb
from tidemill.sinks.mysql.session import Downstream, Flavor
from tidemill.tidb.lexer import Kind, quoted, unquoted
from tidemill.tidb.tokens import Token, Tokens, tokens_of

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
        return _for_tidb(query, fit)
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
        respell_for_mariadb(text, downstream.version)
    else:
        text.relax_checks()
    return text.result()


def generated_in(query: str) -> tuple[frozenset[str], frozenset[str]]:
    """The generated columns that a statement makes, in small letters: the stored ones, and all."""
    return _Text(query).generated()


def _for_tidb(query: str, fit: Fit) -> str:
    """As typed, but for what depends on the session or on the version."""
    if fit.has_vectors and fit.keeps_partitions and "||" not in query:
        return query
    text = _Text(query)
    if not fit.has_vectors:
        text.replace_vectors()
    if "||" in query:  # a concatenation where the session had PIPES_AS_CONCAT
        text.spell_expressions(fit.expressions)
    if not fit.keeps_partitions:
        text.drop_partitioning()
    return text.result()


class _Text(Tokens):
    def drop_tidb_clauses(self) -> None:
        self.sweep([partial(rule, self) for rule in TIDB_CLAUSES])

    def spell_place(self, schema: str, table: str) -> None:
        """Names of tables and databases are taken in any case by TiDB, and by others often only as they were given."""
        if self.word(0) == "ALTER" and self.word(1) == "IGNORE":
            self.remove(1, 2)  # which means nothing to TiDB, and lost rows to others
        at = self._place_at() if table else self._database_at()
        if at is None:
            return
        is_missing = not table and self.word(0) == "ALTER" and self.word(at) in _DATABASE_OPTIONS
        if not is_missing:
            self.remove(at, self.name_end(at))
        self.insert(at, f"{quoted(schema)}.{quoted(table)}" if table else quoted(schema))

    def _place_at(self) -> int | None:
        """Where the name of the table stands that the statement alters."""
        if [self.word(0), self.word(1)] == ["ALTER", "TABLE"]:
            return 2
        if self.word(0) == "TRUNCATE":
            return 2 if self.word(1) == "TABLE" else 1
        if self.word(0) in ("CREATE", "DROP") and "INDEX" in (self.word(1), self.word(2)):
            on = next((at for at in range(2, len(self.tokens)) if self.word(at) == "ON"), None)
            return None if on is None else on + 1
        return None

    def _database_at(self) -> int | None:
        if self.word(0) not in ("ALTER", "DROP") or self.word(1) not in ("DATABASE", "SCHEMA"):
            return None
        return 4 if [self.word(2), self.word(3)] == ["IF", "EXISTS"] else 2

    def name_collations(self) -> None:
        """A character set alone means a collation by default, which is not the same everywhere."""
        for at in range(len(self.tokens) - 1, 0, -1):
            before = at - 1 if self.word(at - 1) != "=" else at - 2
            is_set = self.word(before) == "SET" and self.word(before - 1) in ("CHARACTER", "CHAR")
            collation = _USUAL_COLLATIONS.get(self.tokens[at].text.strip("'\"`").lower())
            if collation is None or not (is_set or self.word(before) == "CHARSET"):
                continue
            begin, end = self.clause(at)
            is_cast = self.word(begin - 1) == "(" and self.word(begin - 2) in ("CAST", "CONVERT")
            if not is_cast and not any(self.word(n) == "COLLATE" for n in range(begin, end)):
                self.insert(at + 1, collation)
                self.insert(at + 1, "COLLATE")

    def drop_default_expressions(self) -> None:
        """``DEFAULT (…)``: every row brings its value."""
        self.sweep([lambda at: self.closing(at + 1) - at if self._is_expression(at) else 0])

    def _is_expression(self, at: int) -> bool:
        return self.word(at) == "DEFAULT" and self.word(at + 1) == "("

    def replace_vectors(self) -> None:
        """A column type VECTOR or VECTOR(n), which stands behind the column's name."""
        at = 1
        while at < len(self.tokens):
            token, before = self.tokens[at], self.tokens[at - 1]
            is_type = token.word == "VECTOR" and (
                before.kind is Kind.NAME or (before.kind is Kind.WORD and before.word not in ("ADD", "CREATE"))
            )
            if is_type and self.word(at + 1) not in ("INDEX", "KEY"):
                end = self.closing(at + 1) if self.word(at + 1) == "(" else at + 1
                self.tokens[at] = Token(Kind.WORD, "LONGTEXT")
                self.remove(at + 1, end)
            at += 1

    def relax_checks(self) -> None:
        """Checks are dropped upstream without a DDL that reaches us, so the downstream must not enforce them."""
        for at in range(len(self.tokens) - 1, -1, -1):
            if self.word(at) == "CHECK" and self.word(at + 1) == "(":
                end = self.closing(at + 1)
                if self.word(end) != "ENFORCED" and self.word(end + 1) != "ENFORCED":
                    self.insert(end, "NOT ENFORCED")

    def widen_latin1(self) -> None:
        """TiDB keeps any character in a latin1 column, where others refuse most: so it is UTF-8 there."""
        for at, token in enumerate(self.tokens):
            before = self.word(at - 1) if self.word(at - 1) != "=" else self.word(at - 2)
            text = token.text.strip("'\"").lower()
            if before in ("CHARSET", "SET") and text == "latin1":
                token.text = "utf8mb4"
            elif before == "COLLATE" and text.startswith("latin1_"):
                token.text = "utf8mb4_bin" if text == "latin1_bin" else "utf8mb4_general_ci"

    def drop_partitioning(self) -> None:
        """``PARTITION BY …``, which is the end of a CREATE TABLE."""
        for at in range(len(self.tokens)):
            if [self.word(at), self.word(at + 1)] == ["PARTITION", "BY"]:
                self.remove(at, len(self.tokens))
                return

    def make_plain(self, columns: Container[str]) -> None:
        """``name type [GENERATED ALWAYS] AS (…) [STORED]`` of these columns, their names in small letters. No row tells
        what a virtual one is: it becomes NULL."""
        for begin, end in self.elements():
            at = self._column_at(begin)
            if at >= end or self.tokens[at].name not in columns:
                continue
            clause = self._generation(at, end)
            if clause < end:
                behind = self.closing(clause + 1)
                is_stored = self.word(behind) in ("STORED", "PERSISTENT")
                if not is_stored:
                    drop_nullness(self, at, end)
                    clause = self._generation(at, end)
                    behind = self.closing(clause + 1)
                behind += self.word(behind) in ("STORED", "VIRTUAL", "PERSISTENT")
                first = clause - 2 if self.word(clause - 1) == "ALWAYS" else clause
                self.remove(first, behind)

    def generated(self) -> tuple[frozenset[str], frozenset[str]]:
        stored, every = set(), set()
        for begin, end in self.elements():
            at, clause = self._column_at(begin), self._generation(begin, end)
            if at < clause < end:
                every.add(self.tokens[at].name)
                if self.word(self.closing(clause + 1)) in ("STORED", "PERSISTENT"):
                    stored.add(self.tokens[at].name)
        return frozenset(stored), frozenset(every)

    def spell_expressions(self, expressions: Mapping[str, str]) -> None:
        """As TiDB understood them: ``a || b`` and ``j->'$.k'`` mean something else to others, or nothing."""
        for begin, end in self.elements():
            at = self._column_at(begin)
            clause = self._generation(at, end)
            if at < end and clause < end and self.tokens[at].name in expressions:
                self.remove(clause + 2, self.closing(clause + 1) - 1)
                for token in reversed(tokens_of(expressions[self.tokens[at].name])):
                    self.tokens.insert(clause + 2, token)
                    self.before.insert(clause + 2, "" if token.word in ("(", ")", ",") else " ")

    def leave_indexes(self, names: Container[str]) -> None:
        """``[UNIQUE] KEY name (…)`` of these names, in a CREATE TABLE."""
        for begin, end in self.elements():
            at = begin + (self.word(begin) == "UNIQUE")
            at += self.word(at) in ("KEY", "INDEX")
            if begin < at < end and self.tokens[at].name in names:
                self.remove_element(begin, end)

    def make_text(self, columns: Container[str]) -> None:
        """``name VARCHAR(n)`` as TEXT, ``VARBINARY(n)`` as BLOB: they do not count against the length of a row."""
        for begin, end in self.elements():
            at = self._column_at(begin)
            kind = {"VARCHAR": "TEXT", "VARBINARY": "BLOB"}.get(self.word(at + 1))
            if at < end and kind is not None and self.tokens[at].name in columns and self.word(at + 2) == "(":
                self.remove(at + 1, self.closing(at + 2))
                self.insert(at + 1, kind)

    def _column_at(self, at: int) -> int:
        """Where the name stands that a column has after the clause which begins at ``at``."""
        is_change = self.word(at) == "CHANGE"
        while self.word(at) in ("ADD", "COLUMN", "MODIFY", "CHANGE"):
            at += 1
        if self.word(at) == "IF":
            at += 3 if self.word(at + 1) == "NOT" else 2
        return at + is_change

    def _generation(self, begin: int, end: int) -> int:
        """Where ``AS (`` stands; ``end``: nowhere."""
        return next((n for n in range(begin, end) if self.word(n) == "AS" and self.word(n + 1) == "("), end)

    def fit_foreign_keys(self, keys: "ForeignKeys") -> None:
        for begin, end in self.elements():
            words = [self.word(n) for n in range(begin, end)]
            if words[:3] == ["DROP", "FOREIGN", "KEY"]:
                at = begin + 3 + (2 if self.word(begin + 3) == "IF" else 0)
                found = keys.dropped(self.tokens[at].name)
                if found is None:
                    self.remove_element(begin, end)
                else:
                    self.tokens[at] = Token(Kind.NAME, quoted(found))
                continue
            if ("FOREIGN", "KEY") not in pairwise(words) or "REFERENCES" not in words:
                continue
            key = begin + words.index("FOREIGN")
            if not keys.are_kept:
                self.remove_element(begin, end)
            elif self.word(key - 2) == "CONSTRAINT":
                name = self.tokens[key - 1]
                self.tokens[key - 1] = Token(Kind.NAME, quoted(keys.added(unquoted(name.text))))
