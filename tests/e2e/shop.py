"""SQL of all kinds: rows of every type, keys that change and swap, and the DDLs of the embedded TiDB.

``BEFORE`` is there when a changefeed that copies first begins; ``AFTER`` is what it follows. A statement that holds
``; `` is a transaction of several.
"""

TABLES = [
    "create table shop.people (id bigint primary key auto_increment, mail varchar(40) unique, name varchar(40), n int)",
    "create table shop.kinds (code varchar(8) primary key, b bit(9), d decimal(12, 3), e enum('x', 'y'), f double,"
    " j json, s set('a', 'b'), t datetime(3), u timestamp(6) null, y year, v varbinary(8), w text, unique key (d))",
    "create table shop.numbers (id bigint unsigned primary key, a tinyint, b tinyint unsigned, c smallint, d mediumint,"
    " e int unsigned, f float, g double unsigned, h decimal(65, 30), i bigint, j bool)",
    "create table shop.texts (id int primary key, a char(10), b varchar(200) collate utf8mb4_general_ci, c binary(6),"
    " d tinytext, e mediumtext, f longtext, g tinyblob, h blob, i longblob, k date, l time(3), m datetime, n timestamp"
    " default current_timestamp)",
    "create table shop.pairs (a int, b varchar(10), v int, primary key (a, b), key by_v (v))",
    "create table shop.uniques (id int primary key nonclustered, a int unique, b varchar(10) not null unique, c int)",
    "create table shop.sums (id int primary key, n int, twice int as (n * 2) stored, half int as (n div 2) virtual)",
]
BEFORE = [
    "insert into shop.people (mail, name, n) values ('ada@x', 'ada', 1), ('bob@x', 'bob', 2), ('eve@x', 'eve', 3)",
    "insert into shop.kinds values ('one', b'101', 1.5, 'x', 0.1, '{\"k\": [1, 2.5, null]}', 'a,b',"
    " '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', 2026, x'00ff41', 'line\\nbreak \\\\ quote\\'')",
    "insert into shop.kinds (code) values ('two')",
    "insert into shop.numbers values (0, -128, 0, -32768, -8388608, 0, 0.1, 0, 0, -9223372036854775808, 0),"
    " (18446744073709551615, 127, 255, 32767, 8388607, 4294967295, -3.4e38, 1.7976931348623157e308,"
    " 12345678901234567890123456789012345.123456789012345678901234567891, 9223372036854775807, 1),"
    " (9223372036854775808, null, null, null, null, null, null, null, null, null, null)",
    "insert into shop.texts values (1, 'pad  ', 'Größe 数据 🙂', x'0102', 't', 'm', 'l', x'00', x'27', x'5c',"
    " '1000-01-01', '-838:59:59', '9999-12-31 23:59:59', '1970-01-01 00:00:01'), (2, '', '', '', '', '', '', '', '',"
    " '', '2024-02-29', '00:00:00.001', '2024-02-29 12:00:00', '2038-01-19 03:14:07')",
    "insert into shop.pairs values (1, 'p', 10), (1, 'q', 11), (2, 'p', 20)",
    "insert into shop.uniques values (1, 1, 'a', 0), (2, 2, 'b', 0), (3, 3, 'c', 0), (4, null, 'd', 0)",
    "insert into shop.sums (id, n) values (1, 7), (2, null)",
]
AFTER = [
    "update shop.people set n = n * 10 where id <= 2",
    "BEGIN; update shop.people set mail = 'tmp' where id = 1; update shop.people set mail = 'ada@x' where id = 2;"
    " update shop.people set mail = 'bob@x' where id = 1; COMMIT",  # two unique keys swapped in one transaction
    "BEGIN; update shop.uniques set a = -a, b = concat('_', b) where id <= 3; update shop.uniques set a = 2, b = 'c'"
    " where id = 1; update shop.uniques set a = 3, b = 'a' where id = 2; update shop.uniques set a = 1, b = 'b' where"
    " id = 3; COMMIT",  # two keys of three rows go round
    "BEGIN; delete from shop.uniques where id = 4; insert into shop.uniques values (5, 9, 'd', 1); COMMIT",
    "update shop.pairs set a = 3 where a = 2",  # the key itself
    "update shop.uniques set id = id + 100 where id < 3",
    "BEGIN; update shop.kinds set code = 'zwei' where code = 'two'; insert into shop.kinds (code, w) values"
    " ('two', 'again'); COMMIT",
    "alter table shop.people add column state varchar(8) not null default 'new'",
    "insert into shop.people (mail, name, n, state) values ('dan@x', 'dan', 4, 'old')",
    "delete from shop.kinds where code = 'two'",
    "insert into shop.kinds (code, f, w) values ('three', 1e300, ''), ('four', -0.0, null)",
    "update shop.numbers set f = f * 2, h = h + 0.1, id = 5 where id = 0",
    "update shop.texts set b = upper(b), f = repeat('long ', 20000), l = '12:34:56.789' where id = 1",
    "alter table shop.pairs add index by_b (b), modify column v bigint",
    "update shop.sums set n = 100 where id = 2",
    "alter table shop.people change column name title varchar(60), rename index mail to by_mail",
    "update shop.people set title = concat(title, ' ', title)",
    "create index by_title on shop.people (title)",
    "drop index by_title on shop.people",
    "alter table shop.texts drop column d, add column o json",
    'update shop.texts set o = \'[1, "two", {"three": 3.5}]\' where id = 2',
    "alter table shop.uniques drop index b, add unique key both_ab (a, b), alter column c set default 5",
    "insert into shop.uniques (id, a, b) values (200, 7, 'b')",
    "create table shop.late (id int primary key, v varchar(10))",
    "insert into shop.late values (1, 'a'), (2, 'b'), (3, 'c')",
    "rename table shop.late to shop.later",
    "delete from shop.later where id = 2",
    "truncate table shop.pairs",
    "insert into shop.pairs values (9, 'z', 99)",
    "create table shop.dropped (id int primary key)",
    "insert into shop.dropped values (1)",
    "drop table shop.dropped",
]
LEFT = {"people", "kinds", "numbers", "texts", "pairs", "uniques", "sums", "later"}
