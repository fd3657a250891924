"""Table rules and column rules, in the syntax of TiDB's tools.

    shop.*   !shop.log   /^s.*/.item   "na.me".`t`   db[0-9].t?

A rule is a pattern for the database and one for the table. The last rule that matches decides; where none
does, the table is out. Regular expressions are RE2's, as everywhere in TiDB's tools.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import FilterError

_REGULAR = re.compile(r"/(?:\\.|[^/])+/")
_QUOTED = {'"': re.compile(r'"(?:""|[^"])+"'), "`": re.compile(r"`(?:``|[^`])+`")}
_CLASS = re.compile(r"\[!?(?:\\[^0-9a-zA-Z]|[^\\\]])+\]")
_PLAIN = re.compile(r"[0-9A-Za-z$_\u0080-\U0010ffff]+")


class Expression:
    """A regular expression in RE2's syntax. Raises FilterError where it is none."""

    def __init__(self, text: str, place: str, *, is_folding: bool = False) -> None:
        self.text = text
        self.is_folding = is_folding
        try:
            self.is_found("")
        except pa.ArrowInvalid as error:
            why = str(error).removeprefix("Invalid regular expression: ")
            raise FilterError(
                f"{place}: the regular expression {text!r} cannot be read: {why}. Write it in RE2's syntax."
            ) from None

    def is_found(self, text: str) -> bool:
        """Whether it matches anywhere in ``text``."""
        found = pc.match_substring_regex(pa.scalar(text, pa.string()), self.text, ignore_case=self.is_folding)
        return bool(found.as_py())


@dataclass(frozen=True)
class Pattern:
    """Matches one name. ``regular`` is an expression that the name must contain."""

    regular: str
    place: str
    is_folding: bool
    matches_all: bool = False

    @cached_property
    def _expression(self) -> Expression:
        return Expression(self.regular, self.place, is_folding=self.is_folding)

    def check(self) -> "Pattern":
        _ = self._expression
        return self

    def matches(self, name: str) -> bool:
        return self.matches_all or self._expression.is_found(name)


@dataclass(frozen=True)
class _Rule:
    schema: Pattern
    table: Pattern
    is_positive: bool


class TableRules:
    """Some rules, of which the last that matches decides. ``place`` says where they stand, for messages."""

    def __init__(self, rules: Sequence[str], place: str, *, case_sensitive: bool = False) -> None:
        read = (_read_rule(text, f"{place}[{i}]", not case_sensitive) for i, text in enumerate(rules))
        self._rules = [rule for rule in read if rule is not None]

    def matches(self, schema: str, table: str) -> bool:
        for rule in reversed(self._rules):
            if rule.schema.matches(schema) and rule.table.matches(table):
                return rule.is_positive
        return False

    def matches_schema(self, schema: str) -> bool:
        """Whether any table of the database may be in: what a DDL of the whole database is judged by."""
        for rule in reversed(self._rules):
            if rule.schema.matches(schema) and (rule.is_positive or rule.table.matches_all):
                return rule.is_positive
        return False


class ColumnRules:
    """As table rules, but each is one pattern, for the name of a column. Case never matters."""

    def __init__(self, rules: Sequence[str], place: str) -> None:
        self._rules: list[tuple[Pattern, bool]] = []
        for i, text in enumerate(rules):
            reader = _Reader(text.strip(" \t"), f"{place}[{i}]", is_folding=True)
            is_positive = not reader.take("!")
            self._rules.append((reader.pattern(ends_at_dot=False), is_positive))
            reader.expect_end("the column's pattern")

    def matches(self, column: str) -> bool:
        for pattern, is_positive in reversed(self._rules):
            if pattern.matches(column):
                return is_positive
        return False


def _read_rule(text: str, place: str, is_folding: bool) -> _Rule | None:
    text = text.strip(" \t")
    if not text or text.startswith("#"):
        return None
    if text.startswith("@"):
        raise FilterError(f"{place}: {text!r} would read rules from another file. Write the rules themselves here.")
    reader = _Reader(text, place, is_folding)
    is_positive = not reader.take("!")
    schema = reader.pattern(ends_at_dot=True)
    if not reader.take("."):
        raise reader.error("it lacks the '.' between database and table; for a whole database write 'shop.*'")
    table = reader.pattern(ends_at_dot=False)
    reader.expect_end("the table's pattern")
    return _Rule(schema, table, is_positive)


class _Reader:
    """Reads patterns from the text of one rule."""

    def __init__(self, text: str, place: str, is_folding: bool) -> None:
        self._text = text
        self._at = 0
        self._place = place
        self._is_folding = is_folding

    def error(self, why: str) -> FilterError:
        return FilterError(
            f"{self._place}: the rule {self._text!r} cannot be read: {why}. "
            "Put names with other characters than letters, digits, '$' and '_' in backquotes."
        )

    def take(self, char: str) -> bool:
        if self._text.startswith(char, self._at):
            self._at += len(char)
            return True
        return False

    def expect_end(self, after: str) -> None:
        if self._at != len(self._text):
            raise self.error(f"{self._text[self._at :]!r} stands after {after}")

    def pattern(self, *, ends_at_dot: bool) -> Pattern:
        rest = self._text[self._at :]
        if not rest:
            raise self.error("a pattern is missing at its end")
        if rest[0] == "/":
            return self._made(self._cut(_REGULAR, "the regular expression has no closing '/'")[1:-1])
        if rest[0] in _QUOTED:
            quote = rest[0]
            name = self._cut(_QUOTED[quote], "the quoted name is empty or not closed")[1:-1]
            return self._made(_exactly(re.escape(name.replace(quote * 2, quote))))
        return self._wildcards(ends_at_dot)

    def _wildcards(self, ends_at_dot: bool) -> Pattern:
        parts, begin = [], self._at
        while self._at < len(self._text):
            char = self._text[self._at]
            plain = _PLAIN.match(self._text, self._at)
            if plain:
                parts.append(re.escape(plain[0]))
                self._at = plain.end()
            elif char == "*" or char == "?":
                parts.append(".*" if char == "*" else ".")
                self._at += 1
            elif char == "[":
                parts.append(_class(self._cut(_CLASS, "the character class has no closing ']'")))
            elif char == "\\":
                parts.append(self._escaped())
            elif char == "." and ends_at_dot:
                break
            else:
                raise self.error(f"{char!r} has no meaning here")
        if begin == self._at:
            raise self.error("a pattern is missing")
        return self._made(_exactly("".join(parts)), matches_all=self._text[begin : self._at] == "*")

    def _escaped(self) -> str:
        char = self._text[self._at + 1 : self._at + 2]
        if not char or (char.isascii() and char.isalnum()):
            raise self.error("a backslash must stand before a character that is neither letter nor digit")
        self._at += 2
        return re.escape(char)

    def _cut(self, shape: re.Pattern[str], otherwise: str) -> str:
        found = shape.match(self._text, self._at)
        if found is None:
            raise self.error(otherwise)
        self._at = found.end()
        return found[0]

    def _made(self, regular: str, *, matches_all: bool = False) -> Pattern:
        return Pattern(regular, self._place, self._is_folding, matches_all).check()


def _exactly(regular: str) -> str:
    return f"(?s)^(?:{regular})$"


def _class(text: str) -> str:
    """``[!a-z]`` is ``[^a-z]``."""
    return "[^" + text[2:] if text.startswith("[!") else text
