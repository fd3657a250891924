"""Expressions inside definitions (defaults, generated columns), and how TiDB writes them down.

TiDB keeps the text of such an expression in the table's document, printed anew from its syntax tree:
names in back-quotes, keywords and functions in lower case, strings with their character set.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tidebox.sql.parse.cursor import Cursor
from tidemill.tidb.lexer import Kind, digits_as_bytes, quoted


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    charset: str = "utf8mb4"


@dataclass(frozen=True, slots=True)
class Number:
    text: str  # an integer, decimal or float as typed


@dataclass(frozen=True, slots=True)
class Bytes:
    """A hexadecimal or a bit literal."""

    value: bytes
    is_bits: bool
    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    """NULL, TRUE or FALSE."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Name:
    parts: tuple[str, ...]

    @property
    def column(self) -> str:
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Call:
    name: str  # in lower case
    args: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Unary:
    sign: str  # -, +, ~, !, not
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Binary:
    sign: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Test:
    """IN, BETWEEN, LIKE and IS with what they compare to; ``negated`` for their NOT."""

    kind: str  # in, between, like, regexp, is null, is true, is false
    operand: "Expression"
    others: tuple["Expression", ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Case:
    operand: "Expression | None"
    branches: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression | None"


@dataclass(frozen=True, slots=True)
class Cast:
    operand: "Expression"
    target: str  # in lower case, with its length: char(10), signed, decimal(10, 2)


@dataclass(frozen=True, slots=True)
class Grouped:
    inner: "Expression"


Expression: TypeAlias = Text | Number | Bytes | Constant | Name | Call | Unary | Binary | Test | Case | Cast | Grouped

_BINARY = {
    "or": 1, "||": 1, "xor": 2, "and": 3, "&&": 3,
    "=": 5, "<=>": 5, ">=": 5, ">": 5, "<=": 5, "<": 5, "<>": 5, "!=": 5,
    "|": 6, "&": 7, "<<": 8, ">>": 8, "-": 9, "+": 9, "*": 10, "/": 10, "%": 10, "div": 10, "mod": 10, "^": 11,
}  # fmt: skip
_NOT, _COMPARE, _SIGNED = 4, 5, 12
_SPELLED = {"||": "or", "&&": "and", "<>": "!=", "mod": "%"}
_NOW = {
    "CURRENT_TIMESTAMP": "current_timestamp",
    "LOCALTIME": "current_timestamp",
    "LOCALTIMESTAMP": "current_timestamp",
}
_WITHOUT_PARENTHESES = {**_NOW, "CURRENT_DATE": "current_date", "CURRENT_TIME": "current_time"}
_CHARSETS = frozenset({"_utf8mb4", "_utf8", "_latin1", "_ascii", "_binary", "_gbk"})


def parse_expression(cursor: Cursor, power: int = 0) -> Expression:
    left = _prefix(cursor)
    while True:
        sign = cursor.token.text.lower() if cursor.token.kind in (Kind.WORD, Kind.OPERATOR) else ""
        binding = _BINARY.get(sign)
        if binding is not None:
            if binding <= power:
                return left
            cursor.take()
            left = Binary(_SPELLED.get(sign, sign), left, parse_expression(cursor, binding))
        elif power < _COMPARE and (test := _test(cursor, left)) is not None:
            left = test
        else:
            return left


def _test(cursor: Cursor, left: Expression) -> Expression | None:
    if cursor.accept("IS"):
        negated = cursor.accept("NOT")
        what = cursor.one_of("NULL", "TRUE", "FALSE")
        if what is None:
            raise cursor.error()
        return Test(f"is {what.lower()}", left, (), negated)
    negated = cursor.is_word("NOT") and cursor.ahead().upper in ("IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE")
    if negated:
        cursor.take()
    match cursor.one_of("IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE"):
        case "IN":
            return Test("in", left, cursor.listed(lambda: parse_expression(cursor)), negated)
        case "BETWEEN":
            low = parse_expression(cursor, _COMPARE)
            cursor.expect("AND")
            return Test("between", left, (low, parse_expression(cursor, _COMPARE)), negated)
        case "LIKE":
            return Test("like", left, (parse_expression(cursor, _COMPARE),), negated)
        case "REGEXP" | "RLIKE":
            return Test("regexp", left, (parse_expression(cursor, _COMPARE),), negated)
    return None


def _prefix(cursor: Cursor) -> Expression:
    if cursor.accept("NOT"):
        return Unary("not", parse_expression(cursor, _NOT))
    for sign in ("-", "+", "~", "!"):
        if cursor.accept_sign(sign):
            return Unary(sign, parse_expression(cursor, _SIGNED))
    found = _primary(cursor)
    while cursor.token.kind is Kind.OPERATOR and cursor.token.text in ("->", "->>"):
        unquotes = cursor.take().text == "->>"
        found = Call("json_extract", (found, Text(cursor.string())))
        if unquotes:
            found = Call("json_unquote", (found,))
    return found


def _primary(cursor: Cursor) -> Expression:
    token = cursor.token
    match token.kind:
        case Kind.STRING:
            cursor.take()
            return Text(token.text)
        case Kind.INTEGER | Kind.DECIMAL | Kind.FLOAT:
            cursor.take()
            return Number(token.text)
        case Kind.HEX | Kind.BITS:
            cursor.take()
            return Bytes(digits_as_bytes(token), token.kind is Kind.BITS, token.text)
        case Kind.NAME:
            return _name(cursor)
        case Kind.WORD:
            return _word(cursor)
    if cursor.accept_sign("("):
        inner = parse_expression(cursor)
        cursor.expect_sign(")")
        return Grouped(inner)
    raise cursor.error()


def _word(cursor: Cursor) -> Expression:
    word = cursor.token.upper
    if word in ("NULL", "TRUE", "FALSE"):
        cursor.take()
        return Constant({"NULL": None, "TRUE": True, "FALSE": False}[word])
    if word == "CASE":
        return _case(cursor)
    if word in ("CAST", "CONVERT") and cursor.ahead().text == "(":
        return _cast(cursor)
    if word.lower() in _CHARSETS and cursor.ahead().kind is Kind.STRING:
        cursor.take()
        return Text(cursor.string(), word.lower()[1:])
    if word in _WITHOUT_PARENTHESES:
        cursor.take()
        args: tuple[Expression, ...] = ()
        if cursor.accept_sign("(") and not cursor.accept_sign(")"):
            args = (Number(str(cursor.integer())),)
            cursor.expect_sign(")")
        return Call(_WITHOUT_PARENTHESES[word], args)
    if word in ("SELECT", "EXISTS", "INTERVAL", "MATCH", "BINARY"):
        raise cursor.refuse(f"{word} in the expression of a column")
    if cursor.ahead().text == "(" and cursor.ahead().kind is Kind.OPERATOR:
        return _call(cursor)
    return _name(cursor)


def _name(cursor: Cursor) -> Name:
    parts = [cursor.name()]
    while cursor.accept_sign("."):
        parts.append(cursor.name(any_word=True))
    return Name(tuple(parts))


def _call(cursor: Cursor) -> Call:
    name = cursor.take().text.lower()
    cursor.expect_sign("(")
    if cursor.accept_sign(")"):
        return Call("current_timestamp" if name == "now" else name, ())
    cursor.at -= 1
    args = cursor.listed(lambda: parse_expression(cursor))
    return Call("current_timestamp" if name == "now" else name, args)


def _case(cursor: Cursor) -> Case:
    cursor.expect("CASE")
    operand = None if cursor.is_word("WHEN") else parse_expression(cursor)
    branches: list[tuple[Expression, Expression]] = []
    while cursor.accept("WHEN"):
        condition = parse_expression(cursor)
        cursor.expect("THEN")
        branches.append((condition, parse_expression(cursor)))
    otherwise = parse_expression(cursor) if cursor.accept("ELSE") else None
    cursor.expect("END")
    if not branches:
        raise cursor.error()
    return Case(operand, tuple(branches), otherwise)


def _cast(cursor: Cursor) -> Cast:
    word = cursor.take().upper
    cursor.expect_sign("(")
    operand = parse_expression(cursor)
    if word == "CAST":
        cursor.expect("AS")
    else:
        cursor.expect_sign(",")
    target = cursor.take().text.lower()
    if target in ("unsigned", "signed"):
        cursor.one_of("INTEGER", "INT")
    if cursor.is_sign("("):
        target += f"({', '.join(str(n) for n in cursor.listed(cursor.integer))})"
    if cursor.accept("ARRAY"):
        raise cursor.refuse("CAST AS ARRAY (multi-valued index)")
    cursor.expect_sign(")")
    return Cast(operand, target)


def column_names(expression: Expression) -> tuple[str, ...]:
    """The columns it reads, each once, in the order of the text."""
    found: dict[str, None] = {}

    def walk(node: Expression | None) -> None:
        match node:
            case Name():
                found.setdefault(node.column)
            case Call(_, args):
                for arg in args:
                    walk(arg)
            case Unary(_, operand) | Cast(operand, _) | Grouped(operand):
                walk(operand)
            case Binary(_, left, right):
                walk(left)
                walk(right)
            case Test(_, operand, others, _):
                walk(operand)
                for other in others:
                    walk(other)
            case Case(operand, branches, otherwise):
                walk(operand)
                for condition, value in branches:
                    walk(condition)
                    walk(value)
                walk(otherwise)

    walk(expression)
    return tuple(found)


def to_text(node: Expression) -> str:
    """As TiDB prints it into the document of the table."""
    match node:
        case Text(value, charset):
            escaped = value.replace("\\", "\\\\").replace("'", "''")
            return f"_{charset}'{escaped}'"
        case Number(text):
            return text
        case Bytes(value, is_bits, text):
            return f"b'{text}'" if is_bits else f"x'{value.hex()}'"
        case Constant(value):
            return "null" if value is None else "true" if value else "false"
        case Name(parts):
            return quoted(parts[-1])
        case Call(name, args):
            return f"{name}({', '.join(to_text(a) for a in args)})"
        case Unary(sign, operand):
            return f"{'not ' if sign == 'not' else sign}{to_text(operand)}"
        case Binary(sign, left, right):
            return f"{to_text(left)} {sign} {to_text(right)}"
        case Grouped(inner):
            return f"({to_text(inner)})"
        case Cast(operand, target):
            return f"cast({to_text(operand)} as {target})"
        case Test():
            return _test_text(node)
        case Case():
            return _case_text(node)


def _case_text(case: Case) -> str:
    words = ["case"]
    if case.operand is not None:
        words.append(to_text(case.operand))
    for condition, value in case.branches:
        words += ["when", to_text(condition), "then", to_text(value)]
    if case.otherwise is not None:
        words += ["else", to_text(case.otherwise)]
    return " ".join([*words, "end"])


def _test_text(test: Test) -> str:
    left, negation = to_text(test.operand), "not " if test.negated else ""
    others = [to_text(o) for o in test.others]
    match test.kind:
        case "in":
            return f"{left} {negation}in ({','.join(others)})"
        case "between":
            return f"{left} {negation}between {others[0]} and {others[1]}"
        case "like" | "regexp":
            return f"{left} {negation}{test.kind} {others[0]}"
    return f"{left} is {negation}{test.kind.removeprefix('is ')}"
