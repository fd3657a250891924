"""Expressions, by precedence as MySQL has it."""

from decimal import Decimal
from typing import Any, ClassVar, Final

from tidebox.sql.cursor import Cursor, words_in
from tidebox.sql.syntax.calls import CALLS
from tidebox.sql.syntax.tree import (
    AssignVariable,
    Between,
    Binary,
    Bits,
    Call,
    Case,
    Cast,
    Collate,
    Default,
    Exists,
    Expression,
    In,
    Introduced,
    Is,
    Like,
    Literal,
    Name,
    Ordering,
    Parameter,
    Query,
    Row,
    Star,
    Subquery,
    SystemVariable,
    Typed,
    Unary,
    UserVariable,
)
from tidemill.tidb.lexer import Kind, Token, digits_as_bytes, number

# How tightly operators bind; a greater number binds tighter.
_BINARY: Final = {
    "OR": (1, "OR"),
    "||": (1, "OR"),
    "XOR": (2, "XOR"),
    "AND": (3, "AND"),
    "&&": (3, "AND"),
    "=": (6, "="),
    "<=>": (6, "<=>"),
    "<": (6, "<"),
    "<=": (6, "<="),
    ">": (6, ">"),
    ">=": (6, ">="),
    "<>": (6, "<>"),
    "!=": (6, "<>"),
    "|": (7, "|"),
    "&": (8, "&"),
    "<<": (9, "<<"),
    ">>": (9, ">>"),
    "+": (10, "+"),
    "-": (10, "-"),
    "*": (11, "*"),
    "/": (11, "/"),
    "%": (11, "%"),
    "MOD": (11, "%"),
    "DIV": (11, "DIV"),
    "^": (12, "^"),
}
_NOT, _PREDICATE, _SIGN, _COLLATE = 4, 6, 13, 15
_PREDICATES: Final = frozenset({"IS", "NOT", "BETWEEN", "IN", "LIKE", "REGEXP", "RLIKE", "SOUNDS", "MEMBER"})

# Words that cannot be a column's name, so that an expression ends at them.
RESERVED: Final = words_in("""
    ADD ALL ALTER AND AS ASC BETWEEN BY CASE COLLATE CREATE CROSS DELETE DESC DISTINCT DISTINCTROW DIV DROP
    ELSE EXCEPT EXISTS FOR FORCE FROM GROUP HAVING IGNORE IN INDEX INNER INSERT INTERSECT INTERVAL INTO IS
    JOIN KEY LEFT LIKE LIMIT LOCK MOD NATURAL NOT NULL ON OR ORDER OUTER OVER PARTITION PRIMARY PROCEDURE
    REGEXP REPLACE RIGHT RLIKE SELECT SET STRAIGHT_JOIN TABLE THEN UNION UNIQUE UPDATE USE USING VALUES WHEN
    WHERE WINDOW WITH XOR
""")
_UNITS: Final = words_in("""
    MICROSECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR SECOND_MICROSECOND MINUTE_MICROSECOND
    MINUTE_SECOND HOUR_MICROSECOND HOUR_SECOND HOUR_MINUTE DAY_MICROSECOND DAY_SECOND DAY_MINUTE DAY_HOUR
    YEAR_MONTH
""")
_NO_PARENTHESES: Final = words_in("""
    CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP UTC_DATE UTC_TIME UTC_TIMESTAMP
    CURRENT_USER
""")
_CHARSETS: Final = frozenset({"_BINARY", "_UTF8", "_UTF8MB4", "_UTF8MB3", "_LATIN1", "_ASCII", "_GBK"})


class ExpressionParser(Cursor):
    reserved: ClassVar[frozenset[str]] = RESERVED

    def __init__(self, sql: str) -> None:
        super().__init__(sql)
        self.parameter_count = 0

    def string(self) -> str:
        """``'a' 'b'`` is one string."""
        found = super().string()
        while self.token.kind is Kind.STRING:
            found += self.take().text
        return found

    def end(self) -> None:
        self.accept_sign(";")
        super().end()

    def expression(self, least: int = 0) -> Expression:
        left = self._prefix(least)
        while True:
            token = self.tokens[self.at]
            if token.kind is Kind.OPERATOR:
                found = _BINARY.get(token.text)
            elif token.kind is Kind.WORD:
                if token.upper in _PREDICATES:
                    if least > _PREDICATE:
                        return left
                    predicate = self._predicate(left)
                    if predicate is None:
                        return left
                    left = predicate
                    continue
                if token.upper == "COLLATE" and least <= _COLLATE:
                    self.at += 1
                    name = self.string() if self.token.kind is Kind.STRING else self.name(any_word=True)
                    left = Collate(left, name.lower())
                    continue
                found = _BINARY.get(token.upper)
            else:
                return left
            if found is None or found[0] < least:
                return left
            self.at += 1
            binds, operator = found
            if binds == _PREDICATE and self.is_word("ANY", "ALL", "SOME"):
                raise self.refuse("ANY, ALL and SOME")
            right = self.expression(binds + 1)
            left = fold_interval(left, operator, right) if operator in ("+", "-") else Binary(operator, left, right)

    def _prefix(self, least: int) -> Expression:
        token = self.tokens[self.at]
        if token.kind is Kind.OPERATOR:
            match token.text:
                case "-":
                    self.at += 1
                    operand = self.expression(_SIGN)
                    if isinstance(operand, Literal) and type(operand.value) in (int, float, Decimal):
                        return Literal(_negated(operand.value))
                    return Unary("-", operand)
                case "+":
                    self.at += 1
                    return self.expression(_SIGN)
                case "~" | "!":
                    self.at += 1
                    return Unary("NOT" if token.text == "!" else "~", self.expression(_SIGN))
        elif token.kind is Kind.WORD and token.upper == "NOT":
            self.at += 1
            return Unary("NOT", self.expression(_NOT))
        elif token.kind is Kind.WORD and token.upper == "BINARY" and self.ahead().kind is not Kind.OPERATOR:
            self.at += 1
            return Cast(self.expression(_COLLATE), "BINARY")
        return self._suffixed(self._primary(token))

    def _suffixed(self, value: Expression) -> Expression:
        while self.token.kind is Kind.OPERATOR and self.token.text in ("->", "->>"):
            is_unquoted = self.token.text == "->>"
            self.at += 1
            value = Call("JSON_EXTRACT", (value, Literal(self.string())))
            if is_unquoted:
                value = Call("JSON_UNQUOTE", (value,))
        return value

    def _predicate(self, left: Expression) -> Expression | None:
        begin = self.at
        if self.accept("IS"):
            is_negated = self.accept("NOT")
            if self.accept("NULL") or self.accept("UNKNOWN"):
                return Is(left, None, is_negated)
            if self.accept("TRUE"):
                return Is(left, True, is_negated)
            self.expect("FALSE")
            return Is(left, False, is_negated)
        is_negated = self.accept("NOT")
        if self.accept("BETWEEN"):
            low = self.expression(_PREDICATE + 1)
            self.expect("AND")
            return Between(left, low, self.expression(_PREDICATE + 1), is_negated)
        if self.accept("IN"):
            return In(left, self._among(), is_negated)
        if self.accept("LIKE"):
            pattern = self.expression(_PREDICATE + 1)
            escape = self.string() if self.accept("ESCAPE") else "\\"
            return Like(left, pattern, escape, is_negated)
        if self.accept("REGEXP") or self.accept("RLIKE"):
            return Like(left, self.expression(_PREDICATE + 1), "", is_negated, is_regular=True)
        if self.is_word("SOUNDS", "MEMBER"):
            raise self.refuse(self.token.upper)
        self.at = begin
        return None

    def _among(self) -> tuple[Expression, ...] | Query:
        self.expect_sign("(")
        if self.is_word("SELECT", "WITH"):
            query = self.query()
            self.expect_sign(")")
            return query
        items = self.expressions()
        self.expect_sign(")")
        return items

    def expressions(self) -> tuple[Expression, ...]:
        return self.several(self.expression)

    def query(self) -> Query:
        """Reads a SELECT; the statements' own part."""
        raise self.error()

    def _primary(self, token: Token) -> Expression:
        match token.kind:
            case Kind.INTEGER | Kind.DECIMAL | Kind.FLOAT:
                self.at += 1
                return Literal(number(token))
            case Kind.STRING:
                return Literal(self.string())
            case Kind.HEX | Kind.BITS:
                self.at += 1
                return Bits(digits_as_bytes(token))
            case Kind.PARAMETER:
                self.at += 1
                self.parameter_count += 1
                return Parameter(self.parameter_count - 1)
            case Kind.USER_VARIABLE:
                self.at += 1
                if self.accept_sign(":="):
                    return AssignVariable(token.text, self.expression())
                return UserVariable(token.text)
            case Kind.SYSTEM_VARIABLE:
                self.at += 1
                scope, _, name = token.text.rpartition(".")
                return SystemVariable(name, scope)
            case Kind.NAME:
                return self._name()
            case Kind.WORD:
                return self._word(token)
            case Kind.OPERATOR if token.text == "(":
                return self._parenthesis()
            case Kind.OPERATOR if token.text == "*":
                self.at += 1
                return Star()
            case Kind.OPERATOR if token.text == "{":
                return self._braces()
        raise self.error()

    def _braces(self) -> Expression:
        """ODBC's ``{d '2024-01-01'}``."""
        self.at += 1
        kinds = {"D": "DATE", "T": "TIME", "TS": "TIMESTAMP"}
        kind = kinds.get(self.name(any_word=True).upper())
        if kind is None:
            raise self.error()
        value = Typed(kind, self.string())
        self.expect_sign("}")
        return value

    def _parenthesis(self) -> Expression:
        self.at += 1
        if self.is_word("SELECT", "WITH"):
            query = self.query()
            self.expect_sign(")")
            return Subquery(query)
        items = self.expressions()
        self.expect_sign(")")
        return items[0] if len(items) == 1 else Row(items)

    def _word(self, token: Token) -> Expression:
        upper, following = token.upper, self.ahead()
        is_call = following.kind is Kind.OPERATOR and following.text == "("
        match upper:
            case "NULL":
                self.at += 1
                return Literal(None)
            case "TRUE" | "FALSE":
                self.at += 1
                return Literal(upper == "TRUE")
            case "CASE":
                return self._case()
            case "EXISTS":
                self.at += 1
                self.expect_sign("(")
                query = self.query()
                self.expect_sign(")")
                return Exists(query)
            case "INTERVAL" if not is_call or self.ahead(2).kind is not Kind.OPERATOR:
                return self._interval()
            case "DEFAULT":
                self.at += 1
                if not self.accept_sign("("):
                    return Default()
                name = self.plain_name()
                self.expect_sign(")")
                return Default(name)
            case "DATE" | "TIME" | "TIMESTAMP" if following.kind is Kind.STRING:
                self.at += 1
                return Typed(upper, self.string())
            case "ROW" if is_call:
                self.at += 1
                self.expect_sign("(")
                items = self.expressions()
                self.expect_sign(")")
                return Row(items)
            case _ if upper in _CHARSETS and following.kind in (Kind.STRING, Kind.HEX, Kind.BITS):
                self.at += 1
                return Introduced(upper[1:].lower(), self._raw())
            case _ if is_call:
                return self._call(upper)
            case _ if upper in _NO_PARENTHESES:
                self.at += 1
                return Call(upper, ())
        return self._name()

    def _name(self) -> Expression:
        parts = [self.name()]
        while self.is_sign("."):
            self.at += 1
            if self.accept_sign("*"):
                return Star(parts[-1], parts[-2] if len(parts) > 1 else "")
            parts.append(self.name(any_word=True))
        if len(parts) > 3:
            raise self.error()
        return Name(parts[-1], parts[-2] if len(parts) > 1 else "", parts[0] if len(parts) > 2 else "")

    def plain_name(self) -> Name:
        name = self._name()
        if not isinstance(name, Name):
            raise self.error()
        return name

    def _case(self) -> Case:
        self.at += 1
        operand = None if self.is_word("WHEN") else self.expression()
        branches = []
        while self.accept("WHEN"):
            condition = self.expression()
            self.expect("THEN")
            branches.append((condition, self.expression()))
        otherwise = self.expression() if self.accept("ELSE") else None
        self.expect("END")
        if not branches:
            raise self.error()
        return Case(operand, tuple(branches), otherwise)

    def _interval(self) -> Expression:
        """``INTERVAL n unit + moment``; behind a moment it is read with the sum."""
        self.at += 1
        count = self.expression()
        unit = self.unit()
        return Call("INTERVAL", (count,), unit=unit)

    def unit(self) -> str:
        if self.token.kind is not Kind.WORD or self.token.upper not in _UNITS:
            raise self.error()
        self.at += 1
        return self.tokens[self.at - 1].upper

    def _call(self, name: str) -> Expression:
        self.at += 2
        special = CALLS.get(name)
        value = special(self) if special is not None else self._plain_call(name)
        if self.is_word("OVER"):
            raise self.refuse("window functions")
        return value

    def _plain_call(self, name: str) -> Expression:
        is_distinct = self.accept("DISTINCT")
        arguments: tuple[Expression, ...] = ()
        order_by: tuple[Ordering, ...] = ()
        separator = ","
        if not self.is_sign(")"):
            arguments = self.expressions()
        if name == "GROUP_CONCAT":
            if self.accept("ORDER", "BY"):
                order_by = self.orderings()
            if self.accept("SEPARATOR"):
                separator = self.string()
        self.expect_sign(")")
        return Call(name, arguments, is_distinct, order_by=order_by, separator=separator)

    def orderings(self) -> tuple[Ordering, ...]:
        found = []
        while True:
            by = self.expression()
            is_descending = self.accept("DESC")
            if not is_descending:
                self.accept("ASC")
            found.append(Ordering(by, is_descending))
            if not self.accept_sign(","):
                return tuple(found)

    def _raw(self) -> bytes:
        token = self.token
        if token.kind is Kind.STRING:
            return self.string().encode("utf-8", "surrogateescape")
        self.at += 1
        return digits_as_bytes(token)


def _negated(number: Any) -> Any:
    """Without rounding, which the minus of a Decimal does."""
    return number.copy_negate() if isinstance(number, Decimal) else -number


def fold_interval(left: Expression, operator: str, right: Expression) -> Expression:
    """``moment ± INTERVAL n unit`` is a call."""
    if isinstance(right, Call) and right.name == "INTERVAL":
        return Call("DATE_ADD" if operator == "+" else "DATE_SUB", (left, right.arguments[0]), unit=right.unit)
    if operator == "+" and isinstance(left, Call) and left.name == "INTERVAL":
        return Call("DATE_ADD", (right, left.arguments[0]), unit=left.unit)
    return Binary(operator, left, right)
