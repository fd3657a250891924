"""Calls with a grammar of their own, such as ``CAST(a AS CHAR(3))``. Each is read from behind its parenthesis."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidebox.sql.cursor import words_in
from tidebox.sql.syntax.tree import Call, Cast, Expression, Literal, ValuesOf

if TYPE_CHECKING:
    from tidebox.sql.syntax.expressions import ExpressionParser

_ABOVE_IN: Final = 7  # what binds tighter than the predicate
_CASTS: Final = words_in("""
    SIGNED UNSIGNED CHAR CHARACTER BINARY DECIMAL DOUBLE FLOAT REAL DATE DATETIME TIME JSON YEAR NCHAR VECTOR
""")


def _values(p: "ExpressionParser") -> Expression:
    name = p.plain_name()
    p.expect_sign(")")
    return ValuesOf(name)


def _cast(p: "ExpressionParser") -> Expression:
    operand = p.expression()
    p.expect("AS")
    cast = _cast_type(p, operand)
    p.expect_sign(")")
    return cast


def _convert(p: "ExpressionParser") -> Expression:
    operand = p.expression()
    if p.accept("USING"):
        charset = p.name(any_word=True).lower()
        p.expect_sign(")")
        return Cast(operand, "BINARY" if charset == "binary" else "CHAR")
    p.expect_sign(",")
    cast = _cast_type(p, operand)
    p.expect_sign(")")
    return cast


def _cast_type(p: "ExpressionParser", operand: Expression) -> Cast:
    kind = p.name(any_word=True).upper()
    if kind not in _CASTS:
        raise p.refuse(f"CAST AS {kind}")
    length = scale = -1
    if p.accept_sign("("):
        length = p.integer()
        if p.accept_sign(","):
            scale = p.integer()
        p.expect_sign(")")
    if kind in ("SIGNED", "UNSIGNED"):
        p.accept("INTEGER") or p.accept("INT")
    if kind in ("CHAR", "CHARACTER"):
        if p.accept("CHARACTER", "SET") or p.accept("CHARSET"):
            if p.name(any_word=True).lower() == "binary":
                kind = "BINARY"
        elif p.accept("BINARY"):
            pass
    kind = {"CHARACTER": "CHAR", "NCHAR": "CHAR", "REAL": "DOUBLE"}.get(kind, kind)
    if p.is_word("ARRAY"):
        raise p.refuse("multi-valued indexes")
    return Cast(operand, kind, length, scale)


def _extract(p: "ExpressionParser") -> Expression:
    unit = p.unit()
    p.expect("FROM")
    operand = p.expression()
    p.expect_sign(")")
    return Call("EXTRACT", (operand,), unit=unit)


def _moment(p: "ExpressionParser", name: str) -> Expression:
    moment = p.expression()
    p.expect_sign(",")
    if p.accept("INTERVAL"):
        count = p.expression()
        unit = p.unit()
    else:
        count, unit = p.expression(), "DAY"
    p.expect_sign(")")
    return Call(name, (moment, count), unit=unit)


def _span(p: "ExpressionParser", name: str) -> Expression:
    unit = p.unit()
    p.expect_sign(",")
    arguments = p.expressions()
    p.expect_sign(")")
    return Call(name, arguments, unit=unit)


def _position(p: "ExpressionParser") -> Expression:
    needle = p.expression(_ABOVE_IN)
    p.expect("IN")
    haystack = p.expression()
    p.expect_sign(")")
    return Call("LOCATE", (needle, haystack))


def _substring(p: "ExpressionParser") -> Expression:
    text = p.expression()
    if p.accept("FROM"):
        parts = [text, p.expression()]
        if p.accept("FOR"):
            parts.append(p.expression())
    else:
        p.expect_sign(",")
        parts = [text, *p.expressions()]
    p.expect_sign(")")
    return Call("SUBSTRING", tuple(parts))


def _trim(p: "ExpressionParser") -> Expression:
    name = "TRIM"
    for side in ("BOTH", "LEADING", "TRAILING"):
        if p.accept(side):
            name = f"TRIM_{side}"
    if p.accept("FROM"):
        what: Expression = Literal(" ")
        text = p.expression()
    else:
        first = p.expression()
        if p.accept("FROM"):
            what, text = first, p.expression()
        else:
            what, text = Literal(" "), first
    p.expect_sign(")")
    return Call("TRIM_BOTH" if name == "TRIM" else name, (text, what))


CALLS: "Final[dict[str, Callable[[ExpressionParser], Expression]]]" = {
    "VALUES": _values,
    "CAST": _cast,
    "CONVERT": _convert,
    "EXTRACT": _extract,
    "DATE_ADD": partial(_moment, name="DATE_ADD"),
    "ADDDATE": partial(_moment, name="DATE_ADD"),
    "DATE_SUB": partial(_moment, name="DATE_SUB"),
    "SUBDATE": partial(_moment, name="DATE_SUB"),
    "TIMESTAMPDIFF": partial(_span, name="TIMESTAMPDIFF"),
    "TIMESTAMPADD": partial(_span, name="TIMESTAMPADD"),
    "POSITION": _position,
    "SUBSTRING": _substring,
    "SUBSTR": _substring,
    "MID": _substring,
    "TRIM": _trim,
}
