"""What goes wrong in SQL, as MySQL clients know it: a number, an SQLSTATE and a text.

    raise sql_error(Errno.NO_SUCH_TABLE, "shop", "orders")
    → ERROR 1146 (42S02): Table 'shop.orders' doesn't exist

Numbers, states and texts are MySQL's, and TiDB's where it has its own. Names follow MySQL's
``ER_…`` without the prefix.
"""

from enum import IntEnum

from tidemill.errors import TidemillError

_RETRY = "[try again later]"  # TiDB's mark on errors after which the same transaction may simply run again


class Errno(IntEnum):
    """An error number with its SQLSTATE and its text, whose ``%s`` and ``%d`` await the facts."""

    sqlstate: str
    text: str

    def __new__(cls, number: int, sqlstate: str, text: str) -> "Errno":
        member = int.__new__(cls, number)
        member._value_ = number
        member.sqlstate = sqlstate
        member.text = text
        return member

    # Connections and packets
    CON_COUNT_ERROR = 1040, "08004", "Too many connections"
    HANDSHAKE_ERROR = 1043, "08S01", "Bad handshake"
    ACCESS_DENIED_ERROR = 1045, "28000", "Access denied for user '%-.48s'@'%-.255s' (using password: %s)"
    UNKNOWN_COM_ERROR = 1047, "08S01", "Unknown command"
    SERVER_SHUTDOWN = 1053, "08S01", "Server shutdown in progress"
    NO_SUCH_THREAD = 1094, "HY000", "Unknown thread id: %d"
    NET_PACKET_TOO_LARGE = 1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes"
    NET_PACKETS_OUT_OF_ORDER = 1156, "08S01", "Got packets out of order"
    NET_READ_INTERRUPTED = 1159, "08S01", "Got timeout reading communication packets"
    NOT_SUPPORTED_AUTH_MODE = (
        1251,
        "08004",
        "Client does not support authentication protocol requested by server; consider upgrading MySQL client",
    )
    MALFORMED_PACKET = 1835, "HY000", "Malformed communication packet."
    CLIENT_LOCAL_FILES_DISABLED = (
        3948,
        "42000",
        "Loading local data is disabled; this must be enabled on both the client and server sides",
    )

    # Statements
    PARSE_ERROR = (
        1064,
        "42000",
        "You have an error in your SQL syntax; check the manual that corresponds to your TiDB version "
        "for the right syntax to use %s",
    )
    EMPTY_QUERY = 1065, "42000", "Query was empty"
    UNKNOWN_ERROR = 1105, "HY000", "%s"
    WRONG_ARGUMENTS = 1210, "HY000", "Incorrect arguments to %s"
    WRONG_USAGE = 1221, "HY000", "Incorrect usage of %s and %s"
    NOT_SUPPORTED_YET = 1235, "42000", "This version of TiDB doesn't yet support '%s'"
    WRONG_GROUP_FIELD = 1056, "42000", "Can't group on '%-.192s'"
    INVALID_GROUP_FUNC_USE = 1111, "HY000", "Invalid use of group function"
    WRONG_NUMBER_OF_COLUMNS_IN_SELECT = (
        1222,
        "21000",
        "The used SELECT statements have a different number of columns",
    )
    DERIVED_MUST_HAVE_ALIAS = 1248, "42000", "Every derived table must have its own alias"
    CANT_AGGREGATE_2COLLATIONS = 1267, "HY000", "Illegal mix of collations (%s,%s) and (%s,%s) for operation '%s'"
    FUNCTION_DOES_NOT_EXIST = 1305, "42000", "FUNCTION %s.%s does not exist"
    WRONG_PARAMCOUNT = 1582, "42000", "Incorrect parameter count in the call to native function '%-.192s'"
    NO_TABLES_USED = 1096, "HY000", "No tables used"
    UNKNOWN_STMT_HANDLER = 1243, "HY000", "Unknown prepared statement handler (%s) given to %s"
    QUERY_INTERRUPTED = 1317, "70100", "Query execution was interrupted"
    MAX_PREPARED_STMT_COUNT_REACHED = (
        1461,
        "42000",
        "Can't create more than max_prepared_stmt_count statements (current value: %d)",
    )
    PS_MANY_PARAM = 1390, "HY000", "Prepared statement contains too many placeholders"
    UNKNOWN_FIELD_TYPE = 8051, "HY000", "unknown field type"
    PREPARED_NOT_FOUND = 8111, "HY000", "Prepared statement not found"
    PREPARE_MULTI = 8115, "HY000", "Can not prepare multiple statements"
    MULTI_STATEMENT_DISABLED = (
        8130,
        "HY000",
        "client has multi-statement capability disabled. Run SET GLOBAL tidb_multi_statement_mode='ON' "
        "after you understand the security risk",
    )

    # Databases, tables, columns and keys
    DB_CREATE_EXISTS = 1007, "HY000", "Can't create database '%-.192s'; database exists"
    DB_DROP_EXISTS = 1008, "HY000", "Can't drop database '%-.192s'; database doesn't exist"
    NO_DB_ERROR = 1046, "3D000", "No database selected"
    BAD_DB_ERROR = 1049, "42000", "Unknown database '%-.192s'"
    TABLE_EXISTS_ERROR = 1050, "42S01", "Table '%-.192s' already exists"
    BAD_TABLE_ERROR = 1051, "42S02", "Unknown table '%-.100s'"
    NON_UNIQ_ERROR = 1052, "23000", "Column '%-.192s' in %-.192s is ambiguous"
    BAD_FIELD_ERROR = 1054, "42S22", "Unknown column '%-.192s' in '%-.192s'"
    TOO_LONG_IDENT = 1059, "42000", "Identifier name '%-.100s' is too long"
    DUP_FIELDNAME = 1060, "42S21", "Duplicate column name '%-.192s'"
    DUP_KEYNAME = 1061, "42000", "Duplicate key name '%-.192s'"
    WRONG_FIELD_SPEC = 1063, "42000", "Incorrect column specifier for column '%-.192s'"
    NONUNIQ_TABLE = 1066, "42000", "Not unique table/alias: '%-.192s'"
    INVALID_DEFAULT = 1067, "42000", "Invalid default value for '%-.192s'"
    MULTIPLE_PRI_KEY = 1068, "42000", "Multiple primary key defined"
    TOO_LONG_KEY = 1071, "42000", "Specified key was too long (%d bytes); max key length is %d bytes"
    KEY_COLUMN_DOES_NOT_EXIST = 1072, "42000", "Key column '%-.192s' doesn't exist in table"
    TOO_BIG_FIELDLENGTH = (
        1074,
        "42000",
        "Column length too big for column '%-.192s' (max = %d); use BLOB or TEXT instead",
    )
    WRONG_AUTO_KEY = (
        1075,
        "42000",
        "Incorrect table definition; there can be only one auto column and it must be defined as a key",
    )
    WRONG_SUB_KEY = (
        1089,
        "HY000",
        "Incorrect prefix key; the used key part isn't a string, the used length is longer than the key part, "
        "or the storage engine doesn't support unique prefix keys",
    )
    CANT_REMOVE_ALL_FIELDS = 1090, "42000", "You can't delete all columns with ALTER TABLE; use DROP TABLE instead"
    CANT_DROP_FIELD_OR_KEY = 1091, "42000", "Can't DROP '%-.192s'; check that column/key exists"
    BLOB_CANT_HAVE_DEFAULT = 1101, "42000", "BLOB/TEXT/JSON column '%-.192s' can't have a default value"
    WRONG_DB_NAME = 1102, "42000", "Incorrect database name '%-.100s'"
    WRONG_TABLE_NAME = 1103, "42000", "Incorrect table name '%-.100s'"
    UNKNOWN_TABLE = 1109, "42S02", "Unknown table '%-.192s' in %-.32s"
    FIELD_SPECIFIED_TWICE = 1110, "42000", "Column '%-.192s' specified twice"
    TABLE_MUST_HAVE_COLUMNS = 1113, "42000", "A table must have at least 1 column"
    UNKNOWN_CHARACTER_SET = 1115, "42000", "Unknown character set: '%-.64s'"
    TOO_BIG_ROWSIZE = (
        1118,
        "42000",
        "Row size too large. The maximum row size for the used table type, not counting BLOBs, is %d. This includes "
        "storage overhead, check the manual. You have to change some columns to TEXT or BLOBs",
    )
    NO_SUCH_TABLE = 1146, "42S02", "Table '%-.192s.%-.192s' doesn't exist"
    WRONG_COLUMN_NAME = 1166, "42000", "Incorrect column name '%-.100s'"
    BLOB_KEY_WITHOUT_LENGTH = (
        1170,
        "42000",
        "BLOB/TEXT column '%-.192s' used in key specification without a key length",
    )
    PRIMARY_CANT_HAVE_NULL = (
        1171,
        "42000",
        "All parts of a PRIMARY KEY must be NOT NULL; if you need NULL in a key, use UNIQUE instead",
    )
    KEY_DOES_NOT_EXIST = 1176, "42000", "Key '%-.192s' doesn't exist in table '%-.192s'"
    UNKNOWN_COLLATION = 1273, "HY000", "Unknown collation: '%-.64s'"
    WRONG_NAME_FOR_INDEX = 1280, "42000", "Incorrect index name '%-.100s'"
    COLLATION_CHARSET_MISMATCH = 1253, "42000", "COLLATION '%s' is not valid for CHARACTER SET '%s'"
    DUPLICATED_VALUE_IN_TYPE = 1291, "HY000", "Column '%-.100s' has duplicated value '%-.64s' in %s"
    WRONG_OBJECT = 1347, "HY000", "'%-.192s.%-.192s' is not %s"
    TOO_BIG_SCALE = 1425, "42000", "Too big scale %d specified for column '%-.192s'. Maximum is %d."
    TOO_BIG_PRECISION = 1426, "42000", "Too-big precision %d specified for '%-.192s'. Maximum is %d."
    M_BIGGER_THAN_D = (
        1427,
        "42000",
        "For float(M,D), double(M,D) or decimal(M,D), M must be >= D (column '%-.192s').",
    )
    TOO_BIG_DISPLAYWIDTH = 1439, "42000", "Display width out of range for column '%-.192s' (max = %d)"
    TOO_MANY_KEYS = 1069, "42000", "Too many keys specified; max %d keys allowed"
    TOO_MANY_KEY_PARTS = 1070, "42000", "Too many key parts specified; max %d parts allowed"
    TOO_BIG_SET = 1097, "HY000", "Too many strings for column %-.192s and SET"
    TOO_MANY_FIELDS = 1117, "HY000", "Too many columns"
    INVALID_ON_UPDATE = 1294, "HY000", "Invalid ON UPDATE clause for '%-.192s' column"
    ILLEGAL_VALUE_FOR_TYPE = 1367, "22007", "Illegal %s '%-.192s' value found during parsing"
    WRONG_NAME_FOR_RENAME = 1025, "HY000", "Error on rename of '%-.210s' to '%-.210s' (errno: %d - %s)"
    TOO_LONG_TABLE_COMMENT = 1628, "HY000", "Comment for table '%-.64s' is too long (max = %d)"
    TOO_LONG_FIELD_COMMENT = 1629, "HY000", "Comment for field '%-.64s' is too long (max = %d)"
    TOO_LONG_INDEX_COMMENT = 1688, "HY000", "Comment for index '%-.64s' is too long (max = %d)"
    INVALID_FIELD_SIZE = 3013, "42000", "Invalid size for column '%s'."
    UNSUPPORTED_ON_GENERATED_COLUMN = 3106, "HY000", "'%s' is not supported for generated columns."
    GENERATED_COLUMN_NON_PRIOR = (
        3107,
        "HY000",
        "Generated column can refer only to generated columns defined prior to it.",
    )
    JSON_USED_AS_KEY = (
        3152,
        "42000",
        "JSON column '%-.192s' cannot be used in key specification.",
    )
    WRONG_KEY_COLUMN = 1167, "42000", "The used storage engine can't index column '%-.192s'"
    KEY_PART_0 = 1391, "HY000", "Key part '%-.192s' length cannot be 0"
    PK_INDEX_CANT_BE_INVISIBLE = 3522, "HY000", "A primary key index cannot be invisible"
    DEPENDENT_BY_GENERATED_COLUMN = 3108, "HY000", "Column '%s' has a generated column dependency."
    GENERATED_COLUMN_REF_AUTO_INC = 3109, "HY000", "Generated column '%s' cannot refer to auto-increment column."
    DEFAULT_VAL_GENERATED_NAMED_FUNCTION = (
        3770,
        "HY000",
        "Default value expression of column '%s' contains a disallowed function: `%s`.",
    )
    UNSUPPORTED_DDL_OPERATION = 8200, "HY000", "Unsupported %s"
    CANCELLED_DDL_JOB = 8214, "HY000", "Cancelled DDL job"

    # Values
    BAD_NULL_ERROR = 1048, "23000", "Column '%-.192s' cannot be null"
    DUP_ENTRY = 1062, "23000", "Duplicate entry '%-.64s' for key '%-.192s'"
    WRONG_VALUE_COUNT_ON_ROW = 1136, "21S01", "Column count doesn't match value count at row %d"
    INVALID_USE_OF_NULL = 1138, "22004", "Invalid use of NULL value"
    SUBQUERY_NO_1_ROW = 1242, "21000", "Subquery returns more than 1 row"
    OPERAND_COLUMNS = 1241, "21000", "Operand should contain %d column(s)"
    WARN_DATA_OUT_OF_RANGE = 1264, "22003", "Out of range value for column '%s' at row %d"
    WARN_DATA_TRUNCATED = 1265, "01000", "Data truncated for column '%s' at row %d"
    TRUNCATED_WRONG_VALUE = 1292, "22007", "Truncated incorrect %-.64s value: '%-.128s'"
    NO_DEFAULT_FOR_FIELD = 1364, "HY000", "Field '%-.192s' doesn't have a default value"
    DIVISION_BY_ZERO = 1365, "22012", "Division by 0"
    TRUNCATED_WRONG_VALUE_FOR_FIELD = (
        1366,
        "HY000",
        "Incorrect %-.32s value: '%-.128s' for column '%.192s' at row %d",
    )
    DATA_TOO_LONG = 1406, "22001", "Data too long for column '%s' at row %d"
    AUTOINC_READ_FAILED = 1467, "HY000", "Failed to read auto-increment value from storage engine"
    DATA_OUT_OF_RANGE = 1690, "22003", "%s value is out of range in '%s'"
    BAD_GENERATED_COLUMN = (
        3105,
        "HY000",
        "The value specified for generated column '%s' in table '%s' is not allowed.",
    )
    INVALID_JSON_PATH = 3143, "42000", "Invalid JSON path expression. The error is around character position %d."
    INVALID_JSON_CHARSET = 3144, "22032", "Cannot create a JSON value from a string with CHARACTER SET '%s'."
    INVALID_JSON_TEXT = 3140, "22032", "Invalid JSON text: %-.192s"

    # Variables
    UNKNOWN_SYSTEM_VARIABLE = 1193, "HY000", "Unknown system variable '%-.64s'"
    LOCAL_VARIABLE = 1228, "HY000", "Variable '%-.64s' is a SESSION variable and can't be used with SET GLOBAL"
    GLOBAL_VARIABLE = 1229, "HY000", "Variable '%-.64s' is a GLOBAL variable and should be set with SET GLOBAL"
    WRONG_VALUE_FOR_VAR = 1231, "42000", "Variable '%-.64s' can't be set to the value of '%-.200s'"
    WRONG_TYPE_FOR_VAR = 1232, "42000", "Incorrect argument type to variable '%-.64s'"
    INCORRECT_GLOBAL_LOCAL_VAR = 1238, "HY000", "Variable '%-.192s' is a %s variable"
    UNKNOWN_TIME_ZONE = 1298, "HY000", "Unknown or incorrect time zone: '%-.64s'"

    # Transactions and the store
    LOCK_WAIT_TIMEOUT = 1205, "HY000", "Lock wait timeout exceeded; try restarting transaction"
    LOCK_DEADLOCK = 1213, "40001", "Deadlock found when trying to get lock; try restarting transaction"
    CANT_EXECUTE_IN_READ_ONLY_TRANSACTION = 1792, "25006", "Cannot execute statement in a READ ONLY transaction."
    LOCK_NOWAIT = (
        3572,
        "HY000",
        "Statement aborted because lock(s) could not be acquired immediately and NOWAIT is set.",
    )
    TXN_TOO_LARGE = 8004, "HY000", "Transaction is too large, size: %d"
    WRITE_CONFLICT_IN_TIDB = 8005, "HY000", f"Write conflict, txnStartTS %d is stale {_RETRY}"
    TXN_RETRYABLE = 8022, "HY000", f"Error: KV error safe to retry %s {_RETRY}"
    INVALID_TXN = 8024, "HY000", "invalid transaction"
    ENTRY_TOO_LARGE = 8025, "HY000", "entry too large, the max entry size is %d, the size of data is %d"
    INFO_SCHEMA_EXPIRED = (
        8027,
        "HY000",
        "Information schema is out of date: schema failed to update in 1 lease, "
        "please make sure TiDB can connect to TiKV",
    )
    INFO_SCHEMA_CHANGED = (
        8028,
        "HY000",
        "Information schema is changed during the execution of the statement(for example, table definition may be "
        "updated by other DDL ran in parallel). If you see this error often, try increasing "
        f"`tidb_max_delta_schema_count`. {_RETRY}",
    )
    SNAPSHOT_TOO_OLD = 8055, "HY000", "snapshot is older than GC safe point %s"
    DDL_JOB_NOT_FOUND = 8224, "HY000", "DDL Job:%s not found"
    CANCEL_FINISHED_DDL_JOB = 8225, "HY000", "This job:%s is finished, so can't be cancelled"
    CANNOT_CANCEL_DDL_JOB = 8226, "HY000", "This job:%s is almost finished, can't be cancelled now"
    LAZY_UNIQUENESS_CHECK_FAILURE = (
        8147,
        "HY000",
        "transaction aborted because lazy uniqueness check is enabled and an error occurred: %s",
    )
    AS_OF = 8135, "HY000", "invalid as of timestamp: %s"
    PD_SERVER_TIMEOUT = 9001, "HY000", "PD server timeout: %s"
    TIKV_SERVER_TIMEOUT = 9002, "HY000", "TiKV server timeout"
    RESOLVE_LOCK_TIMEOUT = 9004, "HY000", "Resolve lock timeout"
    REGION_UNAVAILABLE = 9005, "HY000", "Region is unavailable"
    GC_TOO_EARLY = (
        9006,
        "HY000",
        "GC life time is shorter than transaction duration, transaction starts at %s, GC safe point is %s",
    )
    WRITE_CONFLICT = (
        9007,
        "HY000",
        f"Write conflict, txnStartTS=%d, conflictStartTS=%d, conflictCommitTS=%d, key=%s%s%s%s, reason=%s {_RETRY}",
    )


class SqlError(TidemillError):
    """Ends a statement; the client gets number, SQLSTATE and message, and the connection goes on."""

    code = "sql"

    def __init__(self, number: int, sqlstate: str, message: str) -> None:
        self.number = number
        self.sqlstate = sqlstate
        self.message = message
        super().__init__(f"ERROR {number} ({sqlstate}): {message}")

    def __reduce__(self) -> tuple[type["SqlError"], tuple[int, str, str]]:
        return type(self), (self.number, self.sqlstate, self.message)


def syntax_error(text: str, start: int, end: int) -> SqlError:
    """1064 in TiDB's words: where the word ends that does not fit, in bytes, and all that follows from its start."""
    line_start = text.rfind("\n", 0, start) + 1
    line = text.count("\n", 0, start) + 1
    column = len(text[line_start:end].encode("utf-8", "surrogateescape")) + (line > 1)
    return sql_error(Errno.PARSE_ERROR, f'line {line} column {column} near "{text[start : start + 2048]}" ')


def sql_error(errno: Errno, *facts: object) -> SqlError:
    """The error in MySQL's own words; ``facts`` fill the places of its text, all of them."""
    return SqlError(int(errno), errno.sqlstate, errno.text % facts if facts else errno.text)
