"""What an expression is for a row, as a real TiDB says; and what is refused."""

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, UNSIGNED, column, table_of
from tests.flow.filter.sample import ANSWERS, EXPRESSIONS, TABLE, image, text
from tidebox.sql.codec import Time
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Settings
from tidebox.sql.compute.scope import NO_COLUMNS, Context
from tidebox.sql.syntax.statements import parse_expression
from tidebox.sql.wire.errors import SqlError
from tidemill.errors import FilterError
from tidemill.flow.filter.expression import Expression
from tidemill.model.row import arrow_schema
from tidemill.model.table import ColumnType

IMAGE = image()
RECORDED: dict[str, Any] = json.loads(ANSWERS.read_text())
PLACE = "filter.event-filters[0].ignore-insert-value-expr"


def computed(expression: str) -> list[int | None]:
    found = Expression(expression, PLACE).compile(TABLE).value.compute(IMAGE)
    values = [found.as_py()] * len(IMAGE) if isinstance(found, pa.Scalar) else found.to_pylist()
    return [None if value is None else int(value) for value in values]


def test_every_expression_of_the_sample_is_recorded() -> None:
    assert list(RECORDED) == list(dict.fromkeys(EXPRESSIONS))


def test_expressions_are_what_tidb_says() -> None:
    expected = {expression: rows for expression, rows in RECORDED.items() if isinstance(rows, list)}
    found = {expression: computed(expression) for expression in expected}
    assert {e: (rows, expected[e]) for e, rows in found.items() if rows != expected[e]} == {}


def test_where_tidb_gives_an_error_so_do_we() -> None:
    failing = [expression for expression, rows in RECORDED.items() if isinstance(rows, str)]
    assert failing
    for expression in failing:
        with pytest.raises(FilterError, match="cannot be computed for a row of table"):
            Expression(expression, PLACE).compile(TABLE).mask(IMAGE)


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        pytest.param("i", [1], id="a number that is exactly 1"),
        pytest.param("u", [1], id="an unsigned number likewise"),
        pytest.param("null", [], id="NULL is not true"),
        pytest.param("5", [], id="another number is not 1"),
        pytest.param("true", [1, 2, 3, 4, 5, 6, 7], id="what is the same for every row"),
        pytest.param("i is null", [4], id="a condition"),
    ],
)
def test_a_row_is_meant_if_the_expression_is_1(expression: str, rows: list[int]) -> None:
    mask = Expression(expression, PLACE).compile(TABLE).mask(IMAGE)
    assert [row for row, is_meant in enumerate(mask, 1) if is_meant] == rows


def test_long_lists_and_chains_are_no_trouble() -> None:
    numbers = [str(number) for number in range(100, 3100)]
    for expression in (
        f"i in ({', '.join(numbers)}, 5)",
        " or ".join(f"i = {n}" for n in [*numbers, "5"]),
        "i = 5 and " + " and ".join(f"i <> {n}" for n in numbers),
    ):
        assert Expression(expression, PLACE).compile(TABLE).mask(IMAGE).tolist() == [False] * 6 + [True]


def test_no_rows_are_no_trouble() -> None:
    for expression in ("i = 1", "s like 'a%'", "u % 2 = 1", "n / 3 > 1", "ci = 'x'", "t > '10:00'", "st = 'a'", "true"):
        assert Expression(expression, PLACE).compile(TABLE).mask(IMAGE.slice(0, 0)).tolist() == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("i =", "cannot be read at its end: expected a column, a literal or a function"),
        ("i b", "cannot be read near 'b': expected an operator or the end"),
        ("(i = 1", "expected '\\)'"),
        ("i = 'x", "a text that is not closed"),
        ("i in (select 1)", "uses subqueries"),
        ("exists (select 1)", "uses subqueries"),
        ("@x = 1", "uses variables"),
        ("i = ?", "uses placeholders"),
        ("i & 1", "uses the operator &"),
        ("~i", "uses the operator ~"),
        ("j->'$.a' = 1", "uses the operator ->"),
        ("cast(i as char) = '1'", "uses the function CAST"),
        ("s collate utf8mb4_bin = 'a'", "uses COLLATE"),
        ("binary s = 'a'", "uses the operator BINARY"),
        ("(i, u) = (1, 2)", "uses rows of several values"),
        ("ts > ts - interval 1 day", "uses intervals"),
        ("i not 1", "expected IN, BETWEEN, LIKE or REGEXP after NOT"),
        ("i is 5", "expected NULL, TRUE or FALSE after IS"),
        ("i = not u", "put it in parentheses"),
        ("where = 1", "'where' is a word of SQL"),
        ("case end", "cannot be read"),
        ("s like 'a' escape 'ab'", "one character in quotes"),
        ("(" * 300 + "i" + ")" * 300, "nested more than 200 deep"),
        ("i = 1; drop table t", "expected an operator or the end"),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_start(expression: str, message: str) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        Expression(expression, PLACE)
    assert str(caught.value).startswith(PLACE)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("qty = 1", "the table has no column 'qty'. It has id, i, u"),
        ("bgi = 1", "no column 'bgi'. Did you mean 'big'"),
        ("other.i = 1", "it names table 'other'"),
        ("j = 1", "a comparison of a JSON"),
        ("n", "a DECIMAL as its result: compare it"),
        ("s", "a text as its result"),
        ("dt", "a DATE as its result"),
        ("i + d", "a floating-point number as its result"),
        ("dt = 'never'", "a date or time compared with 'never', which is none"),
        ("dt = '2021-02-29'", "'2021-02-29', which is none"),
        ("ts = '2020-01-01 25:00:00'", "which is none"),
        ("t = '10:61:00'", "a TIME compared with '10:61:00'"),
        ("dt = s", "compared with a text that is no literal"),
        ("t = dt", "a TIME compared with a DATE"),
        ("dt and i", "a DATE as a condition"),
        ("dt + 1 > 0", "a number made of a DATE"),
        ("s like ci", "LIKE with a pattern that is no text literal"),
        ("s regexp '('", "regular expression '\\('"),
        ("s regexp i", "REGEXP with a pattern"),
        ("now() > ts", "NOW, whose value differs when the same change is read again"),
        ("json_extract(j, '$') = 1", "the function JSON_EXTRACT"),
        ("length(s, i) = 1", "LENGTH with 2 operands"),
        ("length() = 1", "LENGTH with 0 operands"),
        ("left(s, i) = 'a'", "no whole number"),
        ("lower(b) = 'a'", "texts over a binary column"),
        ("if(i, s, n) = 1", "a choice between a"),
        ("i" + " + 1" * 200 + " = 1", "nested more than 150 deep"),
        ("n % 2 = 0", "% of numbers that are not whole"),
        ("big * big * big > 1", "more than 76 digits"),
        ("year(s) = 2020", "YEAR of a text"),
        ("greatest(s, 'a') = 'b'", "GREATEST or LEAST of other things than numbers"),
        ("coalesce(null, null) = 1", "nothing but NULLs"),
        ("i = 0x" + "ff" * 9, "hexadecimal number of more than 8 bytes"),
        ("n = 0." + "1" * 40, "more than 65 digits, or 30"),
    ],
)
def test_what_does_not_fit_the_table_is_refused_with_its_name(expression: str, message: str) -> None:
    parsed = Expression(expression, PLACE)
    with pytest.raises(FilterError, match=message) as caught:
        parsed.compile(TABLE)
    assert str(caught.value).startswith(PLACE)
    assert "shop.t" in str(caught.value)


def test_a_virtual_column_is_in_no_change() -> None:
    table = table_of(
        column("id", ColumnType.LONG, KEY), column("v", ColumnType.LONG, generated_expr="id + 1"), name="t"
    )
    with pytest.raises(FilterError, match="'v' is a virtual generated one"):
        Expression("v = 1", PLACE).compile(table)


def test_a_collation_without_weights_is_refused() -> None:
    table = table_of(column("id", ColumnType.LONG, KEY), text("s", collate="utf8mb4_0900_ai_ci"), name="t")
    with pytest.raises(FilterError, match="a text in collation utf8mb4_0900_ai_ci"):
        Expression("s = 'a'", PLACE).compile(table)


SMALL = table_of(
    column("a", ColumnType.LONGLONG),
    column("b", ColumnType.LONGLONG, UNSIGNED),
    column("c", ColumnType.NEWDECIMAL, flen=12, decimal=3),
    column("d", ColumnType.DOUBLE),
    text("e"),
    name="t",
)
WHOLE = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
ROW = st.fixed_dictionaries(
    {
        "a": st.none() | WHOLE,
        "b": st.none() | st.integers(0, 3) | st.integers(0, 2**64 - 1),
        "c": st.none() | st.decimals(-10, 10, places=3) | st.decimals(-(10**8), 10**8, places=3),
        "d": st.none() | st.sampled_from([0.0, 0.5, -1.0, 2.0, 1e20, 0.1]),
        "e": st.none() | st.text("aAb% 01.-é", max_size=4),
    }
)
LEAF = st.one_of(
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.integers(-3, 3).map(str),
    st.sampled_from(["0.5", "1.250", "1e0", "'a'", "'1'", "''", "' 2x'", "null", "true", "18446744073709551615"]),
)
SIGN = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])
CONDITION = st.recursive(
    st.one_of(
        st.tuples(LEAF, SIGN, LEAF).map(" ".join),
        st.tuples(LEAF, st.sampled_from(["is null", "is not null", "is true", "is not false"])).map(" ".join),
        st.tuples(LEAF, LEAF, LEAF).map(lambda t: f"{t[0]} between {t[1]} and {t[2]}"),
        st.tuples(LEAF, LEAF, LEAF).map(lambda t: f"{t[0]} not in ({t[1]}, {t[2]})"),
        st.sampled_from(["e like 'a%'", "e like '_A'", "e not like '%1%'"]),
        st.tuples(LEAF, st.sampled_from("+-*"), LEAF, SIGN, LEAF).map(" ".join),
    ),
    lambda inner: st.one_of(
        inner.map(lambda c: f"not ({c})"),
        st.tuples(inner, st.sampled_from(["and", "or", "xor"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=4,
)


def one_at_a_time(condition: str, row: dict[str, Any]) -> Any:
    """The embedded TiDB's answer, with the row's values written into the text."""

    def literal(found: re.Match[str]) -> str:
        value = row[found[0]]
        if isinstance(value, str):
            return "'" + value + "'"
        if isinstance(value, float):
            return f"({value!r})" if "e" in repr(value) else f"({value!r}e0)"
        return "null" if value is None else f"({value})"

    spelled = re.sub(r"(?<!')\b[abcde]\b(?!')", literal, condition)
    return Compiler(NO_COLUMNS, Context(Settings(), Time(2024, 1, 1))).compile(parse_expression(spelled)).compute(())


@given(st.lists(ROW, min_size=1, max_size=5), CONDITION)
def test_columns_give_what_rows_give_one_at_a_time(rows: list[dict[str, Any]], condition: str) -> None:
    texts = [{**row, "c": None if row["c"] is None else str(row["c"])} for row in rows]
    batch = pa.RecordBatch.from_pylist(texts, arrow_schema(SMALL))
    found = Expression(condition, PLACE).compile(SMALL).value
    try:
        expected = [one_at_a_time(condition, row) for row in rows]
        values = found.compute(batch)
    except (SqlError, pa.ArrowInvalid):
        assume(False)  # a number out of range, which one of them need not come to
    given_rows = [values.as_py()] * len(rows) if isinstance(values, pa.Scalar) else values.to_pylist()
    assert [None if v is None else int(v) for v in given_rows] == expected
