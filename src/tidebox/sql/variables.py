"""System variables: those that clients and people ask for, with TiDB's defaults.

Few have an effect here (``EFFECTIVE``). The others are kept and shown, because drivers set and read them
when they connect; one that is in neither list is error 1193.
"""

from collections.abc import Callable
from typing import Any, Final

from tidebox.sql.compute.kinds import INT, TEXT, Type
from tidebox.sql.wire.errors import Errno, sql_error

VERSION: Final = "8.0.11-TiDB-v8.5.0"
SQL_MODE: Final = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
)
_MODES: Final = frozenset(
    {
        "ONLY_FULL_GROUP_BY",
        "STRICT_TRANS_TABLES",
        "STRICT_ALL_TABLES",
        "NO_ZERO_IN_DATE",
        "NO_ZERO_DATE",
        "ERROR_FOR_DIVISION_BY_ZERO",
        "NO_AUTO_CREATE_USER",
        "NO_ENGINE_SUBSTITUTION",
        "NO_AUTO_VALUE_ON_ZERO",
        "ALLOW_INVALID_DATES",
    }
)
_COMBINED: Final = {
    "TRADITIONAL": "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION",
    "STRICT": "STRICT_TRANS_TABLES",
}
# Read-only, by name.
_FIXED: Final[dict[str, str | int]] = {
    "version": VERSION,
    "version_comment": "TiDB Server (Apache License 2.0), embedded in Tidemill",
    "version_compile_os": "Linux",
    "version_compile_machine": "x86_64",
    "protocol_version": 10,
    "system_time_zone": "UTC",
    "lower_case_table_names": 2,
    "lower_case_file_system": "ON",
    "max_allowed_packet": 67108864,
    "hostname": "localhost",
    "port": 4000,
    "socket": "",
    "datadir": "",
    "license": "Apache License 2.0",
    "performance_schema": "OFF",
    "have_ssl": "DISABLED",
    "have_openssl": "DISABLED",
    "query_cache_size": 0,
    "query_cache_type": "OFF",
    "have_query_cache": "NO",
    "innodb_version": "8.0.11",
    "character_sets_dir": "",
    "character_set_system": "utf8mb4",
    "read_only": "OFF",
    "super_read_only": "OFF",
    "log_bin": "OFF",
    "server_id": 0,
    "tidb_server_memory_limit": "80%",
    "back_log": 80,
    "table_definition_cache": -1,
}
_SESSION: Final[dict[str, str | int]] = {
    "autocommit": "ON",
    "auto_increment_increment": 1,
    "auto_increment_offset": 1,
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "character_set_server": "utf8mb4",
    "character_set_database": "utf8mb4",
    "character_set_filesystem": "binary",
    "collation_connection": "utf8mb4_bin",
    "collation_server": "utf8mb4_bin",
    "collation_database": "utf8mb4_bin",
    "default_storage_engine": "InnoDB",
    "div_precision_increment": 4,
    "foreign_key_checks": "ON",
    "unique_checks": "ON",
    "group_concat_max_len": 1048576,
    "init_connect": "",
    "innodb_lock_wait_timeout": 50,
    "interactive_timeout": 28800,
    "wait_timeout": 28800,
    "net_write_timeout": 60,
    "net_read_timeout": 30,
    "net_buffer_length": 16384,
    "lock_wait_timeout": 31536000,
    "max_execution_time": 0,
    "sql_auto_is_null": "OFF",
    "sql_mode": SQL_MODE,
    "sql_notes": "ON",
    "sql_warnings": "OFF",
    "sql_quote_show_create": "ON",
    "sql_safe_updates": "OFF",
    "sql_select_limit": 18446744073709551615,
    "sql_log_bin": "ON",
    "time_zone": "SYSTEM",
    "timestamp": "",
    "transaction_isolation": "REPEATABLE-READ",
    "tx_isolation": "REPEATABLE-READ",
    "transaction_read_only": "OFF",
    "tx_read_only": "OFF",
    "last_insert_id": 0,
    "max_connections": 1024,
    "default_week_format": 0,
    "optimizer_switch": "",
    "profiling": "OFF",
    "session_track_gtids": "OFF",
    "session_track_schema": "ON",
    "session_track_system_variables": "",
    "tidb_snapshot": "",
    "tidb_txn_mode": "pessimistic",
    "tidb_current_ts": 0,
    "tidb_retry_limit": 10,
    "tidb_disable_txn_auto_retry": "ON",
    "tidb_general_log": "OFF",
    "tidb_enable_clustered_index": "ON",
    "tidb_row_format_version": 2,
    "tidb_mem_quota_query": 1073741824,
    "tidb_batch_insert": "OFF",
    "tidb_batch_commit": "OFF",
    "tidb_dml_batch_size": 0,
    "tidb_read_staleness": "",
    "tidb_enable_enhanced_security": "OFF",
    "tidb_allow_mpp": "ON",
    "tidb_isolation_read_engines": "tikv,tiflash,tidb",
    "tidb_opt_write_row_id": "OFF",
    "tidb_constraint_check_in_place": "OFF",
    "tidb_enable_async_commit": "ON",
    "tidb_enable_1pc": "ON",
    "tidb_multi_statement_mode": "OFF",
    "tidb_skip_utf8_check": "OFF",
    "tidb_skip_ascii_check": "OFF",
    "tidb_ddl_reorg_worker_cnt": 4,
    "tidb_ddl_reorg_batch_size": 256,
    "tidb_ddl_error_count_limit": 512,
    "tidb_enable_ddl": "ON",
    "tidb_gc_enable": "ON",
    "tidb_gc_life_time": "10m0s",
    "tidb_config": "{}",
    "tidb_enable_check_constraint": "OFF",
    "tidb_enable_foreign_key": "ON",
    "tidb_ddl_enable_fast_reorg": "OFF",
    "tidb_enable_dist_task": "OFF",
    "tidb_enable_fast_create_table": "OFF",
    "tidb_scatter_region": "",
    "tidb_slow_log_threshold": 300,
    "tidb_enable_table_partition": "ON",
    "tidb_enable_metadata_lock": "ON",
    "tidb_distsql_scan_concurrency": 15,
    "tidb_index_lookup_concurrency": -1,
    "tidb_enable_noop_functions": "OFF",
    "cte_max_recursion_depth": 1000,
    "block_encryption_mode": "aes-128-ecb",
    "warning_count": 0,
    "error_count": 0,
    "identity": 0,
    "pseudo_slave_mode": "OFF",
    "rand_seed1": 0,
    "rand_seed2": 0,
}
_ALIASES: Final = {
    "tx_isolation": "transaction_isolation",
    "tx_read_only": "transaction_read_only",
    "identity": "last_insert_id",
}
_BOOLEANS: Final = {"1": "ON", "0": "OFF", "on": "ON", "off": "OFF", "true": "ON", "false": "OFF"}
_CHARSETS: Final = frozenset({"utf8mb4", "utf8", "utf8mb3", "latin1", "ascii", "binary", "gbk"})


class GlobalVariables:
    """What SET GLOBAL has set, for sessions that begin from then on. Shared by the nodes of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str | int] = dict(_SESSION)

    def copy(self) -> dict[str, str | int]:
        return dict(self._values)

    def get(self, name: str) -> str | int:
        return self._values[name]

    def set(self, name: str, value: str | int) -> None:
        self._values[name] = value


class SessionVariables:
    """The variables of one session. ``changed`` is told the name of each that is set."""

    def __init__(self, shared: GlobalVariables, changed: Callable[[str], None] = lambda name: None) -> None:
        self._shared = shared
        self._values = shared.copy()
        self._users: dict[str, tuple[Any, Type]] = {}
        self._changed = changed

    def reset(self) -> None:
        self._values = self._shared.copy()
        self._users.clear()

    def get(self, name: str) -> str | int:
        return self._values[name]

    def is_on(self, name: str) -> bool:
        return self._values[name] == "ON"

    def note(self, name: str, value: str | int) -> None:
        """Set one that the session itself keeps, such as the number of warnings."""
        self._values[name] = value

    def names(self) -> list[str]:
        return sorted({*_FIXED, *self._values})

    # For expressions

    def system(self, name: str, scope: str) -> tuple[Any, Type]:
        value = self.value(name, scope)
        return value, (INT if isinstance(value, int) else TEXT)

    def value(self, name: str, scope: str = "") -> str | int:
        """For expressions ON and OFF are 1 and 0."""
        found = self.shown(name, scope)
        if isinstance(found, str) and name not in _FIXED and _SESSION.get(_ALIASES.get(name, name)) in ("ON", "OFF"):
            return int(found == "ON")
        return found

    def shown(self, name: str, scope: str = "") -> str | int:
        name = _ALIASES.get(name, name)
        if name in _FIXED:
            return _FIXED[name]
        if name not in self._values:
            raise sql_error(Errno.UNKNOWN_SYSTEM_VARIABLE, name)
        return self._shared.get(name) if scope == "global" else self._values[name]

    def user(self, name: str) -> tuple[Any, Type]:
        return self._users.get(name, (None, TEXT))

    def set_user(self, name: str, value: Any, kind: Type) -> None:
        self._users[name] = (value, kind)

    # Setting

    def set(self, scope: str, name: str, value: str | int | None) -> None:
        """``value`` None: the default."""
        name = _ALIASES.get(name, name)
        if name in _FIXED:
            raise sql_error(Errno.INCORRECT_GLOBAL_LOCAL_VAR, name, "read only")
        if name not in self._values:
            raise sql_error(Errno.UNKNOWN_SYSTEM_VARIABLE, name)
        fitting = _SESSION[name] if value is None else _fitting(name, value)
        if scope == "global":
            self._shared.set(name, fitting)
        else:
            self._values[name] = fitting
            self._changed(name)


def _fitting(name: str, value: str | int) -> str | int:
    default = _SESSION[name]
    if name == "sql_mode":
        return sql_mode(str(value))
    if default in ("ON", "OFF"):
        found = _BOOLEANS.get(str(value).lower())
        if found is None:
            raise sql_error(Errno.WRONG_VALUE_FOR_VAR, name, value)
        return found
    if name.startswith("character_set_") and name != "character_set_filesystem":
        text = str(value).lower()
        if text not in _CHARSETS and text != "":
            raise sql_error(Errno.UNKNOWN_CHARACTER_SET, value)
        return text
    if name == "tidb_txn_mode" and str(value).lower() not in ("pessimistic", "optimistic", ""):
        raise sql_error(Errno.WRONG_VALUE_FOR_VAR, name, value)
    if name == "transaction_isolation":
        level = str(value).upper().replace(" ", "-")
        if level in ("REPEATABLE-READ", "READ-COMMITTED"):
            return level
        if level in ("SERIALIZABLE", "READ-UNCOMMITTED"):
            raise sql_error(Errno.NOT_SUPPORTED_YET, f"isolation level {level}")
        raise sql_error(Errno.WRONG_VALUE_FOR_VAR, name, value)
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError as error:
            raise sql_error(Errno.WRONG_TYPE_FOR_VAR, name) from error
    return str(value)


def sql_mode(text: str) -> str:
    modes: list[str] = []
    for name in text.upper().split(","):
        name = name.strip()
        if not name:
            continue
        for part in _COMBINED.get(name, name).split(","):
            if part in ("PIPES_AS_CONCAT", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI", "HIGH_NOT_PRECEDENCE"):
                raise sql_error(Errno.NOT_SUPPORTED_YET, f"sql_mode {part}")
            if part in ("NO_DIR_IN_CREATE", "NO_UNSIGNED_SUBTRACTION", "PAD_CHAR_TO_FULL_LENGTH", "REAL_AS_FLOAT"):
                raise sql_error(Errno.NOT_SUPPORTED_YET, f"sql_mode {part}")
            if part not in _MODES and part != "IGNORE_SPACE":
                raise sql_error(Errno.WRONG_VALUE_FOR_VAR, "sql_mode", part)
            if part not in modes:
                modes.append(part)
    return ",".join(modes)
