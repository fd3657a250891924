"""Which names a rule matches; the last that matches decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import FilterError
from tidemill.flow.filter.rules import ColumnRules, TableRules


def rules(*texts: str, case_sensitive: bool = False) -> TableRules:
    return TableRules(texts, "filter.rules", case_sensitive=case_sensitive)


@pytest.mark.parametrize(
    ("texts", "item", "log", "test_a"),
    [
        pytest.param(("*.*", "!test.*"), True, True, False, id="a negative rule takes out"),
        pytest.param(("!test.*", "*.*"), True, True, True, id="a later rule wins"),
        pytest.param(("shop.*", "!shop.log"), True, False, False, id="one table is taken out"),
        pytest.param(("/^s.*/.item",), True, False, False, id="a regular expression for the database"),
        pytest.param((), False, False, False, id="no rule, no table"),
        pytest.param(("# all", "", "  shop.item "), True, False, False, id="comments and blanks are passed over"),
    ],
)
def test_the_last_rule_that_matches_decides(texts: tuple[str, ...], item: bool, log: bool, test_a: bool) -> None:
    found = rules(*texts)
    asked = [("shop", "item"), ("shop", "log"), ("test", "a")]
    assert [found.matches(*names) for names in asked] == [item, log, test_a]


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("db.t*", ["db.t", "db.table"], ["db.xt", "adb.t"]),
        ("db.t?", ["db.t1", "db.tä"], ["db.t", "db.t12"]),
        ("db[0-9].t", ["db0.t", "db9.t"], ["dba.t", "db.t"]),
        ("db[!0-9].t", ["dba.t"], ["db0.t"]),
        ("db.[a\\-z]", ["db.a", "db.-", "db.z"], ["db.b"]),
        ('"na.me".`t``x`', ["na.me|t`x"], ["name|t`x"]),
        ('"a""b".t', ['a"b|t'], ['a""b|t']),
        ("na\\.me.t", ["na.me|t"], ["naxme|t"]),
        ("`*`.t", ["*.t"], ["x.t"]),
        ("/a+/./b/", ["xaay.b", "a.abc"], ["x.b"]),
        (r"/a\/b/.t", ["a/b|t"], ["ab|t"]),
        ("$a_1.été", ["$a_1.été", "$A_1.ÉTÉ"], ["a_1.été"]),
        ("*.*", ["a\nb|c"], []),
    ],
)
def test_what_a_pattern_matches(rule: str, inside: list[str], outside: list[str]) -> None:
    def matches(name: str) -> bool:
        schema, _, table = name.partition("|" if "|" in name else ".")
        return rules(rule).matches(schema, table)

    assert [name for name in inside if not matches(name)] == []
    assert [name for name in outside if matches(name)] == []


def test_case_counts_only_if_asked_for() -> None:
    assert rules("Shop.ITEM", "!/^T/.x").matches("shop", "item")
    assert not rules("*.*", "!/^T/.x").matches("test", "x")
    assert not rules("Shop.ITEM", case_sensitive=True).matches("shop", "item")
    assert rules("*.*", "!/^T/.x", case_sensitive=True).matches("test", "x")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(("shop.item",), True, id="some table of it is in"),
        pytest.param(("*.*", "!shop.*"), False, id="all of its tables are out"),
        pytest.param(("*.*", "!shop.item"), True, id="only one of its tables is out"),
        pytest.param(("test.*",), False, id="none of its tables is in"),
    ],
)
def test_a_database_is_in_if_a_table_of_it_may_be(texts: tuple[str, ...], expected: bool) -> None:
    assert rules(*texts).matches_schema("shop") is expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("shop", "lacks the '.' between database and table"),
        ("shop.", "a pattern is missing at its end"),
        ("!", "a pattern is missing at its end"),
        (".item", "a pattern is missing"),
        ("a.b.c", "'.' has no meaning here"),
        ("a-b.c", "'-' has no meaning here"),
        ("a.`b`c", "'c' stands after the table's pattern"),
        ("a.[bc", "no closing ']'"),
        ("/a.b", "no closing '/'"),
        ("`a.b", "not closed"),
        ('"".b', "empty or not closed"),
        ("a.\\b", "a backslash must stand before"),
        ("a.b\\", "a backslash must stand before"),
        ("/(/.b", "missing \\)"),
        ("/a(?=b)/.c", "invalid perl operator"),
        ("@rules.txt", "would read rules from another file"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_place(rule: str, message: str) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        rules("*.*", rule)
    assert str(caught.value).startswith("filter.rules[1]: ")


@given(st.text('ab.`*?[]\\!/"- é', min_size=1, max_size=6), st.text('ab.`*?[]\\!/"- é', min_size=1, max_size=6))
def test_a_quoted_name_matches_itself_and_nothing_else(name: str, other: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    found = rules(f"{quoted}.{quoted}", case_sensitive=True)
    assert found.matches(name, name)
    assert found.matches(name, other) is (name == other)


@given(st.text(max_size=12))
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    message = ""
    try:
        rules(text).matches("shop", "item")
    except FilterError as error:
        message = str(error)
    assert not message or message.startswith("filter.rules[0]: ")


def test_columns_are_chosen_by_the_last_pattern_that_matches_whatever_the_case() -> None:
    columns = ColumnRules(["*", "!No*", "note2"], "sink.column-selectors[0].columns")
    assert [c for c in ("ID", "note", "Note2", "nothing") if columns.matches(c)] == ["ID", "Note2"]
    with pytest.raises(FilterError, match=r"columns\[0\]: .* '\.b' stands after|'\.' has no meaning"):
        ColumnRules(["a.b"], "sink.column-selectors[0].columns")
