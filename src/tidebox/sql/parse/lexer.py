"""SQL text into tokens, by MySQL's rules, each with its place.

Comments that TiDB executes (``/*!40101 … */``, ``/*T! … */``, ``/*T![clustered_index] … */``) are read as
what they hold; all others, hints among them, are skipped.
"""

import re
from dataclasses import dataclass
from enum import Enum

from tidebox.sql.wire.errors import syntax_error


class Kind(Enum):
    WORD = "word"  # a keyword or a name without quotes
    NAME = "name"  # a name in back-quotes
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"  # with a point or an exponent
    HEX = "hex"
    BITS = "bits"
    PARAMETER = "parameter"
    VARIABLE = "variable"  # @name and @@name
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str  # names and strings without quotes and escapes; hex and bits: the digits
    start: int
    end: int
    upper: str = ""  # of words


_WORD = re.compile(r"[A-Za-z_\u0080-\uffff\U00010000-\U0010ffff$][\w$\u0080-\uffff\U00010000-\U0010ffff]*")
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DIGIT_WORD = re.compile(r"\d+[A-Za-z_$\u0080-\uffff][\w$\u0080-\uffff]*")
_HEX = re.compile(r"0x([0-9A-Fa-f]+)(?![\w$])")
_BITS = re.compile(r"0b([01]+)(?![\w$])")
_VARIABLE = re.compile(r"@@?(?:[\w$.]+|`[^`]*`|'[^']*'|\"[^\"]*\")?")
_EXECUTED = re.compile(r"/\*(?:!\d{0,6}|T!(?:\[[\w,\s-]*\])?|M!\d{0,6})")
_SIGNS = ("<=>", "->>", "||", "&&", "<<", ">>", "<=", ">=", "<>", "!=", ":=", "->")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def tokenize(sql: str) -> list[Token]:
    """The tokens of ``sql``, the last one of kind END. 1064 where it cannot be read."""
    return _Lexer(sql).run()


class _Lexer:
    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.at = 0
        self.inside = 0  # comments that are executed, and open
        self.tokens: list[Token] = []

    def run(self) -> list[Token]:
        while self._skip():
            self._next()
        self.tokens.append(Token(Kind.END, "", len(self.sql), len(self.sql)))
        return self.tokens

    def _skip(self) -> bool:
        """Go to the next token; False at the end."""
        sql = self.sql
        while self.at < len(sql):
            c = sql[self.at]
            if c.isspace() or c == "\0":
                self.at += 1
            elif self.inside and sql.startswith("*/", self.at):
                self.inside -= 1
                self.at += 2
            elif executed := _EXECUTED.match(sql, self.at):
                self.inside += 1
                self.at = executed.end()
            elif sql.startswith("/*", self.at):
                end = sql.find("*/", self.at + 2)
                if end < 0:
                    raise syntax_error(sql, self.at, len(sql))
                self.at = end + 2
            elif c == "#" or (sql.startswith("--", self.at) and (self.at + 2 == len(sql) or sql[self.at + 2] <= " ")):
                end = sql.find("\n", self.at)
                self.at = len(sql) if end < 0 else end + 1
            else:
                return True
        if self.inside:
            raise syntax_error(sql, len(sql), len(sql))
        return False

    def _next(self) -> None:
        sql, start = self.sql, self.at
        c = sql[start]
        if c in "'\"":
            return self._add(Kind.STRING, self._quoted(c, escapes=True), start)
        if c == "`":
            return self._add(Kind.NAME, self._quoted(c, escapes=False), start)
        if c in "xXbBnN" and sql[start + 1 : start + 2] == "'":
            return self._prefixed(c.lower(), start)
        for kind, pattern in ((Kind.HEX, _HEX), (Kind.BITS, _BITS)):
            if found := pattern.match(sql, start):
                self.at = found.end()
                return self._add(kind, found[1], start)
        if c == "@" and (found := _VARIABLE.match(sql, start)):
            self.at = found.end()
            return self._add(Kind.VARIABLE, found[0], start)
        if c.isdigit() or (c == "." and sql[start + 1 : start + 2].isdigit() and not self._after_name()):
            return self._number(start)
        if found := _WORD.match(sql, start):
            self.at = found.end()
            return self._add(Kind.WORD, found[0], start)
        if c == "?":
            self.at += 1
            return self._add(Kind.PARAMETER, c, start)
        sign = next((s for s in _SIGNS if sql.startswith(s, start)), c)
        if len(sign) == 1 and sign not in "()+-*/%,.;=<>!~^&|:{}[]":
            raise syntax_error(sql, start, start + 1)
        self.at += len(sign)
        return self._add(Kind.SIGN, sign, start)

    def _after_name(self) -> bool:
        """A point right behind a name: ``t.1`` is a column, not a number."""
        return bool(self.tokens) and self.tokens[-1].end == self.at and self.tokens[-1].kind in (Kind.WORD, Kind.NAME)

    def _number(self, start: int) -> None:
        word = _DIGIT_WORD.match(self.sql, start)
        number = _NUMBER.match(self.sql, start)
        if number is None:
            raise syntax_error(self.sql, start, len(self.sql))
        if word and word.end() > number.end():
            self.at = word.end()
            return self._add(Kind.WORD, word[0], start)
        self.at = number.end()
        return self._add(Kind.INTEGER if number[0].isdigit() else Kind.NUMBER, number[0], start)

    def _prefixed(self, prefix: str, start: int) -> None:
        self.at += 1
        text = self._quoted("'", escapes=prefix == "n")
        if prefix == "n":
            return self._add(Kind.STRING, text, start)
        allowed = "0123456789abcdefABCDEF" if prefix == "x" else "01"
        if any(c not in allowed for c in text) or (prefix == "x" and len(text) % 2):
            raise syntax_error(self.sql, start, len(self.sql))
        return self._add(Kind.HEX if prefix == "x" else Kind.BITS, text, start)

    def _quoted(self, quote: str, *, escapes: bool) -> str:
        """The text up to the closing quote, which may stand for itself when doubled."""
        sql, start = self.sql, self.at
        out: list[str] = []
        at = start + 1
        while at < len(sql):
            c = sql[at]
            if c == quote:
                if sql[at + 1 : at + 2] != quote:
                    self.at = at + 1
                    return "".join(out)
                at += 1
            elif c == "\\" and escapes and at + 1 < len(sql):
                at += 1
                c = sql[at]
                # \% and \_ keep their backslash: LIKE wants to see it.
                c = _ESCAPES.get(c, "\\" + c if c in "%_" else c)
            out.append(c)
            at += 1
        raise syntax_error(sql, start, len(sql))

    def _add(self, kind: Kind, text: str, start: int) -> None:
        self.tokens.append(Token(kind, text, start, self.at, text.upper() if kind is Kind.WORD else ""))
