"""Errors in MySQL's own words."""

import pickle

import pytest

from tidebox.sql.wire.errors import Errno, SqlError, sql_error


@pytest.mark.parametrize(
    ("errno", "facts", "number", "sqlstate", "message"),
    [
        (Errno.NO_SUCH_TABLE, ("shop", "t"), 1146, "42S02", "Table 'shop.t' doesn't exist"),
        (Errno.DUP_ENTRY, ("1", "t.PRIMARY"), 1062, "23000", "Duplicate entry '1' for key 't.PRIMARY'"),
        (
            Errno.ACCESS_DENIED_ERROR,
            ("x", "h", "YES"),
            1045,
            "28000",
            "Access denied for user 'x'@'h' (using password: YES)",
        ),
        (Errno.NOT_SUPPORTED_YET, ("views",), 1235, "42000", "This version of TiDB doesn't yet support 'views'"),
        (Errno.WRONG_VALUE_COUNT_ON_ROW, (2,), 1136, "21S01", "Column count doesn't match value count at row 2"),
        (Errno.NO_DB_ERROR, (), 1046, "3D000", "No database selected"),
    ],
)
def test_an_error_has_number_state_and_text(errno, facts, number, sqlstate, message):
    error = sql_error(errno, *facts)
    assert (error.number, error.sqlstate, error.message) == (number, sqlstate, message)
    assert str(error) == f"ERROR {number} ({sqlstate}): {message}"


@pytest.mark.parametrize("number", [8022, 8028, 9007])
def test_errors_after_which_a_transaction_may_run_again_carry_tidbs_mark(number):
    assert Errno(number).text.endswith("[try again later]")


@pytest.mark.parametrize("errno", list(Errno), ids=lambda errno: errno.name)
def test_every_state_has_five_letters_and_every_text_takes_its_facts(errno):
    assert len(errno.sqlstate) == 5
    facts = (7,) * errno.text.count("%")
    assert "%" not in sql_error(errno, *facts).message


def test_numbers_are_unique():
    assert len(Errno.__members__) == len(list(Errno))


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(sql_error(Errno.NO_SUCH_TABLE, "a", "b")))
    assert isinstance(error, SqlError)
    assert error.message == "Table 'a.b' doesn't exist"
