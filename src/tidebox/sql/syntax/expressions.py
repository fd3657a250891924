"""Expressions, by precedence as MySQL has it."""

from decimal import Decimal
from typing import Any, Final

from tidebox.sql.syntax.tokens import Kind, Token, tokenize
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
    ValuesOf,
)
from tidebox.sql.wire.errors import Errno, SqlError, sql_error, syntax_error

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
RESERVED: Final = frozenset(
    [
        "ADD",
        "ALL",
        "ALTER",
        "AND",
        "AS",
        "ASC",
        "BETWEEN",
        "BY",
        "CASE",
        "COLLATE",
        "CREATE",
        "CROSS",
        "DELETE",
        "DESC",
        "DISTINCT",
        "DISTINCTROW",
        "DIV",
        "DROP",
        "ELSE",
        "EXCEPT",
        "EXISTS",
        "FOR",
        "FORCE",
        "FROM",
        "GROUP",
        "HAVING",
        "IGNORE",
        "IN",
        "INDEX",
        "INNER",
        "INSERT",
        "INTERSECT",
        "INTERVAL",
        "INTO",
        "IS",
        "JOIN",
        "KEY",
        "LEFT",
        "LIKE",
        "LIMIT",
        "LOCK",
        "MOD",
        "NATURAL",
        "NOT",
        "NULL",
        "ON",
        "OR",
        "ORDER",
        "OUTER",
        "OVER",
        "PARTITION",
        "PRIMARY",
        "PROCEDURE",
        "REGEXP",
        "REPLACE",
        "RIGHT",
        "RLIKE",
        "SELECT",
        "SET",
        "STRAIGHT_JOIN",
        "TABLE",
        "THEN",
        "UNION",
        "UNIQUE",
        "UPDATE",
        "USE",
        "USING",
        "VALUES",
        "WHEN",
        "WHERE",
        "WINDOW",
        "WITH",
        "XOR",
    ]
)
_UNITS: Final = frozenset(
    [
        "MICROSECOND",
        "SECOND",
        "MINUTE",
        "HOUR",
        "DAY",
        "WEEK",
        "MONTH",
        "QUARTER",
        "YEAR",
        "SECOND_MICROSECOND",
        "MINUTE_MICROSECOND",
        "MINUTE_SECOND",
        "HOUR_MICROSECOND",
        "HOUR_SECOND",
        "HOUR_MINUTE",
        "DAY_MICROSECOND",
        "DAY_SECOND",
        "DAY_MINUTE",
        "DAY_HOUR",
        "YEAR_MONTH",
    ]
)
_NO_PARENTHESES: Final = frozenset(
    [
        "CURRENT_DATE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
        "LOCALTIME",
        "LOCALTIMESTAMP",
        "UTC_DATE",
        "UTC_TIME",
        "UTC_TIMESTAMP",
        "CURRENT_USER",
    ]
)
_CHARSETS: Final = frozenset({"_BINARY", "_UTF8", "_UTF8MB4", "_UTF8MB3", "_LATIN1", "_ASCII", "_GBK"})
_CASTS: Final = frozenset(
    [
        "SIGNED",
        "UNSIGNED",
        "CHAR",
        "CHARACTER",
        "BINARY",
        "DECIMAL",
        "DOUBLE",
        "FLOAT",
        "REAL",
        "DATE",
        "DATETIME",
        "TIME",
        "JSON",
        "YEAR",
        "NCHAR",
        "VECTOR",
    ]
)


class ExpressionParser:
    """Reads from a list of tokens. ``at`` is the next one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0
        self.parameter_count = 0

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def is_word(self, *words: str) -> bool:
        token = self.tokens[self.at]
        return token.kind is Kind.WORD and token.upper in words

    def is_operator(self, operator: str) -> bool:
        token = self.tokens[self.at]
        return token.kind is Kind.OPERATOR and token.value == operator

    def take_word(self, *words: str) -> bool:
        """Step over these words if they all stand here."""
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token.kind is not Kind.WORD or token.upper != word:
                return False
        self.at += len(words)
        return True

    def take_operator(self, operator: str) -> bool:
        if self.is_operator(operator):
            self.at += 1
            return True
        return False

    def expect_word(self, *words: str) -> None:
        if not self.take_word(*words):
            raise self.error()

    def expect_operator(self, operator: str) -> None:
        if not self.take_operator(operator):
            raise self.error()

    def expect_end(self) -> None:
        self.take_operator(";")
        if self.token.kind is not Kind.END:
            raise self.error()

    def error(self) -> SqlError:
        return syntax_error(self.text, self.token.start, self.token.end)

    def identifier(self) -> str:
        token = self.token
        if token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.upper not in RESERVED):
            self.at += 1
            return str(token.value)
        raise self.error()

    def any_identifier(self) -> str:
        """Behind a point even a keyword is a name."""
        token = self.token
        if token.kind in (Kind.QUOTED, Kind.WORD):
            self.at += 1
            return str(token.value)
        raise self.error()

    def integer(self) -> int:
        token = self.token
        if token.kind is not Kind.INTEGER:
            raise self.error()
        self.at += 1
        return int(token.value)

    def string(self) -> str:
        token = self.token
        if token.kind is not Kind.STRING:
            raise self.error()
        self.at += 1
        return str(token.value)

    def refuse(self, what: str) -> SqlError:
        return sql_error(Errno.NOT_SUPPORTED_YET, what)

    # By precedence

    def expression(self, least: int = 0) -> Expression:
        left = self._prefix(least)
        while True:
            token = self.tokens[self.at]
            if token.kind is Kind.OPERATOR:
                found = _BINARY.get(str(token.value))
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
                    name = self.string() if self.token.kind is Kind.STRING else self.any_identifier()
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
            match token.value:
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
                    return Unary("NOT" if token.value == "!" else "~", self.expression(_SIGN))
        elif token.kind is Kind.WORD and token.upper == "NOT":
            self.at += 1
            return Unary("NOT", self.expression(_NOT))
        elif token.kind is Kind.WORD and token.upper == "BINARY" and self.peek().kind is not Kind.OPERATOR:
            self.at += 1
            return Cast(self.expression(_COLLATE), "BINARY")
        return self._suffixed(self._primary(token))

    def _suffixed(self, value: Expression) -> Expression:
        while self.token.kind is Kind.OPERATOR and self.token.value in ("->", "->>"):
            is_unquoted = self.token.value == "->>"
            self.at += 1
            value = Call("JSON_EXTRACT", (value, Literal(self.string())))
            if is_unquoted:
                value = Call("JSON_UNQUOTE", (value,))
        return value

    def _predicate(self, left: Expression) -> Expression | None:
        begin = self.at
        if self.take_word("IS"):
            is_negated = self.take_word("NOT")
            if self.take_word("NULL") or self.take_word("UNKNOWN"):
                return Is(left, None, is_negated)
            if self.take_word("TRUE"):
                return Is(left, True, is_negated)
            self.expect_word("FALSE")
            return Is(left, False, is_negated)
        is_negated = self.take_word("NOT")
        if self.take_word("BETWEEN"):
            low = self.expression(_PREDICATE + 1)
            self.expect_word("AND")
            return Between(left, low, self.expression(_PREDICATE + 1), is_negated)
        if self.take_word("IN"):
            return In(left, self._among(), is_negated)
        if self.take_word("LIKE"):
            pattern = self.expression(_PREDICATE + 1)
            escape = self.string() if self.take_word("ESCAPE") else "\\"
            return Like(left, pattern, escape, is_negated)
        if self.take_word("REGEXP") or self.take_word("RLIKE"):
            return Like(left, self.expression(_PREDICATE + 1), "", is_negated, is_regular=True)
        if self.is_word("SOUNDS", "MEMBER"):
            raise self.refuse(self.token.upper)
        self.at = begin
        return None

    def _among(self) -> tuple[Expression, ...] | Query:
        self.expect_operator("(")
        if self.is_word("SELECT", "WITH"):
            query = self.query()
            self.expect_operator(")")
            return query
        items = self.expressions()
        self.expect_operator(")")
        return items

    def expressions(self) -> tuple[Expression, ...]:
        found = [self.expression()]
        while self.take_operator(","):
            found.append(self.expression())
        return tuple(found)

    def query(self) -> Query:
        """Reads a SELECT; the statements' own part."""
        raise self.error()

    # Alone

    def _primary(self, token: Token) -> Expression:
        match token.kind:
            case Kind.INTEGER | Kind.DECIMAL | Kind.FLOAT | Kind.STRING:
                self.at += 1
                return Literal(token.value)  # type: ignore[arg-type]  # those kinds hold no bytes
            case Kind.BITS:
                self.at += 1
                return Bits(bytes(token.value))  # type: ignore[arg-type]  # of this kind
            case Kind.PARAMETER:
                self.at += 1
                self.parameter_count += 1
                return Parameter(self.parameter_count - 1)
            case Kind.USER_VARIABLE:
                self.at += 1
                if self.take_operator(":="):
                    return AssignVariable(str(token.value), self.expression())
                return UserVariable(str(token.value))
            case Kind.SYSTEM_VARIABLE:
                self.at += 1
                scope, _, name = str(token.value).rpartition(".")
                return SystemVariable(name, scope)
            case Kind.QUOTED:
                return self._name()
            case Kind.WORD:
                return self._word(token)
            case Kind.OPERATOR if token.value == "(":
                return self._parenthesis()
            case Kind.OPERATOR if token.value == "*":
                self.at += 1
                return Star()
            case Kind.OPERATOR if token.value == "{":
                return self._braces()
        raise self.error()

    def _braces(self) -> Expression:
        """ODBC's ``{d '2024-01-01'}``."""
        self.at += 1
        kinds = {"D": "DATE", "T": "TIME", "TS": "TIMESTAMP"}
        kind = kinds.get(self.any_identifier().upper())
        if kind is None:
            raise self.error()
        value = Typed(kind, self.string())
        self.expect_operator("}")
        return value

    def _parenthesis(self) -> Expression:
        self.at += 1
        if self.is_word("SELECT", "WITH"):
            query = self.query()
            self.expect_operator(")")
            return Subquery(query)
        items = self.expressions()
        self.expect_operator(")")
        return items[0] if len(items) == 1 else Row(items)

    def _word(self, token: Token) -> Expression:
        upper, following = token.upper, self.peek()
        is_call = following.kind is Kind.OPERATOR and following.value == "("
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
                self.expect_operator("(")
                query = self.query()
                self.expect_operator(")")
                return Exists(query)
            case "INTERVAL" if not is_call or self.peek(2).kind is not Kind.OPERATOR:
                return self._interval()
            case "DEFAULT":
                self.at += 1
                if not self.take_operator("("):
                    return Default()
                name = self._plain_name()
                self.expect_operator(")")
                return Default(name)
            case "DATE" | "TIME" | "TIMESTAMP" if following.kind is Kind.STRING:
                self.at += 1
                return Typed(upper, self.string())
            case "ROW" if is_call:
                self.at += 1
                self.expect_operator("(")
                items = self.expressions()
                self.expect_operator(")")
                return Row(items)
            case _ if upper in _CHARSETS and following.kind in (Kind.STRING, Kind.BITS):
                self.at += 2
                value = following.value
                raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]  # of these kinds
                return Introduced(upper[1:].lower(), raw)
            case _ if is_call:
                return self._call(upper)
            case _ if upper in _NO_PARENTHESES:
                self.at += 1
                return Call(upper, ())
        return self._name()

    def _name(self) -> Expression:
        parts = [self.identifier()]
        while self.is_operator("."):
            self.at += 1
            if self.take_operator("*"):
                return Star(parts[-1], parts[-2] if len(parts) > 1 else "")
            parts.append(self.any_identifier())
        if len(parts) > 3:
            raise self.error()
        return Name(parts[-1], parts[-2] if len(parts) > 1 else "", parts[0] if len(parts) > 2 else "")

    def _plain_name(self) -> Name:
        name = self._name()
        if not isinstance(name, Name):
            raise self.error()
        return name

    def _case(self) -> Case:
        self.at += 1
        operand = None if self.is_word("WHEN") else self.expression()
        branches = []
        while self.take_word("WHEN"):
            condition = self.expression()
            self.expect_word("THEN")
            branches.append((condition, self.expression()))
        otherwise = self.expression() if self.take_word("ELSE") else None
        self.expect_word("END")
        if not branches:
            raise self.error()
        return Case(operand, tuple(branches), otherwise)

    def _interval(self) -> Expression:
        """``INTERVAL n unit + moment``; behind a moment it is read with the sum."""
        self.at += 1
        count = self.expression()
        unit = self._unit()
        return Call("INTERVAL", (count,), unit=unit)

    def _unit(self) -> str:
        if self.token.kind is not Kind.WORD or self.token.upper not in _UNITS:
            raise self.error()
        self.at += 1
        return self.tokens[self.at - 1].upper

    # Calls

    def _call(self, name: str) -> Expression:
        self.at += 2
        special = getattr(self, f"_call_{name.lower()}", None)
        if special is not None:
            value: Expression = special()
        else:
            value = self._plain_call(name)
        if self.is_word("OVER"):
            raise self.refuse("window functions")
        return value

    def _plain_call(self, name: str) -> Expression:
        is_distinct = self.take_word("DISTINCT")
        arguments: tuple[Expression, ...] = ()
        order_by: tuple[Ordering, ...] = ()
        separator = ","
        if not self.is_operator(")"):
            arguments = self.expressions()
        if name == "GROUP_CONCAT":
            if self.take_word("ORDER", "BY"):
                order_by = self.orderings()
            if self.take_word("SEPARATOR"):
                separator = self.string()
        self.expect_operator(")")
        return Call(name, arguments, is_distinct, order_by=order_by, separator=separator)

    def orderings(self) -> tuple[Ordering, ...]:
        found = []
        while True:
            by = self.expression()
            is_descending = self.take_word("DESC")
            if not is_descending:
                self.take_word("ASC")
            found.append(Ordering(by, is_descending))
            if not self.take_operator(","):
                return tuple(found)

    def _call_values(self) -> Expression:
        name = self._plain_name()
        self.expect_operator(")")
        return ValuesOf(name)

    def _call_cast(self) -> Expression:
        operand = self.expression()
        self.expect_word("AS")
        cast = self._cast_type(operand)
        self.expect_operator(")")
        return cast

    def _call_convert(self) -> Expression:
        operand = self.expression()
        if self.take_word("USING"):
            charset = self.any_identifier().lower()
            self.expect_operator(")")
            return Cast(operand, "BINARY" if charset == "binary" else "CHAR")
        self.expect_operator(",")
        cast = self._cast_type(operand)
        self.expect_operator(")")
        return cast

    def _cast_type(self, operand: Expression) -> Cast:
        kind = self.any_identifier().upper()
        if kind not in _CASTS:
            raise self.refuse(f"CAST AS {kind}")
        length = scale = -1
        if self.take_operator("("):
            length = self.integer()
            if self.take_operator(","):
                scale = self.integer()
            self.expect_operator(")")
        if kind in ("SIGNED", "UNSIGNED"):
            self.take_word("INTEGER") or self.take_word("INT")
        if kind in ("CHAR", "CHARACTER"):
            if self.take_word("CHARACTER", "SET") or self.take_word("CHARSET"):
                if self.any_identifier().lower() == "binary":
                    kind = "BINARY"
            elif self.take_word("BINARY"):
                pass
        kind = {"CHARACTER": "CHAR", "NCHAR": "CHAR", "REAL": "DOUBLE"}.get(kind, kind)
        if self.is_word("ARRAY"):
            raise self.refuse("multi-valued indexes")
        return Cast(operand, kind, length, scale)

    def _call_extract(self) -> Expression:
        unit = self._unit()
        self.expect_word("FROM")
        operand = self.expression()
        self.expect_operator(")")
        return Call("EXTRACT", (operand,), unit=unit)

    def _call_date_add(self, name: str = "DATE_ADD") -> Expression:
        moment = self.expression()
        self.expect_operator(",")
        if self.take_word("INTERVAL"):
            count = self.expression()
            unit = self._unit()
        else:
            count, unit = self.expression(), "DAY"
        self.expect_operator(")")
        return Call(name, (moment, count), unit=unit)

    def _call_adddate(self) -> Expression:
        return self._call_date_add()

    def _call_date_sub(self) -> Expression:
        return self._call_date_add("DATE_SUB")

    def _call_subdate(self) -> Expression:
        return self._call_date_add("DATE_SUB")

    def _call_timestampdiff(self, name: str = "TIMESTAMPDIFF") -> Expression:
        unit = self._unit()
        self.expect_operator(",")
        arguments = self.expressions()
        self.expect_operator(")")
        return Call(name, arguments, unit=unit)

    def _call_timestampadd(self) -> Expression:
        return self._call_timestampdiff("TIMESTAMPADD")

    def _call_position(self) -> Expression:
        needle = self.expression(_PREDICATE + 1)
        self.expect_word("IN")
        haystack = self.expression()
        self.expect_operator(")")
        return Call("LOCATE", (needle, haystack))

    def _call_substring(self) -> Expression:
        text = self.expression()
        if self.take_word("FROM"):
            parts = [text, self.expression()]
            if self.take_word("FOR"):
                parts.append(self.expression())
        else:
            self.expect_operator(",")
            parts = [text, *self.expressions()]
        self.expect_operator(")")
        return Call("SUBSTRING", tuple(parts))

    _call_substr = _call_mid = _call_substring

    def _call_trim(self) -> Expression:
        name = "TRIM"
        for side in ("BOTH", "LEADING", "TRAILING"):
            if self.take_word(side):
                name = f"TRIM_{side}"
        if self.take_word("FROM"):
            what: Expression = Literal(" ")
            text = self.expression()
        else:
            first = self.expression()
            if self.take_word("FROM"):
                what, text = first, self.expression()
            else:
                what, text = Literal(" "), first
        self.expect_operator(")")
        return Call("TRIM_BOTH" if name == "TRIM" else name, (text, what))


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
