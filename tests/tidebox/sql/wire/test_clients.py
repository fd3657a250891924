"""Clients of others, unchanged: PyMySQL, SQLAlchemy, and MariaDB's client program."""

import shutil
import subprocess
from datetime import date, datetime, timedelta
from decimal import Decimal

import pymysql
import pytest
import sqlalchemy
from pymysql.constants import CLIENT, ER

from tests.tidebox.sql.wire.script import DEADLINE_SECONDS
from tidebox.sql.wire.columns import BINARY, NULL_TYPE, Column
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Affected, Rows, Status
from tidemill.model.table import ColumnFlag, ColumnType

EVERY_TYPE = Rows(
    (
        Column("tiny", ColumnType.TINY),
        Column("big", ColumnType.LONGLONG, ColumnFlag.UNSIGNED),
        Column("single", ColumnType.FLOAT),
        Column("double", ColumnType.DOUBLE),
        Column("decimal", ColumnType.NEWDECIMAL, length=12, decimals=2),
        Column("date", ColumnType.DATE),
        Column("datetime", ColumnType.DATETIME, decimals=3),
        Column("time", ColumnType.DURATION),
        Column("year", ColumnType.YEAR),
        Column("text", ColumnType.VARCHAR, length=80),
        Column("blob", ColumnType.BLOB, collation=BINARY),
        Column("bit", ColumnType.BIT, length=9),
        Column("json", ColumnType.JSON),
        Column("enum", ColumnType.ENUM),
        Column("set", ColumnType.SET),
        Column("vector", ColumnType.VECTOR),
        Column("null", NULL_TYPE),
    ),
    [
        (
            -5, 2**64 - 1, 0.5, 1e100, Decimal("-12.30"), date(2026, 2, 3), datetime(2026, 2, 3, 4, 5, 6, 789000),
            timedelta(hours=-30), 2026, "grün", b"\0\xff", 257, '{"a": 1}', "red", "a,b", "[1,2]", None,
        ),
        (None,) * 17,
    ],
)  # fmt: skip
AS_PYTHON = (
    -5, 2**64 - 1, 0.5, 1e100, Decimal("-12.30"), date(2026, 2, 3), datetime(2026, 2, 3, 4, 5, 6, 789000),
    timedelta(hours=-30), 2026, "grün", b"\0\xff", b"\x01\x01", '{"a": 1}', "red", "a,b", "[1,2]", None,
)  # fmt: skip


def connect(server, **more):
    return pymysql.connect(host="127.0.0.1", port=int(server.address.rsplit(":", 1)[1]), user="root", **more)


def test_pymysql_reads_every_type(server, script):
    script.answers["select * from t"] = EVERY_TYPE
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("select * from t")
        assert cursor.fetchall() == (AS_PYTHON, (None,) * 17)
        assert [d[0] for d in cursor.description] == [c.name for c in EVERY_TYPE.columns]


def test_pymysql_writes(server, script):
    script.answers["insert into t values (1, X'ff', 'x')"] = Affected(1, last_insert_id=42)
    with connect(server, database="shop") as connection, connection.cursor() as cursor:
        assert cursor.execute("insert into t values (%s, %s, %s)", (1, b"\xff", "x")) == 1
        assert cursor.lastrowid == 42


def test_pymysql_sees_whether_it_is_in_a_transaction(server, script):
    with connect(server) as connection:
        script.status = Status(is_autocommit=False, is_in_transaction=True)
        connection.ping()
        assert not connection.get_autocommit()
        script.status = Status()
        connection.commit()
        assert connection.get_autocommit()


def test_pymysql_reads_several_results(server, script):
    script.answers.update({"a": Rows((Column("n", ColumnType.LONG),), [(1,)]), "b": Affected(3)})
    with connect(server, client_flag=CLIENT.MULTI_STATEMENTS) as connection, connection.cursor() as cursor:
        cursor.execute("a; b")
        assert cursor.fetchall() == ((1,),)
        assert cursor.nextset()
        assert cursor.rowcount == 3
        assert not cursor.nextset()


def test_pymysql_gets_its_own_kinds_of_errors(server, script):
    script.answers["insert"] = sql_error(Errno.DUP_ENTRY, "1", "t.PRIMARY")
    with connect(server) as connection, connection.cursor() as cursor:
        with pytest.raises(pymysql.err.IntegrityError) as caught:
            cursor.execute("insert")
        assert caught.value.args == (ER.DUP_ENTRY, "Duplicate entry '1' for key 't.PRIMARY'")
        cursor.execute("update")


@pytest.mark.parametrize(("user", "password"), [("root", "secret"), ("bob", "")])
def test_pymysql_is_refused(server, user, password):
    port = int(server.address.rsplit(":", 1)[1])
    with pytest.raises(pymysql.err.OperationalError) as caught:
        pymysql.connect(host="127.0.0.1", port=port, user=user, password=password)
    assert caught.value.args[0] == ER.ACCESS_DENIED_ERROR


def test_sqlalchemy_connects_reads_and_writes(server, script):
    script.answers["SELECT t.id \nFROM t"] = Rows((Column("id", ColumnType.LONGLONG),), [(1,), (2,)])
    script.answers["INSERT INTO t (id) VALUES (3)"] = Affected(1)
    engine = sqlalchemy.create_engine(f"mysql+pymysql://root@{server.address}/shop")
    table = sqlalchemy.Table("t", sqlalchemy.MetaData(), sqlalchemy.Column("id", sqlalchemy.BigInteger))
    try:
        with engine.begin() as connection:
            assert connection.execute(sqlalchemy.select(table)).scalars().all() == [1, 2]
            assert connection.execute(table.insert().values(id=3)).rowcount == 1
    finally:
        engine.dispose()
    assert engine.dialect.server_version_info[:3] == (8, 0, 11)
    assert script.clients[0].is_counting_matches
    assert "COMMIT" in [statement for statement, _ in script.asked]


# MariaDB's client program

PROGRAM = shutil.which("mariadb") or shutil.which("mysql")
needs_program = pytest.mark.skipif(PROGRAM is None, reason="needs MariaDB's client: apt-get install mariadb-client")


def run_program(server, sql: str, *options: str) -> subprocess.CompletedProcess[str]:
    port = server.address.rsplit(":", 1)[1]
    command = [PROGRAM, "--no-defaults", "-h127.0.0.1", f"-P{port}", "-uroot", *options]
    return subprocess.run(
        command, input=sql, capture_output=True, text=True, errors="replace", timeout=DEADLINE_SECONDS, check=False
    )


@needs_program
def test_mariadbs_client_reads_and_writes(server, script):
    script.answers["select * from t"] = EVERY_TYPE
    script.answers["update t"] = Affected(2, info="Rows matched: 2  Changed: 2  Warnings: 0")
    done = run_program(
        server, "select * from t; update t;", "--table", "-vv", "--default-character-set=utf8mb4", "shop"
    )
    assert done.returncode == 0, done.stderr
    assert "| -5 | 18446744073709551615 |" in " ".join(done.stdout.split())
    assert "grün" in done.stdout
    assert "2 rows in set" in done.stdout
    assert "Query OK, 2 rows affected" in done.stdout
    assert "Rows matched: 2  Changed: 2  Warnings: 0" in done.stdout


@needs_program
def test_mariadbs_client_shows_errors_with_number_and_state(server, script):
    script.answers["select * from t"] = sql_error(Errno.NO_SUCH_TABLE, "shop", "t")
    done = run_program(server, "select * from t")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "ERROR 1146 (42S02) at line 1: Table 'shop.t' doesn't exist"


@needs_program
def test_mariadbs_client_changes_database_and_sends_several_statements_at_once(server, script):
    done = run_program(server, "use shop;\ndelimiter //\nfirst; second//\n")
    assert done.returncode == 0, done.stderr
    assert "use shop" in script.events
    assert [s for s, _ in script.asked if s in ("first", "second")] == ["first", "second"]


@needs_program
def test_mariadbs_client_is_refused_with_a_password(server):
    done = run_program(server, "select 1", "-psecret")
    assert done.returncode == 1
    assert "ERROR 1045 (28000): Access denied for user 'root'@'127.0.0.1' (using password: YES)" in done.stderr


@needs_program
def test_mariadbs_client_does_not_send_its_files(server, script, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1\n")
    done = run_program(server, f"load data local infile '{path}' into table t", "--local-infile=1")
    assert "ERROR 3948" in done.stderr
