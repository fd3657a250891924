"""DDL: a finished change of schema, as it goes downstream."""

from dataclasses import dataclass
from enum import IntEnum

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts


class ActionType(IntEnum):
    """TiDB's numbers for the kinds of DDL jobs."""

    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET = 22
    TRUNCATE_TABLE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    UPDATE_TIFLASH_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    MODIFY_AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM = 40
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    ADD_CHECK = 43
    DROP_CHECK = 44
    ALTER_CHECK = 45
    RENAME_TABLES = 47
    ALTER_TABLE_ATTRIBUTES = 49
    ALTER_PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_PARTITION_PLACEMENT = 54
    MODIFY_SCHEMA_PLACEMENT = 55
    ALTER_TABLE_PLACEMENT = 56
    CACHE_TABLE = 57
    NOCACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL = 65
    REMOVE_TTL = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One DDL for the downstream. All rows with commit-ts ≤ ``finished_ts`` go before it.

    ``type`` is the kind for the downstream: a RENAME TABLES job becomes one event of type
    RENAME_TABLE per pair. ``seq`` orders events of one ``finished_ts``.
    """

    finished_ts: Ts
    start_ts: Ts
    seq: int
    type: int  # ActionType, or a number of a newer TiDB
    job_type: int  # of the whole job: RENAME_TABLES where type is RENAME_TABLE
    query: str
    schema: str
    table: str  # "" for a database-level DDL
    table_info: TableInfo | None  # after the DDL; the dropped table for a drop; None for databases
    pre_schema: str = ""
    pre_table: str = ""
    pre_table_info: TableInfo | None = None
    creation: str = ""  # what would make the table or view as it is afterwards, times in UTC; "" where nobody knows
    is_like: bool = False  # CREATE TABLE … LIKE …: what the query means is said by ``creation`` only
    partition_id: int = 0  # of EXCHANGE PARTITION: the physical id that went from the partition to the plain table
    sql_modes: tuple[str, ...] = ()  # under which the query means what it means, beside the default ones
    time_zone: str = ""  # in which values were converted: ``+05:30`` or a name; "" where the job does not tell

    @property
    def gives_key(self) -> bool:
        """Whether a table's rows can be told apart from here on, and could not before: none of them is downstream."""
        before, after = self.pre_table_info, self.table_info
        if before is None or after is None or after.is_view or before.is_view or self.type == ActionType.RENAME_TABLE:
            return False
        return after.is_eligible and not before.is_eligible
