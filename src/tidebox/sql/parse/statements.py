"""The statements that are served, taken apart. Names keep the case in which they were typed."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidebox.sql.parse.expressions import Expression


@dataclass(frozen=True, slots=True)
class TableName:
    schema: str | None  # None: the session's database
    name: str


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """A column's type as typed, before anything is filled in."""

    name: str  # the canonical name in upper case: INT, VARCHAR, TEXT, …
    length: int | None = None
    decimal: int | None = None
    is_unsigned: bool = False
    is_zerofill: bool = False
    is_binary: bool = False  # CHAR(10) BINARY: the charset's binary collation
    charset: str | None = None
    collate: str | None = None
    elems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generated:
    expression: Expression
    is_stored: bool


class KeyKind(Enum):
    PRIMARY = "primary"
    UNIQUE = "unique"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class ColumnDef:
    name: str
    type: TypeSpec
    is_not_null: bool | None = None  # None: nothing was said
    default: Expression | None = None
    default_is_expression: bool = False  # in parentheses
    on_update: int | None = None  # ON UPDATE CURRENT_TIMESTAMP with this many fractional digits
    is_auto_increment: bool = False
    key: KeyKind | None = None
    is_clustered: bool | None = None
    comment: str = ""
    generated: Generated | None = None


@dataclass(frozen=True, slots=True)
class KeyPart:
    column: str
    length: int | None = None


@dataclass(frozen=True, slots=True)
class KeyDef:
    kind: KeyKind
    name: str | None
    parts: tuple[KeyPart, ...]
    is_clustered: bool | None = None
    comment: str = ""
    is_invisible: bool = False
    type: str | None = None  # BTREE, HASH, RTREE


@dataclass(frozen=True, slots=True)
class TableOptions:
    charset: str | None = None
    collate: str | None = None
    comment: str = ""
    auto_increment: int | None = None
    auto_id_cache: int = 0


@dataclass(frozen=True, slots=True)
class First:
    pass


@dataclass(frozen=True, slots=True)
class After:
    column: str


Position: TypeAlias = First | After | None


# Databases and tables


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    name: str
    if_not_exists: bool
    charset: str | None
    collate: str | None


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    name: str | None
    charset: str | None
    collate: str | None


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableName
    if_not_exists: bool
    columns: tuple[ColumnDef, ...]
    keys: tuple[KeyDef, ...]
    options: TableOptions


@dataclass(frozen=True, slots=True)
class CreateTableLike:
    table: TableName
    if_not_exists: bool
    source: TableName


@dataclass(frozen=True, slots=True)
class DropTable:
    tables: tuple[TableName, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class TruncateTable:
    table: TableName


@dataclass(frozen=True, slots=True)
class RenameTables:
    pairs: tuple[tuple[TableName, TableName], ...]


# Clauses of ALTER TABLE


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: ColumnDef
    position: Position
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ModifyColumn:
    """MODIFY and CHANGE COLUMN."""

    old_name: str
    column: ColumnDef
    position: Position
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    column: str
    default: Expression | None  # None: DROP DEFAULT
    default_is_expression: bool


@dataclass(frozen=True, slots=True)
class AddKey:
    key: KeyDef
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropKey:
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DropPrimaryKey:
    pass


@dataclass(frozen=True, slots=True)
class RenameKey:
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class SetKeyVisibility:
    name: str
    is_invisible: bool


@dataclass(frozen=True, slots=True)
class RenameTo:
    table: TableName


@dataclass(frozen=True, slots=True)
class SetComment:
    comment: str


@dataclass(frozen=True, slots=True)
class SetCharset:
    charset: str | None
    collate: str | None
    converts: bool  # CONVERT TO: the columns too


@dataclass(frozen=True, slots=True)
class SetAutoIncrement:
    value: int


AlterSpec: TypeAlias = (
    AddColumn
    | DropColumn
    | ModifyColumn
    | RenameColumn
    | SetDefault
    | AddKey
    | DropKey
    | DropPrimaryKey
    | RenameKey
    | SetKeyVisibility
    | RenameTo
    | SetComment
    | SetCharset
    | SetAutoIncrement
)


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE, and CREATE INDEX and DROP INDEX, which are the same."""

    table: TableName
    specs: tuple[AlterSpec, ...]


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """ADMIN CANCEL DDL JOBS."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShowJobs:
    """ADMIN SHOW DDL JOBS [n]."""

    limit: int | None


Ddl: TypeAlias = (
    CreateDatabase
    | AlterDatabase
    | DropDatabase
    | CreateTable
    | CreateTableLike
    | DropTable
    | TruncateTable
    | RenameTables
    | AlterTable
)
Statement: TypeAlias = Ddl | CancelJobs | ShowJobs
