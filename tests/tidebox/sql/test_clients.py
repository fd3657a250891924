"""Clients as they come: the mysql command, PyMySQL and SQLAlchemy create, alter, fill and read tables."""

import shutil
import subprocess
from datetime import date, datetime, timedelta
from decimal import Decimal

import pymysql
import pytest
import sqlalchemy as sa

from tidebox.sql.session import SqlSession
from tidebox.sql.wire.server import SqlServer


@pytest.fixture(scope="module")
def port(nodes):
    server = SqlServer(lambda: SqlSession(nodes.nodes[0]))
    yield int(server.start(0).rpartition(":")[2])
    server.stop()


def test_pymysql_creates_alters_fills_and_reads(port):
    with pymysql.connect(host="127.0.0.1", port=port, user="root", database="test", autocommit=True) as client:
        cursor = client.cursor()
        cursor.execute(
            "create table py (id int primary key auto_increment, t varchar(20), d date, at datetime(3), "
            "n decimal(9,2), f double, l time, b varbinary(5), e enum('x','y'), j json)"
        )
        row = ("é'\"\\", date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4000), Decimal("1.50"), 0.1)
        row += (timedelta(hours=-1), b"\0\xff", "y", '{"a": [1, null]}')
        cursor.executemany("insert into py values (null, %s, %s, %s, %s, %s, %s, %s, %s, %s)", [row, [None] * 9])
        assert cursor.rowcount == 2
        cursor.execute("alter table py add column extra int default 7, add index kt (t)")
        cursor.execute("select * from py")
        assert cursor.fetchall() == ((1, *row, 7), (2, *[None] * 9, 7))
        assert cursor.execute("update py set extra = extra + 1 where t = %s", row[:1]) == 1
        with pytest.raises(pymysql.err.IntegrityError, match="Duplicate entry '1'"):
            cursor.execute("insert into py (id) values (1)")


def test_pymysql_rolls_back(port):
    with pymysql.connect(host="127.0.0.1", port=port, user="root", database="test") as client:
        cursor = client.cursor()
        cursor.execute("create table back (id int primary key)")
        cursor.execute("insert into back values (1)")
        client.rollback()
        cursor.execute("select count(*) from back")
        assert cursor.fetchone() == (0,)


def test_sqlalchemy_makes_tables_and_finds_them_again(port):
    engine = sa.create_engine(f"mysql+pymysql://root@127.0.0.1:{port}/test")
    metadata = sa.MetaData()
    users = sa.Table(
        "sa_users",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.String(30), nullable=False, unique=True),
        sa.Column("born", sa.Date),
        sa.Column("score", sa.Numeric(8, 3), server_default="0"),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(users.insert(), [{"name": "a", "born": date(2000, 1, 1)}, {"name": "c", "born": None}])
        connection.execute(users.insert().values(name="b", score=Decimal("1.5")))
        connection.execute(users.delete().where(users.c.name == "c"))
        found = connection.execute(sa.select(users.c.name, users.c.score).order_by(users.c.name.desc())).all()
        assert found == [("b", Decimal("1.500")), ("a", Decimal("0.000"))]
        connection.execute(users.update().where(users.c.name == "a").values(score=users.c.score + 1))
        assert connection.execute(sa.select(sa.func.sum(users.c.score))).scalar() == Decimal("2.500")
    inspector = sa.inspect(engine)
    assert [column["name"] for column in inspector.get_columns("sa_users")] == ["id", "name", "born", "score"]
    assert inspector.get_pk_constraint("sa_users")["constrained_columns"] == ["id"]
    assert [index["column_names"] for index in inspector.get_indexes("sa_users")] == [["name"]]
    metadata.drop_all(engine)
    assert "sa_users" not in sa.inspect(engine).get_table_names()
    engine.dispose()


@pytest.mark.skipif(shutil.which("mysql") is None, reason="the mysql command is not installed")
def test_the_mysql_command_runs_a_script(port):
    script = """
    create table cli (id int primary key, v varchar(10));
    insert into cli values (1, 'one'), (2, null);
    alter table cli modify column v varchar(20) not null default '';
    delete from cli where v is null;
    alter table cli add column w int default 5;
    select * from cli;
    show create table cli;
    """
    command = ["mysql", "-h", "127.0.0.1", "-P", str(port), "-u", "root", "--force", "test", "-t"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert "ERROR 1265" in done.stderr or "ERROR 1138" in done.stderr  # a NULL is in the way of NOT NULL
    assert "|  1 | one |    5 |" in done.stdout.replace("one  ", "one ")
    assert "CREATE TABLE `cli`" in done.stdout
