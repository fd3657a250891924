"""SELECT: joins, groups, order, subqueries; the rows are what MySQL gives."""

import pytest

from tidebox.sql.session import SqlSession
from tidebox.sql.wire.errors import SqlError


@pytest.fixture(scope="module")
def shop(nodes):
    session = SqlSession(nodes.nodes[0])
    session.execute("create database shop")
    session.use("shop")
    session.execute(
        "create table p (id int primary key, name varchar(10) collate utf8mb4_general_ci, price decimal(8,2), k int, "
        "key kk (k))"
    )
    fruit = "(1, 'Apple', 1.50, 1), (2, 'pear', 2.25, 1), (3, 'Fig', null, 2), (4, 'apple', 9, 2)"
    session.execute(f"insert into p values {fruit}")
    session.execute("create table o (id int primary key, p int, n int, at date)")
    orders = "(1, 1, 3, '2024-01-01'), (2, 1, 1, '2024-02-01'), (3, 2, 5, null), (4, 9, 1, '2024-03-01')"
    session.execute(f"insert into o values {orders}")
    yield session
    session.close()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select 1", [(1,)]),
        ("select id from p where id = 3", [(3,)]),
        ("select id from p where id in (4, 1, 99)", [(1,), (4,)]),
        ("select id from p where id between 2 and 3", [(2,), (3,)]),
        ("select id from p where id > 1 and id < 4", [(2,), (3,)]),
        ("select id from p where k = 2 and id = 4", [(4,)]),
        ("select id from p where k in (1, 2) and price > 2", [(2,), (4,)]),
        ("select id from p where name = 'APPLE'", [(1,), (4,)]),
        ("select id from p where name like 'a%'", [(1,), (4,)]),
        ("select id from p where price is null", [(3,)]),
        ("select id from p where price = 1.5", [(1,)]),
        ("select id from p where price = '1.50'", [(1,)]),
        ("select id from p where not price > 2", [(1,)]),
        ("select id from o where at > '2024-01-15'", [(2,), (4,)]),
        ("select id, price from p order by price", [(3, None), (1, "1.50"), (2, "2.25"), (4, "9.00")]),
        ("select id from p order by price desc, id limit 2", [(4,), (2,)]),
        ("select id from p order by name, id desc", [(4,), (1,), (3,), (2,)]),
        ("select id from p limit 1, 2", [(2,), (3,)]),
        ("select id from p limit 2 offset 3", [(4,)]),
        ("select distinct k from p", [(1,), (2,)]),
        ("select distinct name from p where id in (1, 4)", [("Apple",)]),
        ("select count(*), count(price), sum(price), avg(price), min(price), max(name) from p",
         [(4, 3, "12.75", "4.250000", "1.50", "pear")]),
        ("select count(distinct name) from p", [(3,)]),
        ("select count(*), sum(price), max(id) from p where id > 100", [(0, None, None)]),
        ("select k, count(*) c from p group by k order by c desc, k", [(1, 2), (2, 2)]),
        ("select name, count(*) from p group by name having count(*) > 1", [("Apple", 2)]),
        ("select k + 1 kk, sum(id) from p group by kk order by 1", [(2, "3"), (3, "7")]),
        ("select group_concat(name order by id desc separator '|') from p", [("apple|Fig|pear|Apple",)]),
        ("select p.id, o.id from p join o on o.p = p.id order by o.id", [(1, 1), (1, 2), (2, 3)]),
        ("select p.id, o.id from p, o where o.p = p.id and o.n > 1", [(1, 1), (2, 3)]),
        ("select p.id, o.n from p left join o on o.p = p.id and o.n > 2 order by p.id",
         [(1, 3), (2, 5), (3, None), (4, None)]),
        ("select o.id, p.name from p right join o on o.p = p.id order by o.id",
         [(1, "Apple"), (2, "Apple"), (3, "pear"), (4, None)]),
        ("select * from (select id, k from p where id < 3) x join o using (id)",
         [(1, 1, 1, 3, "2024-01-01"), (2, 1, 1, 1, "2024-02-01")]),
        ("select p.id from p where exists (select 1 from o where o.p = p.id)", [(1,), (2,)]),
        ("select id from p where id not in (select p from o)", [(3,), (4,)]),
        ("select id, (select count(*) from o where o.p = p.id) from p", [(1, 2), (2, 1), (3, 0), (4, 0)]),
        ("select id from p where price = (select max(price) from p)", [(4,)]),
        ("select t.c from (select count(*) c from o) t", [(4,)]),
        ("select id from p where id = 1 union select id from o where id < 3", [(1,), (2,)]),
        ("select 1 union all select 1", [(1,), (1,)]),
        ("with x as (select id from p where k = 1) select count(*) from x", [(2,)]),
        ("select a.id from p a join p b on a.name = b.name and a.id < b.id", [(1,)]),
        ("select sum(n * price) from o join p on p.id = o.p", [("17.25",)]),
        ("select case when price > 2 then 'dear' else 'cheap' end x, count(*) from p group by x order by x",
         [("cheap", 2), ("dear", 2)]),
    ],
)  # fmt: skip
def test_a_query(shop, query, rows):
    found = shop.execute(query).rows
    assert [tuple(str(v) if type(v).__name__ == "Decimal" else v for v in row) for row in found] == rows


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("select nope from p", 1054),
        ("select id from p, o", 1052),
        ("select * from nope", 1146),
        ("select * from nope.t", 1146),
        ("select (select id from p)", 1242),
        ("select (select id, k from p)", 1241),
        ("select id from p order by 5", 1054),
        ("select id from p limit -1", 1064),
        ("select id, row_number() over () from p", 1235),
        ("select 1 union select 1, 2", 1222),
        ("select id from p where count(*) > 1", 1111),
        ("select *", 1096),
        ("select id from p intersect select 1", 1235),
        ("select id from p for update skip locked", 1235),
        ("with recursive x as (select 1) select * from x", 1235),
        ("select id from p into outfile 'x'", 1235),
        ("select from p", 1064),
    ],
)
def test_what_is_refused(shop, query, number):
    with pytest.raises(SqlError) as caught:
        shop.execute(query)
    assert caught.value.number == number


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("select id, ID, p.id, `id` from p", ["id", "ID", "id", "id"]),
        ("select 1 + 1, count( * ), 'text', price  *  2 from p", ["1 + 1", "count( * )", "text", "price  *  2"]),
        ("select id as x, id 'y z' from p", ["x", "y z"]),
        ("select * from p", ["id", "name", "price", "k"]),
    ],
)
def test_columns_are_called_as_the_query_calls_them(shop, query, names):
    assert [column.name for column in shop.execute(query).columns] == names
