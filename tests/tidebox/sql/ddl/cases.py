"""The DDLs that are swept, and the tables they are run on."""

from collections.abc import Callable
from dataclasses import dataclass

CLUSTERED = (
    "create table t (id int not null, v int, c varchar(10) default '9', u int not null, "
    "primary key (id), unique key ku (u), key kc (c), key kv (v))"
)
NONCLUSTERED = CLUSTERED.replace("primary key (id)", "primary key (id) nonclustered")
KEYLESS = CLUSTERED.replace("primary key (id), ", "")


@dataclass(frozen=True, slots=True)
class Case:
    """A DDL on ``t``. Writers fill ``column`` with literals made of a number of their own."""

    name: str
    statement: str
    table: str = CLUSTERED
    column: str = "v"
    old: Callable[[int], str] = str  # a literal of the type before
    new: Callable[[int], str] = str  # and of the type after


def _word(number: int) -> str:
    return f"'s{number}'"


def _day(number: int) -> str:
    return f"{20240000 + 100 * (1 + number // 28 % 12) + 1 + number % 28}"


CASES = [
    Case("ADD COLUMN with a default", "alter table t add column n int not null default 7"),
    Case("ADD COLUMN, first", "alter table t add column n varchar(5) first"),
    Case("DROP COLUMN and its index", "alter table t drop column c"),
    Case("MODIFY COLUMN, wider", "alter table t modify column v bigint"),
    Case("MODIFY COLUMN, longer", "alter table t modify column c varchar(50)", column="c", old=_word, new=_word),
    Case("MODIFY COLUMN, not null", "alter table t modify column v int not null"),
    Case("MODIFY COLUMN, moved", "alter table t modify column c varchar(10) first", column="c", old=_word, new=_word),
    Case("MODIFY COLUMN, lossy: int to varchar", "alter table t modify column v varchar(20)", new=_word),
    Case(
        "MODIFY COLUMN, lossy: int to decimal", "alter table t modify column v decimal(12,3)", new=lambda n: f"{n}.125"
    ),
    Case("MODIFY COLUMN, lossy: int to unsigned", "alter table t modify column v int unsigned"),
    Case(
        "MODIFY COLUMN, lossy: varchar to int",
        "alter table t modify column c int not null default 3",
        column="c",
        old=lambda n: f"'{n}'",
    ),
    Case(
        "MODIFY COLUMN, lossy: int to datetime",
        "alter table t modify column v datetime",
        old=_day,
        new=lambda n: f"'2025-01-02 03:04:05' + interval {n} second",
    ),
    Case("CHANGE COLUMN, wider and renamed", "alter table t change column v w bigint"),
    Case("CHANGE COLUMN, lossy and renamed", "alter table t change column v w varchar(20) first", new=_word),
    Case("RENAME COLUMN", "alter table t rename column v to w"),
    Case("SET DEFAULT", "alter table t alter column c set default 'z'"),
    Case("DROP DEFAULT", "alter table t alter column c drop default", column="c", old=_word, new=_word),
    Case("ADD INDEX", "alter table t add index iv (v)"),
    Case("ADD UNIQUE INDEX", "alter table t add unique index iv (v)"),
    Case("ADD UNIQUE INDEX of two columns", "alter table t add unique index iv (c, id)"),
    Case("DROP INDEX", "alter table t drop index kv"),
    Case("DROP INDEX, unique", "alter table t drop index ku"),
    Case("RENAME INDEX", "alter table t rename index kv to kw"),
    Case("ALTER INDEX, invisible", "alter table t alter index kv invisible"),
    Case("ADD PRIMARY KEY", "alter table t add primary key (id)", KEYLESS),
    Case("DROP PRIMARY KEY", "alter table t drop primary key", NONCLUSTERED),
    Case(
        "several: add and drop a column, add an index",
        "alter table t add column n int default 7, drop column c, add index iv (v)",
    ),
    Case(
        "several: a lossy change among others",
        "alter table t modify column v varchar(20), add column n int not null default 7, drop index ku",
        new=_word,
    ),
    Case("COMMENT", "alter table t comment 'changed'"),
    Case("CHARACTER SET", "alter table t character set utf8mb4 collate utf8mb4_general_ci"),
    Case("AUTO_INCREMENT", "alter table t auto_increment = 1000"),
    Case("RENAME TABLE", "rename table t to t2"),
    Case("TRUNCATE TABLE", "truncate table t"),
    Case("DROP TABLE", "drop table t"),
]
