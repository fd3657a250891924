import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.tidb.lexer import qualified
from tidemill.tidb.statements import is_create_like, merged_statements

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\"), max_size=12)


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        pytest.param("create table a (i int); create table b (i int);", 2, id="as TiDB merges them"),
        pytest.param("create table a (i int)", 1, id="without a semicolon"),
        pytest.param("create table a (s char(3) default ';'); create table `b;` (i int)", 2, id="in strings and names"),
        pytest.param("create table a (s char(3) default 'it''s;' comment \"x\\\";\");", 1, id="behind escaped quotes"),
        pytest.param("create /* ; */ table a -- ; here\n (i int); # ; there", 1, id="in comments"),
        pytest.param(" ; ;", 0, id="nothing"),
    ],
)
def test_semicolons_end_statements_only_where_sql_says_so(text: str, statements: int) -> None:
    assert len(merged_statements(text)) == statements


@given(st.lists(TEXT, min_size=1, max_size=5))
def test_merged_statements_come_apart_as_they_were(comments: list[str]) -> None:
    statements = ["create table t (i int comment '" + c.replace("'", "''") + "')" for c in comments]
    assert merged_statements("; ".join(statements)) == [s + ";" for s in statements]


def test_quotes_in_names_are_doubled() -> None:
    assert qualified("we`ird", "数据") == "`we``ird`.`数据`"


@pytest.mark.parametrize(
    ("query", "is_like"),
    [
        ("create table t like u", True),
        ("CREATE TABLE IF NOT EXISTS `a``b`.`t` LIKE `other`.u", True),
        ("create table t(like u)", True),
        ("create table shop . t\n( like u )", True),
        ("create table t (`like` int)", False),
        ("create table t (likes int)", False),
        ("create table `t like u` (id int)", False),
        ("create table t (v varchar(9) default 'like')", False),
    ],
)
def test_a_table_that_is_made_like_another_is_known_by_its_statement(query: str, is_like: bool) -> None:
    assert is_create_like(query) is is_like
