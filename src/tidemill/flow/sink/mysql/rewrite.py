"""DDL text of TiDB for a MySQL or MariaDB: what only TiDB has is left out, what is spelled otherwise is respelled.

Only words outside strings, quoted names and comments are looked at, and only where the grammar puts such a clause; what
is not known here is sent as it stands, and the server's error tells.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidemill.flow.sink.mysql.session import Downstream, Flavor

_TOKEN = re.compile(
    r"""  (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
        | (?P<name>`(?:[^`]|``)*`)
        | (?P<feature>/\*T!.*?\*/)
        | (?P<space>/\*(?!!).*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*|\s+)
        | (?P<word>[^\W\d][\w$]*|\d[\w$.]*)
        | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)

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
_NUMBER_OPTIONS: Final = ("SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE")
_STRING_OPTIONS: Final = ("TTL_ENABLE", "TTL_JOB_INTERVAL", "AFFINITY")


@dataclass(slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind in ("word", "sign") else ""


def rewritten(query: str, downstream: Downstream, *, has_vectors: bool, has_primary_key: bool = True) -> str:
    """``query`` as the downstream takes it; empty if nothing of it is left to do there. ``has_primary_key``: rows of
    the table are told apart without its unique indexes."""
    if downstream.flavor is Flavor.TIDB:
        return _Text(query).without_vectors() if not has_vectors else query
    text = _Text(query, keeps_features=False)
    if has_primary_key:
        text.weaken_global_indexes()
    text.drop_tidb_clauses()
    text.replace_vectors()
    if downstream.flavor is Flavor.MARIADB:
        text.respell_for_mariadb(downstream.version)
    else:
        text.relax_checks()
    return text.result()


class _Text:
    """The tokens that mean something; white space is kept before each."""

    def __init__(self, query: str, *, keeps_features: bool = True) -> None:
        self._tokens: list[_Token] = []
        self._before: list[str] = []
        space = ""
        for found in _TOKEN.finditer(query):
            kind, text = found.lastgroup or "sign", found.group()
            if kind == "space" or (kind == "feature" and not keeps_features):
                space += text if kind == "space" else " "
                continue
            self._tokens.append(_Token(kind, text))
            self._before.append(space)
            space = ""

    def without_vectors(self) -> str:
        self.replace_vectors()
        return self.result()

    def result(self) -> str:
        self._tidy()
        text = "".join(b + t.text for b, t in zip(self._before, self._tokens, strict=True)).strip().rstrip(";").strip()
        words = [token.word for token in self._tokens if token.word != ";"]
        is_empty_alter = words[:2] == ["ALTER", "TABLE"] and len(self._tokens) <= self._name_end(2)
        return "" if is_empty_alter else text

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
            ]
        )

    def weaken_global_indexes(self) -> None:
        """``UNIQUE [KEY] [name] (…) GLOBAL`` spans partitions, which others cannot: it becomes a plain index."""
        for at in range(len(self._tokens)):
            if not self._global_index(at):
                continue
            begin = self._opening(at - 1) if self._word(at - 1) == ")" else at
            unique = next((n for n in range(begin - 1, -1, -1) if self._word(n) in ("UNIQUE", ",", "(", ")")), -1)
            if self._word(unique) == "UNIQUE":
                has_word = self._word(unique + 1) in ("KEY", "INDEX", "GLOBAL")
                self._tokens[unique] = _Token("word", "" if has_word else "KEY")

    def replace_vectors(self) -> None:
        """A column type VECTOR or VECTOR(n), which stands behind the column's name."""
        at = 1
        while at < len(self._tokens):
            token, before = self._tokens[at], self._tokens[at - 1]
            is_type = token.word == "VECTOR" and (
                before.kind == "name" or (before.kind == "word" and before.word not in ("ADD", "CREATE", "("))
            )
            if is_type and self._word(at + 1) not in ("INDEX", "KEY"):
                end = self._closing(at + 1) if self._word(at + 1) == "(" else at + 1
                self._tokens[at] = _Token("word", "LONGTEXT")
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
        self._sweep([self._validation, self._enforcement])
        self._drop_expression_indexes()
        for at in range(len(self._tokens) - 1, -1, -1):
            self._spare_missing_index(at)
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

    def _spare_missing_index(self, at: int) -> None:
        """``DROP INDEX`` of one that was left out above must not take the rest of its statement along."""
        if self._word(at) == "DROP" and self._word(at + 1) in ("INDEX", "KEY") and self._word(at + 2) != "IF":
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

    # Each of these tells how many tokens from ``at`` on are such a clause; 0: none.

    def _clustering(self, at: int) -> int:
        is_behind_key = at > 0 and self._tokens[at - 1].word in (")", "KEY")
        return int(is_behind_key and self._word(at) in ("CLUSTERED", "NONCLUSTERED"))

    def _auto_random(self, at: int) -> int:
        if self._word(at) != "AUTO_RANDOM" or self._word(at - 1) in ("(", ",", "COLUMN"):
            return 0
        return self._closing(at + 1) - at if self._word(at + 1) == "(" else 1

    def _number_option(self, at: int) -> int:
        return self._option(at, _NUMBER_OPTIONS, ("word",))

    def _string_option(self, at: int) -> int:
        return self._option(at, _STRING_OPTIONS, ("string",))

    def _option(self, at: int, names: Sequence[str], kinds: Sequence[str]) -> int:
        if self._word(at) not in names:
            return 0
        end = at + 2 if self._word(at + 1) == "=" else at + 1
        return end + 1 - at if end < len(self._tokens) and self._tokens[end].kind in kinds else 0

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
        return self._closing(at + 2) - at if self._word(at + 1) == "NEXTVAL" and self._word(at + 2) == "(" else 0

    def _global_index(self, at: int) -> int:
        is_behind_index = self._word(at - 1) in (")", "UNIQUE") or (at > 0 and not self._tokens[at - 1].text)
        return int(self._word(at) == "GLOBAL" and is_behind_index)

    def _index_updates(self, at: int) -> int:
        """``UPDATE INDEXES (name GLOBAL, …)`` behind a new partitioning"""
        is_it = [self._word(at + n) for n in range(3)] == ["UPDATE", "INDEXES", "("]
        return self._closing(at + 2) - at if is_it else 0

    def _enforcement(self, at: int) -> int:
        """``[NOT] ENFORCED`` behind a check; sessions do not check anyway."""
        if at == 0 or self._tokens[at - 1].word != ")":
            return 0
        return 2 if [self._word(at), self._word(at + 1)] == ["NOT", "ENFORCED"] else int(self._word(at) == "ENFORCED")

    def _validation(self, at: int) -> int:
        is_it = self._word(at) in ("WITH", "WITHOUT") and self._word(at + 1) == "VALIDATION"
        return 2 if is_it else 0

    # Tokens

    def _sweep(self, rules: Sequence[Callable[[int], int]]) -> None:
        at = 0
        while at < len(self._tokens):
            count = next((n for rule in rules if (n := rule(at))), 0)
            if count:
                self._remove(at, at + count)
            else:
                at += 1

    def _tidy(self) -> None:
        """Commas that stand alone where a clause of an ALTER TABLE was taken out."""
        at = self._name_end(2)
        if [self._word(0), self._word(1), self._word(at)] == ["ALTER", "TABLE", ","]:
            self._remove(at, at + 1)
        at = 0
        while at < len(self._tokens):
            is_alone = self._tokens[at].word == "," and self._word(at + 1) in (",", "", ";")
            if is_alone and (at + 1 >= len(self._tokens) or self._tokens[at + 1].kind == "sign"):
                self._remove(at, at + 1)
            else:
                at += 1

    def _word(self, at: int) -> str:
        return self._tokens[at].word if 0 <= at < len(self._tokens) else ""

    def _insert(self, at: int, text: str) -> None:
        self._tokens.insert(at, _Token("word", text))
        self._before.insert(at, " ")

    def _remove(self, first: int, last: int) -> None:
        del self._tokens[first:last]
        del self._before[first:last]

    def _closing(self, at: int) -> int:
        """Behind the parenthesis that closes the one at ``at``."""
        depth = 0
        while at < len(self._tokens):
            depth += {"(": 1, ")": -1}.get(self._tokens[at].word, 0)
            at += 1
            if depth == 0:
                break
        return at

    def _opening(self, at: int) -> int:
        """The parenthesis that the one at ``at`` closes."""
        depth = 0
        while at > 0:
            depth += {")": 1, "(": -1}.get(self._tokens[at].word, 0)
            if depth == 0:
                break
            at -= 1
        return at

    def _name_end(self, at: int) -> int:
        """Behind a name that may have two parts."""
        return at + 3 if self._word(at + 1) == "." else at + 1
