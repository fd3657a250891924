"""What a fresh cluster holds before the first statement: the system's tables, a database ``test``, a schema version.

A cluster that has its metadata already, such as a loaded history, is left as it is.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tidebox.sql.codec import TableCodec
from tidebox.sql.ddl.columns import PUBLIC
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_database
from tidebox.sql.meta import (
    SYSTEM_SCHEMA,
    SYSTEM_SCHEMA_ID,
    KeyValues,
    Meta,
    system_table,
    system_tables,
    table_of,
)

TEST_SCHEMA: Final = "test"
_TEST_SCHEMA_ID = 2
_VARIABLES_ID = 3
_VARIABLES = (
    "CREATE TABLE tidb (variable_name varchar(64) not null primary key clustered, variable_value varchar(1024), "
    "comment varchar(1024))"
)
_ROWS = (
    ("bootstrapped", "True", "Bootstrap flag. Do not delete."),
    ("new_collation_enabled", "True", "If the new collations are enabled. Do not edit it."),
    ("system_tz", "UTC", "TiDB Global System Timezone."),
    ("tidb_server_version", "240", "Bootstrap version. Do not delete."),
)
_BOOTSTRAP_VERSION = 240
_DDL_TABLE_VERSION = 4


class Ending(KeyValues, Protocol):
    """A transaction that can be brought to its end."""

    def commit(self) -> object: ...
    def rollback(self) -> None: ...


def bootstrap(begin: Callable[[], Ending]) -> bool:
    """Make the cluster ready for SQL, in one transaction; False if it was."""
    transaction = begin()
    meta = Meta(transaction)
    if meta.is_bootstrapped():
        transaction.rollback()
        return False
    write_system(transaction, meta)
    transaction.commit()
    return True


def write_system(kv: KeyValues, meta: Meta) -> None:
    for schema_id, name in ((SYSTEM_SCHEMA_ID, SYSTEM_SCHEMA), (_TEST_SCHEMA_ID, TEST_SCHEMA)):
        meta.put_database(build_database(schema_id, name, DEFAULT_CHARSET, PUBLIC))
    variables = system_table(_VARIABLES, _VARIABLES_ID)
    for table in (*system_tables().values(), variables):
        meta.put_table(SYSTEM_SCHEMA_ID, {**table, "update_timestamp": int(kv.start_ts)})
    codec = TableCodec(table_of(variables))
    for row in _ROWS:
        kv.put(*codec.record(codec.handle_of(row), row))
    meta.set_number(b"NextGlobalID", _VARIABLES_ID)
    meta.set_number(b"DDLTableVersion", _DDL_TABLE_VERSION)
    meta.set_number(b"BootstrapKey", _BOOTSTRAP_VERSION)
    meta.bump_version(
        {
            "type": 1,
            "schema_id": _TEST_SCHEMA_ID,
            "table_id": 0,
            "old_table_id": 0,
            "old_schema_id": 0,
            "regenerate_schema_map": False,
            "affected_options": None,
        }
    )
