"""Expressions, one row a rule; the right column is what TiDB answers."""

from datetime import timedelta
from decimal import Decimal

import pytest

from tidebox.sql.codec import Time
from tidebox.sql.compute import convert
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Settings
from tidebox.sql.compute.scope import NO_COLUMNS, Context
from tidebox.sql.syntax.statements import parse_expression
from tidebox.sql.wire.errors import SqlError

NOW = Time(2024, 2, 29, 12, 34, 56, 789012)


def compute(text: str, **settings: bool) -> object:
    """A value as text, or None."""
    context = Context(Settings(**settings), NOW)
    computed = Compiler(NO_COLUMNS, context).compile(parse_expression(text))
    value = computed.compute(())
    if value is None:
        return None
    if isinstance(value, Decimal) and computed.type.decimals >= 0:
        value = convert.fixed(value, computed.type.decimals)
    return convert.shown(value, computed.type)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 + 2 * 3", "7"),
        ("7 / 2", "3.5000"),
        ("1 / 3", "0.3333"),
        ("10.5 / 3", "3.50000"),
        ("7 div 2", "3"),
        ("-7 div 2", "-3"),
        ("7 % 3", "1"),
        ("-7 % 3", "-1"),
        ("1 / 0", None),
        ("5 % 0", None),
        ("1.25 + 1", "2.25"),
        ("1e2 + 1", "101"),
        ("'3 apples' + 4", "7"),
        ("0.1 + 0.2", "0.3"),
        ("0.1e0 + 0.2e0", "0.30000000000000004"),
        ("~0", "18446744073709551615"),
        ("1 | 6", "7"),
        ("5 ^ 1", "4"),
        ("1 << 65", "0"),
        ("-(-9223372036854775807)", "9223372036854775807"),
        ("x'41'", b"A"),
        ("x'41' + 0", "65"),
        ("b'101' + 0", "5"),
        ("not 0", "1"),
        ("not null", None),
        ("null and 0", "0"),
        ("null and 1", None),
        ("null or 1", "1"),
        ("1 xor 1", "0"),
        ("null <=> null", "1"),
        ("null = null", None),
        ("1 = '1'", "1"),
        ("'a' = 'a  '", "1"),
        ("'a' = 'A'", "0"),
        ("'a' collate utf8mb4_general_ci = 'A'", "1"),
        ("'abc' < 'abd'", "1"),
        ("2 between 1 and 3", "1"),
        ("2 not between 1 and 3", "0"),
        ("3 in (1, 2, null)", None),
        ("3 not in (1, 2)", "1"),
        ("(1, 2) = (1, 2)", "1"),
        ("(1, 2) < (1, 3)", "1"),
        ("'abc' like 'a%'", "1"),
        ("'abc' like '_b_'", "1"),
        ("'a%c' like 'a\\%c'", "1"),
        ("'ABC' like 'a%'", "0"),
        ("'abc' regexp '^a.c$'", "1"),
        ("null is not null", "0"),
        ("0 is false", "1"),
        ("case 2 when 1 then 'a' when 2 then 'b' end", "b"),
        ("case when null then 1 else 2 end", "2"),
        ("if(null, 1, 2)", "2"),
        ("ifnull(null, 'x')", "x"),
        ("nullif(1, 1)", None),
        ("coalesce(null, null, 3)", "3"),
        ("concat('a', 1, 2.50)", "a12.50"),
        ("concat('a', null)", None),
        ("concat_ws(',', 'a', null, 'b')", "a,b"),
        ("substring('hello', 2, 3)", "ell"),
        ("substring('hello', -3)", "llo"),
        ("left('hello', 2)", "he"),
        ("lpad('5', 3, '0')", "005"),
        ("repeat('ab', 3)", "ababab"),
        ("replace('aXbX', 'X', '-')", "a-b-"),
        ("char_length('é')", "1"),
        ("length('é')", "2"),
        ("upper('é')", "É"),
        ("hex('é')", "C3A9"),
        ("trim(both 'x' from 'xxaxx')", "a"),
        ("locate('l', 'hello')", "3"),
        ("find_in_set('b', 'a,b,c')", "2"),
        ("field('b', 'a', 'b')", "2"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(2.567, 2)", "2.57"),
        ("truncate(2.567, 1)", "2.5"),
        ("floor(-1.5)", "-2"),
        ("abs(-3)", "3"),
        ("greatest(1, 2.5, 2)", "2.5"),
        ("now()", "2024-02-29 12:34:56"),
        ("now(3)", "2024-02-29 12:34:56.789"),
        ("curdate()", "2024-02-29"),
        ("date_add('2024-01-31', interval 1 month)", "2024-02-29"),
        ("date '2024-03-31' - interval 1 month", "2024-02-29"),
        ("timestamp '2024-01-01 00:00:00' + interval 90 minute", "2024-01-01 01:30:00"),
        ("datediff('2024-03-01', '2024-02-01')", "29"),
        ("timestampdiff(month, '2024-01-31', '2024-02-29')", "0"),
        ("year('2024-02-29')", "2024"),
        ("dayofweek('2024-02-29')", "5"),
        ("last_day('2024-02-01')", "2024-02-29"),
        ("date_format('2024-02-29 01:02:03', '%Y/%m/%d %h %p')", "2024/02/29 01 AM"),
        ("unix_timestamp('1970-01-02 00:00:00')", "86400"),
        ("cast('12abc' as signed)", "12"),
        ("cast(-1 as unsigned)", "18446744073709551615"),
        ("cast(1.555 as decimal(5,2))", "1.56"),
        ("cast('2024-02-30' as date)", None),
        ("cast('2024-02-29 12:34:56.789' as datetime(1))", "2024-02-29 12:34:56.8"),
        ("cast('abc' as binary(5))", b"abc\0\0"),
        ("cast('[1, 2]' as json)", "[1, 2]"),
        ("json_extract('{\"a\": [1, 2]}', '$.a[1]')", "2"),
        ("json_unquote(json_extract('{\"a\": \"x\"}', '$.a'))", "x"),
        ("json_set('{\"a\": 1}', '$.b', 2)", '{"a": 1, "b": 2}'),
        ("json_object('k', 1)", '{"k": 1}'),
        ("json_length('[1, 2, 3]')", "3"),
        ("json_type('1.5')", "DOUBLE"),
        ("json_contains('[1, 2]', '2')", "1"),
    ],
)
def test_an_expression(text, shown):
    assert compute(text) == shown


@pytest.mark.parametrize(
    ("text", "number", "message"),
    [
        ("9223372036854775807 + 1", 1690, "BIGINT value is out of range in '(9223372036854775807 + 1)'"),
        ("cast(0 as unsigned) - 1", 1690, "BIGINT UNSIGNED value is out of range"),
        ("1e308 * 10", 1690, "DOUBLE value is out of range"),
        ("nope(1)", 1235, "function NOPE"),
        ("concat()", 1582, "Incorrect parameter count"),
        ("json_extract('{', '$.a')", 3140, "Invalid JSON text"),
        ("json_extract('{}', 'a')", 3143, "Invalid JSON path"),
        ("a + 1", 1054, "Unknown column 'a'"),
        ("date '2024-13-01'", 1292, "Incorrect date value: '2024-13-01'"),
        ("count(1) over ()", 1235, "window functions"),
        ("sum(1)", 1111, "Invalid use of group function"),
        ("(1, 2) = 1", 1241, "Operand should contain 2 column(s)"),
    ],
)
def test_what_is_refused(text, number, message):
    with pytest.raises(SqlError) as caught:
        compute(text)
    assert caught.value.number == number
    assert message in caught.value.message


def test_strict_writing_makes_errors_of_warnings():
    assert compute("'3x' + 1") == "4"
    with pytest.raises(SqlError, match="Truncated incorrect DOUBLE value: '3x'"):
        compute("'3x' + 1", is_writing=True)
    with pytest.raises(SqlError, match="Division by 0"):
        compute("1 / 0", is_writing=True)
    assert compute("1 / 0", is_writing=True, error_for_division=False) is None


def test_decimals_keep_all_their_digits():
    most = "9" * 65
    assert compute(most) == most
    assert compute(f"-{most}") == f"-{most}"
    assert compute(f"{'9' * 35}.{'9' * 30} - 0.{'0' * 29}9") == f"{'9' * 35}.{'9' * 29}0"


def test_a_time_is_a_length():
    context = Context(Settings(), NOW)
    computed = Compiler(NO_COLUMNS, context).compile(parse_expression("cast('-838:59:59' as time)"))
    assert computed.compute(()) == -timedelta(hours=838, minutes=59, seconds=59)
