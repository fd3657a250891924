"""DDL text for others than TiDB."""

import pytest

from tidemill.sinks.mysql.rewrite import Fit, ForeignKeys, generated_in, rewritten
from tidemill.sinks.mysql.session import Downstream, Flavor

MARIADB = Downstream(Flavor.MARIADB, (10, 11, 6), 16 << 20)
MYSQL = Downstream(Flavor.MYSQL, (8, 0, 36), 16 << 20)


@pytest.mark.parametrize(
    ("downstream", "query", "expected"),
    [
        (MARIADB, "create table t (id bigint primary key clustered)", "create table t (id bigint primary key)"),
        (MYSQL, "create table t (a int, primary key (a) NONCLUSTERED)", "create table t (a int, primary key (a))"),
        (MYSQL, "create table t (clustered int primary key)", "create table t (clustered int primary key)"),
        (MYSQL, "create table t (id bigint primary key auto_random(5, 54), v int)",
         "create table t (id bigint primary key, v int)"),
        (MYSQL, "create table t (a int) shard_row_id_bits = 4 pre_split_regions=2 comment 'shard_row_id_bits = 4'",
         "create table t (a int) comment 'shard_row_id_bits = 4'"),
        (MYSQL, "create table t (a datetime) ttl = `a` + interval 1 year", "create table t (a datetime)"),
        (MYSQL, "create table t (id bigint default next value for s.seq primary key)",
         "create table t (id bigint primary key)"),
        (MYSQL, "create table t (v vector(3), w vector, vector int)",
         "create table t (v LONGTEXT, w LONGTEXT, vector int)"),
        (MYSQL, "create table t (a int, check (a > 0))", "create table t (a int, check (a > 0) NOT ENFORCED)"),
        (MYSQL, "create table t (a int /*T![auto_rand] AUTO_RANDOM(5) */)", "create table t (a int  )"),
        (MARIADB, "alter table t add column c int /*T! default 8 */, add d int /*!80000 default 7 */ /*!50100 unique*/",
         "alter table t add column c int   default 8  , add d int   default 7     unique"),
        (MARIADB, "create table t (a int /*!50100 unique *//*T![auto_rand] AUTO_RANDOM */) /*T! SHARD_ROW_ID_BITS=4 */",
         "create table t (a int   unique   )"),
        (MYSQL, "alter table t placement policy = p", ""),
        (MYSQL, "alter table t placement policy = p, add column b int", "alter table t add column b int"),
        (MYSQL, "alter table d.t add column b int, auto_id_cache 1", "alter table d.t add column b int"),
        (MARIADB, "alter table t alter index i invisible", "alter table t alter index IF EXISTS i IGNORED"),
        (MARIADB, "create table t (a int, key k (a) visible)", "create table t (a int, key k (a) NOT IGNORED)"),
        (MARIADB, "create table t (a text collate utf8mb4_0900_ai_ci)",
         "create table t (a text collate utf8mb4_uca1400_nopad_ai_ci)"),
        (MARIADB, "alter table p exchange partition x with table n without validation",
         "alter table p exchange partition x with table n"),
        (MYSQL, "alter table p exchange partition x with table n without validation",
         "alter table p exchange partition x with table n"),
        (MARIADB, "create table t (a int, check (a > 0) not enforced, constraint c check (a < 9) enforced)",
         "create table t (a int, check (a > 0), constraint c check (a < 9))"),
        (MYSQL, "alter table t partition by hash (a) partitions 2 update indexes (i local, `j` global)",
         "alter table t partition by hash (a) partitions 2"),
        (MYSQL, "create table t (a int, b int, unique key u (b) global, primary key (a)) partition by hash (a)",
         "create table t (a int, b int, unique key u (b), primary key (a)) partition by hash (a)"),
        (MYSQL, "create table t (a int, unique (b) global)", "create table t (a int, unique (b))"),
        (MARIADB, "create unique index u on d.t (b) global", "create unique index u on d.t (b)"),
        (MYSQL, "create table t (a int, b int unique global)", "create table t (a int, b int unique)"),
        (MARIADB, "create table t (a varchar(9) character set latin1, latin1 int) charset=latin1 collate=latin1_bin",
         "create table t (a varchar(9) character set utf8mb4 COLLATE utf8mb4_bin, latin1 int) charset=utf8mb4 "
         "collate=utf8mb4_bin"),
        (MYSQL, "alter table t convert to character set latin1 collate latin1_swedish_ci",
         "alter table t convert to character set utf8mb4 collate utf8mb4_general_ci"),
        (MARIADB, "create table t (a int, key k ((a + 1)), b int, unique key ((lower(c)), a) comment 'x')",
         "create table t (a int, b int)"),
        (MARIADB, "create table t (a int, key m ((cast(j as signed array))))", "create table t (a int)"),
        (MARIADB, "alter table t add index k ((upper(v))), add column b int", "alter table t add column b int"),
        (MARIADB, "alter table t add column b int, add unique index k (a, (b + 1)) invisible",
         "alter table t add column b int"),
        (MARIADB, "alter table t add index k ((a))", ""),
        (MYSQL, "create table t (a int, key `` (a))", "create table t (a int, key (a))"),
        (MARIADB, "create unique index k on d.t ((a + b), c)", ""),
        (MARIADB, "create index k on t (a, b(3))", "create index k on t (a, b(3))"),
        (MYSQL, "alter table t add index k ((upper(v)))", "alter table t add index k ((upper(v)))"),
        (MARIADB, "alter table t drop index k, drop key if exists l, drop primary key",
         "alter table t drop index IF EXISTS k, drop key if exists l, drop primary key"),
        (MARIADB, "drop index k on t", "drop index IF EXISTS k on t"),
        (MARIADB, "alter table t rename index k to l, alter index l invisible",
         "alter table t rename index IF EXISTS k to l, alter index IF EXISTS l IGNORED"),
        (MARIADB, "alter table t add (a char(3) charset utf8mb4 unique, b text character set gbk collate gbk_bin)",
         "alter table t add (a char(3) charset utf8mb4 COLLATE utf8mb4_bin unique, b text character set gbk collate "
         "gbk_bin)"),
        (MYSQL, "alter table t modify a char(3) charset ascii not null collate ascii_bin, convert to charset 'utf8mb4'",
         "alter table t modify a char(3) charset ascii not null collate ascii_bin, convert to charset 'utf8mb4' "
         "COLLATE utf8mb4_bin"),
        (MYSQL, "alter table t add c int as (cast(a as char charset utf8mb4))",
         "alter table t add c int as (cast(a as char charset utf8mb4))"),
        (MARIADB, "create or replace algorithm=merge definer='a'@`b` view v as select 1",
         "create or replace algorithm=merge view v as select 1"),
        (MYSQL, "create definer = current_user() view v as select 1", "create view v as select 1"),
        (MARIADB, "alter table t add column j json not null after id, add k json",
         "alter table t add column j json DEFAULT 'null' not null after id, add k json"),
        (MARIADB, "alter table t add (i int, j json not null)",
         "alter table t add (i int, j json DEFAULT 'null' not null)"),
        (MARIADB, "alter table t add column j json not null default (json_array())",
         "alter table t add column j json not null default (json_array())"),
        (MARIADB, "alter table t modify column j json not null", "alter table t modify column j json not null"),
        (MYSQL, "create table t (a int default 1) -- ttl = a + interval 1 day", "create table t (a int default 1)"),
    ],
)  # fmt: skip
def test_what_only_tidb_has_is_left_out(downstream: Downstream, query: str, expected: str) -> None:
    assert rewritten(query, downstream) == expected


KEYS = ForeignKeys(added=lambda name: f"{name}_2", dropped={"old": "old_2"}.get)


@pytest.mark.parametrize(
    ("query", "fit", "expected"),
    [
        ("create table t (a int, constraint `f` foreign key (a) references u (b) on delete cascade, key k (a))",
         Fit(foreign_keys=KEYS),
         "create table t (a int, constraint `f_2` foreign key (a) references u (b) on delete cascade, key k (a))"),
        ("create table t (a int, constraint `f` foreign key (a) references u (b) on delete set null, key k (a))",
         Fit(foreign_keys=ForeignKeys(are_kept=False)), "create table t (a int, key k (a))"),
        ("create table t (a int, constraint f foreign key (a) references u (b))",
         Fit(foreign_keys=ForeignKeys(are_kept=False)), "create table t (a int)"),
        ("alter table t drop foreign key old, add column c int", Fit(foreign_keys=KEYS),
         "alter table t drop foreign key `old_2`, add column c int"),
        ("alter table t add column c int, drop foreign key `unknown`", Fit(foreign_keys=KEYS),
         "alter table t add column c int"),
        ("alter table t drop foreign key unknown", Fit(foreign_keys=KEYS), ""),
        ("create table t (a int, b int generated always as (a + (1)) stored not null, primary key (b))",
         Fit(plain_columns=frozenset({"b"})), "create table t (a int, b int not null, primary key (b))"),
        ("alter table t add column `B` int as (a) stored, add primary key (b)", Fit(plain_columns=frozenset({"b"})),
         "alter table t add column `B` int, add primary key (b)"),
        ("create table t (a int) comment 'partition by' partition by hash (a) partitions 4",
         Fit(keeps_partitions=False), "create table t (a int) comment 'partition by'"),
        ("create table t (a int, b int as (a is null) virtual not null comment 'x', c int default null)", Fit(),
         "create table t (a int, b int as (a is null) virtual comment 'x', c int default null)"),
        ("alter table t add column b int not null as (a) stored unique, add c int not null", Fit(),
         "alter table t add column b int as (a) stored unique, add c int not null"),
        ("create table t (a int, b int as (a) virtual not null, c int as (b) stored not null)",
         Fit(plain_columns=frozenset({"b", "c"})), "create table t (a int, b int, c int not null)"),
        ("alter table t change column a b int as (c) stored, add if not exists d int as (c) stored",
         Fit(plain_columns=frozenset({"b", "d"})), "alter table t change column a b int, add if not exists d int"),
        ("create table t (a int default (1 + (2)) not null, b int default 3)", Fit(keeps_default_expressions=False),
         "create table t (a int not null, b int default 3)"),
        ("alter table T add column a int", Fit(place=("d", "t")), "alter table `d`.`t` add column a int"),
        ("alter ignore table `D` . T add column a int", Fit(place=("d", "t")),
         "alter table `d`.`t` add column a int"),
        ("truncate T", Fit(place=("d", "t")), "truncate `d`.`t`"),
        ("create unique index `on` on T (a)", Fit(place=("d", "t")), "create unique index `on` on `d`.`t` (a)"),
        ("drop index i on D.T", Fit(place=("d", "t")), "drop index IF EXISTS i on `d`.`t`"),
        ("create table T (a int)", Fit(place=("d", "T")), "create table T (a int)"),
        ("drop schema if exists D", Fit(place=("d", "")), "drop schema if exists `d`"),
        ("alter database D charset utf8mb4", Fit(place=("d", "")),
         "alter database `d` charset utf8mb4 COLLATE utf8mb4_bin"),
        ("alter database collate = utf8mb4_bin", Fit(place=("d", "")), "alter database `d` collate = utf8mb4_bin"),
    ],
)  # fmt: skip
def test_what_the_downstream_cannot_hold_is_bent(query: str, fit: Fit, expected: str) -> None:
    assert rewritten(query, MARIADB, fit) == expected


@pytest.mark.parametrize("has_vectors", [True, False])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("create table t (a char(9), B char(18) as (a || 'x') stored, c int)",
         "create table t (a char(9), B char(18) as ( concat( `a`, _utf8mb4 'x')) stored, c int)"),
        ("alter table t add column b char(18) generated always as (`a`||'x') virtual, add c int",
         "alter table t add column b char(18) generated always as ( concat( `a`, _utf8mb4 'x')) virtual, add c int"),
        ("create table t (a char(9) default '||') /*T! shard_row_id_bits=2 */",
         "create table t (a char(9) default '||') /*T! shard_row_id_bits=2 */"),
        ("alter table t /*T![auto_inc] auto_increment=5 */", "alter table t /*T![auto_inc] auto_increment=5 */"),
    ],
)  # fmt: skip
def test_a_tidb_need_not_know_how_the_session_read_two_bars(query: str, expected: str, has_vectors: bool) -> None:
    """PIPES_AS_CONCAT makes a concatenation of what means OR to the session that runs it downstream."""
    tidb = Downstream(Flavor.TIDB, (8, 5, 0), 16 << 20)
    fit = Fit(has_vectors=has_vectors, expressions={"b": "concat(`a`, _utf8mb4'x')"})
    assert rewritten(query, tidb, fit) == expected


def test_generated_columns_are_told_from_a_statement() -> None:
    query = (
        "CREATE TABLE t (id INT PRIMARY KEY, `D` BIGINT AS (id - 10) STORED, e INT GENERATED ALWAYS AS (id + 1) "
        "VIRTUAL NOT NULL, f VARCHAR(9) AS (date_format(d, '%Y)')), KEY (e), c INT DEFAULT (1 + 2))"
    )
    assert generated_in(query) == (frozenset({"d"}), frozenset({"d", "e", "f"}))
    assert generated_in("ALTER TABLE t ADD COLUMN x INT AS (a + 1), DROP COLUMN y") == (frozenset(), frozenset({"x"}))


def test_a_forced_counter_is_set_without_a_word() -> None:
    query = "ALTER TABLE t FORCE AUTO_INCREMENT=200"
    assert rewritten(query, Downstream(Flavor.MARIADB, (10, 11), 1 << 24)) == "ALTER TABLE t AUTO_INCREMENT=200"
