"""The tree of a statement. Names are kept as written; what they mean is found out by whoever runs it."""

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TypeAlias

# Expressions


@dataclass(frozen=True, slots=True)
class Literal:
    """None, int, Decimal, float or str; bool for TRUE and FALSE."""

    value: int | Decimal | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Bits:
    """A hexadecimal or bit literal: a number among numbers, else bytes."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Introduced:
    """``_charset'…'``; of the character sets only ``binary`` makes a difference."""

    charset: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Typed:
    """``DATE '…'``, ``TIME '…'``, ``TIMESTAMP '…'``."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Name:
    column: str
    table: str = ""
    schema: str = ""

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.table, self.column) if part)


@dataclass(frozen=True, slots=True)
class Star:
    table: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    index: int


@dataclass(frozen=True, slots=True)
class UserVariable:
    name: str


@dataclass(frozen=True, slots=True)
class AssignVariable:
    name: str
    value: "Expression"


@dataclass(frozen=True, slots=True)
class SystemVariable:
    name: str
    scope: str = ""  # global or session, if written


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Between:
    operand: "Expression"
    low: "Expression"
    high: "Expression"
    is_negated: bool


@dataclass(frozen=True, slots=True)
class In:
    operand: "Expression"
    among: "tuple[Expression, ...] | Query"
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    operand: "Expression"
    pattern: "Expression"
    escape: str
    is_negated: bool
    is_regular: bool = False


@dataclass(frozen=True, slots=True)
class Is:
    operand: "Expression"
    what: bool | None  # TRUE, FALSE, or NULL (and UNKNOWN)
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Case:
    operand: "Expression | None"
    branches: "tuple[tuple[Expression, Expression], ...]"
    otherwise: "Expression | None"


@dataclass(frozen=True, slots=True)
class Call:
    """``unit``: of an INTERVAL, or what is extracted. ``separator``: of GROUP_CONCAT."""

    name: str  # upper case
    arguments: "tuple[Expression, ...]"
    is_distinct: bool = False
    unit: str = ""
    order_by: "tuple[Ordering, ...]" = ()
    separator: str = ","


@dataclass(frozen=True, slots=True)
class Cast:
    operand: "Expression"
    kind: str  # SIGNED, UNSIGNED, CHAR, BINARY, DECIMAL, DOUBLE, FLOAT, DATE, DATETIME, TIME, JSON, YEAR
    length: int = -1
    scale: int = -1


@dataclass(frozen=True, slots=True)
class Collate:
    operand: "Expression"
    collation: str


@dataclass(frozen=True, slots=True)
class Row:
    items: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Subquery:
    query: "Query"


@dataclass(frozen=True, slots=True)
class Exists:
    query: "Query"


@dataclass(frozen=True, slots=True)
class Default:
    """``DEFAULT``, or with a name ``DEFAULT(column)``."""

    name: Name | None = None


@dataclass(frozen=True, slots=True)
class ValuesOf:
    """``VALUES(column)`` in ON DUPLICATE KEY UPDATE."""

    name: Name


Expression: TypeAlias = (
    Literal
    | Bits
    | Introduced
    | Typed
    | Name
    | Star
    | Parameter
    | UserVariable
    | AssignVariable
    | SystemVariable
    | Unary
    | Binary
    | Between
    | In
    | Like
    | Is
    | Case
    | Call
    | Cast
    | Collate
    | Row
    | Subquery
    | Exists
    | Default
    | ValuesOf
)

# Queries


@dataclass(frozen=True, slots=True)
class Ordering:
    by: Expression
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class TableName:
    name: str
    schema: str = ""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class TableSource:
    table: TableName
    alias: str = ""
    as_of: Expression | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    query: "Query"
    alias: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """``kind`` is INNER, LEFT or RIGHT."""

    kind: str
    left: "Source"
    right: "Source"
    on: Expression | None = None
    using: tuple[str, ...] = ()
    is_natural: bool = False


Source: TypeAlias = TableSource | Derived | Join


@dataclass(frozen=True, slots=True)
class Item:
    """``text`` as written: what the column is called without an alias."""

    value: Expression
    text: str
    alias: str = ""


class Locking(Enum):
    NONE = ""
    UPDATE = "update"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Limit:
    count: Expression
    offset: Expression | None = None


@dataclass(frozen=True, slots=True)
class Select:
    items: tuple[Item, ...]
    source: Source | None = None
    where: Expression | None = None
    group_by: tuple[Expression, ...] = ()
    having: Expression | None = None
    order_by: tuple[Ordering, ...] = ()
    limit: Limit | None = None
    is_distinct: bool = False
    locking: Locking = Locking.NONE
    is_nowait: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    parts: tuple["Query", ...]
    is_all: bool
    order_by: tuple[Ordering, ...] = ()
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class With:
    """Common table expressions, not recursive, by name; a later one may use those before it."""

    tables: tuple[tuple[str, tuple[str, ...], "Query"], ...]
    query: "Query"


Query: TypeAlias = Select | Union | With

# Statements


@dataclass(frozen=True, slots=True)
class Assignment:
    column: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Insert:
    """With ``query`` None the rows are given; ``columns`` None: all, in order."""

    table: TableName
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Expression, ...], ...] = ()
    query: Query | None = None
    is_ignore: bool = False
    is_replace: bool = False
    on_duplicate: tuple[Assignment, ...] = ()
    new_alias: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    source: TableSource
    assignments: tuple[Assignment, ...]
    where: Expression | None = None
    order_by: tuple[Ordering, ...] = ()
    limit: Limit | None = None
    is_ignore: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    source: TableSource
    where: Expression | None = None
    order_by: tuple[Ordering, ...] = ()
    limit: Limit | None = None


class Ending(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Begin:
    mode: str = ""  # pessimistic, optimistic, or the session's
    is_read_only: bool = False
    as_of: Expression | None = None


@dataclass(frozen=True, slots=True)
class End:
    how: Ending


@dataclass(frozen=True, slots=True)
class Savepoint:
    name: str
    action: str = "set"  # set, rollback or release


@dataclass(frozen=True, slots=True)
class SetVariable:
    """``scope``: user, session, global or ``transaction`` (for the next one only)."""

    scope: str
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Set:
    assignments: tuple[SetVariable, ...]


@dataclass(frozen=True, slots=True)
class SetNames:
    charset: str
    collation: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    schema: str


@dataclass(frozen=True, slots=True)
class Show:
    """``what`` in upper case: ``TABLES``, ``CREATE TABLE`` …"""

    what: str
    is_full: bool = False
    schema: str = ""
    table: TableName | None = None
    like: str | None = None
    where: Expression | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Prepare:
    name: str
    text: Expression


@dataclass(frozen=True, slots=True)
class Execute:
    name: str
    using: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deallocate:
    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    connection_id: Expression
    is_query: bool = False


@dataclass(frozen=True, slots=True)
class Do:
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """Accepted, and nothing to do: FLUSH, ANALYZE TABLE, LOCK and UNLOCK TABLES …"""

    what: str


@dataclass(frozen=True, slots=True)
class AdminCheck:
    tables: tuple[TableName, ...]


Statement: TypeAlias = (
    Select
    | Union
    | With
    | Insert
    | Update
    | Delete
    | Begin
    | End
    | Savepoint
    | Set
    | SetNames
    | Use
    | Show
    | Prepare
    | Execute
    | Deallocate
    | Kill
    | Do
    | Nothing
    | AdminCheck
)
