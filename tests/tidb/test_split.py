"""Where statements end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.tidb.lexer import NO_BACKSLASH_ESCAPES, split_statements


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        pytest.param("select 1", ["select 1"], id="one without a semicolon"),
        pytest.param(" select 1 ;\n", ["select 1"], id="a semicolon at the end is not part of it"),
        pytest.param("select 1;select 2", ["select 1", "select 2"], id="two"),
        pytest.param(";; select 1;;", ["select 1"], id="empty statements are left out"),
        pytest.param("", [], id="nothing"),
        pytest.param("-- only a remark", [], id="a remark is no statement"),
        pytest.param("/* a; b */ ;", [], id="a comment is no statement"),
        pytest.param("select 1; -- done;\n", ["select 1"], id="a remark behind the last one"),
        pytest.param("select 1; # done; \nselect 2", ["select 1", "# done; \nselect 2"], id="a remark before the next"),
        pytest.param("select ';'; select 2", ["select ';'", "select 2"], id="in a string"),
        pytest.param('select ";"; select 2', ['select ";"', "select 2"], id="in a string of double quotes"),
        pytest.param("select `;`; select 2", ["select `;`", "select 2"], id="in a name"),
        pytest.param("select `a``;b`; select 2", ["select `a``;b`", "select 2"], id="in a name with a quoted quote"),
        pytest.param(r"select '\';'; select 2", [r"select '\';'", "select 2"], id="behind an escaped quote"),
        pytest.param("select 'it''s;'; select 2", ["select 'it''s;'", "select 2"], id="behind a doubled quote"),
        pytest.param(r"select '\\'; select 2", [r"select '\\'", "select 2"], id="behind an escaped backslash"),
        pytest.param("select /* ; ' */ 1; select 2", ["select /* ; ' */ 1", "select 2"], id="in a comment"),
        pytest.param("select 1 -- ;'\n; select 2", ["select 1 -- ;'\n", "select 2"], id="in a remark"),
        pytest.param("select 1--1; select 2", ["select 1--1", "select 2"], id="two minus signs are no remark"),
        pytest.param("select 4/2*3; select 2", ["select 4/2*3", "select 2"], id="a slash and a star are no comment"),
        pytest.param("/*!40101 set x=1 */; select 2", ["/*!40101 set x=1 */", "select 2"], id="executed comment"),
        pytest.param(
            "create table t (id int /*T![auto_rand] auto_random */); select 2",
            ["create table t (id int /*T![auto_rand] auto_random */)", "select 2"],
            id="TiDB's comment",
        ),
        pytest.param(
            "/*! select '*/;' */; select 2", ["/*! select '*/;' */", "select 2"], id="string in executed comment"
        ),
        pytest.param("/*! a; b */; select 2", ["/*! a; b */", "select 2"], id="executed comments stay whole"),
        pytest.param("/*! a /* b; */ c; */; x", ["/*! a /* b; */ c; */", "x"], id="comment in an executed comment"),
        pytest.param("select 'abc; select 2", ["select 'abc; select 2"], id="an unclosed string takes the rest"),
        pytest.param("select '\\", ["select '\\"], id="a backslash at the very end"),
        pytest.param("select 1; /* never closed; x", ["select 1"], id="an unclosed comment takes the rest"),
        pytest.param("select 'ü;'; select '語'", ["select 'ü;'", "select '語'"], id="any letters"),
    ],
)
def test_split(sql, statements):
    assert [s.strip() for s in split_statements(sql)] == [s.strip() for s in statements]


def test_without_backslash_escapes_a_backslash_ends_no_string_early():
    assert split_statements(r"select '\'; select 2", NO_BACKSLASH_ESCAPES) == [r"select '\'", "select 2"]


QUOTED = st.text(alphabet="a;'\"`\\#-/* \n", max_size=12)
PIECES = st.one_of(
    st.sampled_from(["select 1", "x", "-1", "/*! y */", "/* ; */ z", "a/b"]),
    QUOTED.map(lambda s: "'" + s.replace("\\", "\\\\").replace("'", "''") + "'"),
    QUOTED.map(lambda s: '"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"'),
    QUOTED.map(lambda s: "`" + s.replace("`", "``") + "`"),
)


@given(st.lists(st.lists(PIECES, min_size=1, max_size=4).map(" ".join), max_size=5))
def test_what_was_joined_comes_apart_again(statements):
    assert split_statements(" ; ".join(statements)) == statements


@given(st.text(alphabet="a;'\"`\\#-/*! \n\x00é", max_size=60))
def test_nothing_is_lost_or_made_up(sql):
    for statement in split_statements(sql):
        assert statement
        assert statement in sql
