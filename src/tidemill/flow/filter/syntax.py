"""Expressions of event filters, from text to a tree.

    "qty < 0 and sku like 'A%'"  ──►  Operation("AND", (Operation("<", …), Operation("LIKE", …)))

The grammar is that of SQL expressions in MySQL over the columns of one row. What has no meaning for a single row
(subqueries, variables, aggregates) or changes from run to run is refused by name.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NoReturn, TypeAlias

from tidemill.errors import FilterError
from tidemill.tidb.lexer import Kind, MalformedTextError, Token, digits_as_bytes, number, tokens


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    table: str = ""  # as written before the dot
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
    """int, Decimal, float (written with an exponent), str, bytes (hexadecimal and bits), bool, or None for NULL."""

    value: int | Decimal | float | str | bytes | bool | None


@dataclass(frozen=True, slots=True)
class Moment:
    """``DATE '…'``, ``TIME '…'`` or ``TIMESTAMP '…'``."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator or a function, in capitals. CASE: pairs of condition and value, then the value otherwise."""

    name: str
    operands: "tuple[Tree, ...]"
    is_call: bool = False


Tree: TypeAlias = Column | Literal | Moment | Operation

_DEEPEST: Final = 200

# How tightly operators bind. IN, BETWEEN, LIKE and REGEXP stand between comparisons and arithmetic.
_BINDING: Final[dict[str, int]] = {
    "OR": 1, "||": 1, "XOR": 2, "AND": 3, "&&": 3,
    "=": 5, "<=>": 5, "<": 5, "<=": 5, ">": 5, ">=": 5, "<>": 5, "!=": 5, "IS": 5,
    "+": 7, "-": 7, "*": 8, "/": 8, "%": 8, "DIV": 8, "MOD": 8,
}  # fmt: skip
_NOT: Final = 4
_COMPARISON: Final = 5
_PREDICATE: Final = 6
_SIGN: Final = 9
_SPELLED: Final = {"&&": "AND", "||": "OR", "!=": "<>", "MOD": "%"}
_RESERVED: Final = frozenset(
    {
        "AND", "OR", "XOR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "REGEXP", "RLIKE", "DIV", "MOD", "CASE", "WHEN",
        "THEN", "ELSE", "NULL", "TRUE", "FALSE", "SELECT", "EXISTS", "INTERVAL", "BINARY", "COLLATE", "MATCH", "FROM",
        "WHERE",
    }
)  # fmt: skip
_REFUSED: Final = {
    "SELECT": "subqueries",
    "EXISTS": "subqueries",
    "INTERVAL": "intervals",
    "BINARY": "the operator BINARY",
    "MATCH": "MATCH … AGAINST",
    "ROW": "rows of several values",
}


def parse(text: str, place: str) -> Tree:
    """The tree of one expression. Raises FilterError that names ``place``."""
    return _Parser(text, place).whole()


class _Parser:
    def __init__(self, text: str, place: str) -> None:
        self._text = text
        self._place = place
        self._tokens = self._tokenize()
        self._at = 0
        self._depth = 0

    def whole(self) -> Tree:
        tree = self._expression(0)
        if self._now.kind is not Kind.END:
            self._fail("expected an operator or the end")
        return tree

    def _tokenize(self) -> list[Token]:
        try:
            return tokens(self._text)
        except MalformedTextError as e:
            self._fail_at(e.start, "this is no SQL (a text that is not closed?)")

    # Moving along

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._now
        self._at += 1
        return token

    def _take(self, key: str) -> bool:
        if _key(self._now) == key:
            self._at += 1
            return True
        return False

    def _expect(self, key: str) -> None:
        if not self._take(key):
            self._fail(f"expected {key!r}")

    def _fail(self, why: str) -> NoReturn:
        self._fail_at(self._now.start, why)

    def _fail_at(self, at: int, why: str) -> NoReturn:
        rest = self._text[at : at + 20]
        near = f"near {rest!r}" if rest else "at its end"
        raise FilterError(
            f"{self._place}: the expression {self._text!r} cannot be read {near}: {why}. "
            "Write a condition over the table's columns, such as \"qty < 0 and sku = 'x'\"."
        )

    def _refuse(self, what: str) -> NoReturn:
        raise FilterError(
            f"{self._place}: the expression {self._text!r} uses {what}, which filters do not have. "
            "Write it with comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, arithmetic and the functions that the "
            "reference page lists."
        )

    # Grammar

    def _expression(self, least: int) -> Tree:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"it is nested more than {_DEEPEST} deep")
        left = self._prefix(least)
        while True:
            after = self._infix(left, least)
            if after is None:
                self._depth -= 1
                return left
            left = after

    def _prefix(self, least: int) -> Tree:
        if _key(self._now) == "NOT" and least >= _COMPARISON:
            self._fail("NOT binds less than what stands before it; put it in parentheses")
        if self._take("NOT"):
            return Operation("NOT", (self._expression(_NOT),))
        if self._take("!"):
            return Operation("NOT", (self._expression(_SIGN),))
        if self._take("-"):
            return self._negative(self._expression(_SIGN))
        if self._take("+"):
            return self._expression(_SIGN)
        if _key(self._now) == "~":
            self._refuse("the operator ~")
        return self._primary()

    @staticmethod
    def _negative(operand: Tree) -> Tree:
        if isinstance(operand, Literal) and type(operand.value) in (int, Decimal, float):
            return Literal(-operand.value)  # type: ignore[operator]  # one of the three, which all have a negative
        return Operation("NEGATE", (operand,))

    def _infix(self, left: Tree, least: int) -> Tree | None:
        key = _key(self._now)
        if key in ("&", "|", "^", "<<", ">>", "->", "->>", ":=", "COLLATE"):
            self._refuse(key if key == "COLLATE" else f"the operator {key}")
        if key in ("NOT", "IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE"):
            return self._predicate(left) if least < _PREDICATE else None
        binding = _BINDING.get(key, 0)
        if binding <= least:
            return None
        self._at += 1
        if key == "IS":
            return self._is(left)
        return Operation(_SPELLED.get(key, key), (left, self._expression(binding)))

    def _predicate(self, left: Tree) -> Tree:
        is_negated = self._take("NOT")
        match _key(self._next()):
            case "IN":
                found = self._in(left)
            case "BETWEEN":
                low = self._expression(_PREDICATE)
                self._expect("AND")
                found = Operation("BETWEEN", (left, low, self._expression(_COMPARISON)))
            case "LIKE":
                found = self._like(left)
            case "REGEXP" | "RLIKE":
                found = Operation("REGEXP", (left, self._expression(_PREDICATE)))
            case _:
                self._at -= 1
                self._fail("expected IN, BETWEEN, LIKE or REGEXP after NOT")
        return Operation("NOT", (found,)) if is_negated else found

    def _is(self, left: Tree) -> Tree:
        is_negated = self._take("NOT")
        word = _key(self._next())
        if word not in ("NULL", "UNKNOWN", "TRUE", "FALSE"):
            self._at -= 1
            self._fail("expected NULL, TRUE or FALSE after IS")
        found = Operation("IS NULL" if word == "UNKNOWN" else f"IS {word}", (left,))
        return Operation("NOT", (found,)) if is_negated else found

    def _in(self, left: Tree) -> Operation:
        self._expect("(")
        if _key(self._now) == "SELECT":
            self._refuse("subqueries")
        return Operation("IN", (left, *self._list()))

    def _like(self, left: Tree) -> Operation:
        pattern = self._expression(_PREDICATE)
        escape: Tree = Literal("\\")
        if self._take("ESCAPE"):
            escape = self._primary()
            if not isinstance(escape, Literal) or not isinstance(escape.value, str) or len(escape.value) > 1:
                self._fail("expected one character in quotes after ESCAPE")
        return Operation("LIKE", (left, pattern, escape))

    def _list(self) -> tuple[Tree, ...]:
        """Up to and including the closing parenthesis; at least one."""
        items = [self._expression(0)]
        while self._take(","):
            items.append(self._expression(0))
        self._expect(")")
        return tuple(items)

    def _primary(self) -> Tree:
        token = self._next()
        match token.kind:
            case Kind.INTEGER | Kind.DECIMAL | Kind.FLOAT:
                return Literal(number(token))
            case Kind.STRING:
                return Literal(self._texts(token))
            case Kind.HEX | Kind.BITS:
                return Literal(digits_as_bytes(token))
            case Kind.NAME:
                return self._column(token.text)
            case Kind.WORD:
                return self._word(token)
            case Kind.USER_VARIABLE | Kind.SYSTEM_VARIABLE:
                self._refuse("variables")
            case Kind.PARAMETER:
                self._refuse("placeholders")
        if not (token.kind is Kind.OPERATOR and token.text == "("):
            self._at -= 1
            self._fail("expected a column, a literal or a function")
        inner = self._expression(0)
        if _key(self._now) == ",":
            self._refuse("rows of several values")
        self._expect(")")
        return inner

    def _texts(self, token: Token) -> str:
        """Texts that stand side by side are one."""
        parts = [token.text]
        while self._now.kind is Kind.STRING:
            parts.append(self._next().text)
        return "".join(parts)

    def _word(self, token: Token) -> Tree:
        word = _key(token)
        if word in ("TRUE", "FALSE"):
            return Literal(word == "TRUE")
        if word == "NULL":
            return Literal(None)
        if word == "CASE":
            return self._case()
        if word in ("DATE", "TIME", "TIMESTAMP") and self._now.kind is Kind.STRING:
            return Moment(word, self._texts(self._next()))
        if word in _REFUSED and (word != "ROW" or _key(self._now) == "("):
            self._refuse(_REFUSED[word])
        if _key(self._now) == "(" and (word not in _RESERVED or word == "MOD"):
            self._at += 1
            return self._call(word)
        if word in _RESERVED:
            self._at -= 1
            self._fail(f"{token.text!r} is a word of SQL; put it in backquotes if it is a column")
        return self._column(token.text)

    def _column(self, name: str) -> Column:
        parts = [name]
        while len(parts) < 3 and self._take("."):
            token = self._next()
            if token.kind not in (Kind.WORD, Kind.NAME):
                self._at -= 1
                self._fail("expected a name after '.'")
            parts.append(token.text)
        return Column(*reversed(parts))

    def _call(self, name: str) -> Operation:
        if name in ("CAST", "CONVERT", "EXTRACT", "GROUP_CONCAT"):
            self._refuse(f"the function {name}")
        if self._take(")"):
            return Operation(name, (), True)
        if name == "TRIM" and _key(self._now) in ("BOTH", "LEADING", "TRAILING"):
            self._refuse(f"TRIM with {_key(self._now)}")
        if name == "COUNT" and _key(self._now) == "*":
            self._refuse("the function COUNT")
        return Operation(name, self._list(), True)

    def _case(self) -> Operation:
        operand = None if _key(self._now) == "WHEN" else self._expression(0)
        parts: list[Tree] = []
        while self._take("WHEN"):
            condition = self._expression(0)
            parts.append(condition if operand is None else Operation("=", (operand, condition)))
            self._expect("THEN")
            parts.append(self._expression(0))
        if not parts:
            self._fail("expected WHEN")
        parts.append(self._expression(0) if self._take("ELSE") else Literal(None))
        self._expect("END")
        return Operation("CASE", tuple(parts))


def _key(token: Token) -> str:
    """What the grammar looks at: capitals for words, nothing for literals and quoted names."""
    return token.text if token.kind is Kind.OPERATOR else token.upper
