"""The grammar of CREATE, DROP, TRUNCATE, RENAME and ALTER."""

from dataclasses import replace

from tidebox.sql.cursor import words_in
from tidebox.sql.parse.columns import (
    parse_charset,
    parse_collate,
    parse_column,
    parse_default,
    parse_key,
    parse_key_body,
    parse_position,
    parse_table_name,
    starts_key,
)
from tidebox.sql.parse.cursor import Cursor
from tidebox.sql.parse.statements import (
    AddColumn,
    AddKey,
    AlterDatabase,
    AlterSpec,
    AlterTable,
    ColumnDef,
    CreateDatabase,
    CreateTable,
    CreateTableLike,
    Ddl,
    DropColumn,
    DropDatabase,
    DropKey,
    DropPrimaryKey,
    DropTable,
    KeyDef,
    KeyKind,
    ModifyColumn,
    RenameColumn,
    RenameKey,
    RenameTables,
    RenameTo,
    SetAutoIncrement,
    SetCharset,
    SetComment,
    SetDefault,
    SetKeyVisibility,
    TableName,
    TableOptions,
    TruncateTable,
)
from tidemill.tidb.lexer import Kind

# Words of ALTER TABLE and of table options that name something outside, and how it is called.
_OUTSIDE = {
    "PARTITION": "PARTITION", "TTL": "TTL", "PLACEMENT": "PLACEMENT POLICY", "CACHE": "CACHE TABLE",
    "NOCACHE": "CACHE TABLE", "SHARD_ROW_ID_BITS": "SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS": "PRE_SPLIT_REGIONS",
    "AUTO_RANDOM_BASE": "AUTO_RANDOM", "TTL_ENABLE": "TTL", "TTL_JOB_INTERVAL": "TTL", "REMOVE": "REMOVE PARTITIONING",
    "TRUNCATE": "TRUNCATE PARTITION", "EXCHANGE": "EXCHANGE PARTITION", "REORGANIZE": "REORGANIZE PARTITION",
    "COALESCE": "COALESCE PARTITION", "REBUILD": "REBUILD PARTITION", "ATTRIBUTES": "ATTRIBUTES",
    "ORDER": "ORDER BY in ALTER TABLE", "DISCARD": "DISCARD TABLESPACE", "IMPORT": "IMPORT TABLESPACE",
    "SET": "SET TIFLASH REPLICA", "CHECK": "CHECK constraint", "STATS_OPTIONS": "STATS_OPTIONS", "UNION": "UNION",
    "SECONDARY_LOAD": "SECONDARY_LOAD", "SECONDARY_UNLOAD": "SECONDARY_UNLOAD", "AFFINITY": "AFFINITY",
}  # fmt: skip
# Options of MySQL that TiDB reads and forgets: name, then a word, string or number.
_FORGOTTEN = words_in("""
    ENGINE AVG_ROW_LENGTH CHECKSUM COMPRESSION CONNECTION DELAY_KEY_WRITE ENCRYPTION INSERT_METHOD
    KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT
    STATS_SAMPLE_PAGES TABLESPACE DATA AUTOEXTEND_SIZE SECONDARY_ENGINE ENGINE_ATTRIBUTE
    SECONDARY_ENGINE_ATTRIBUTE
""")


# CREATE


def parse_create_table(sql: str) -> CreateTable | CreateTableLike:
    """One CREATE TABLE, where nothing else is expected."""
    cursor = Cursor(sql)
    cursor.expect("CREATE", "TABLE")
    statement = _create_table(cursor)
    cursor.end()
    return statement


def parse_create(cursor: Cursor) -> Ddl:
    cursor.expect("CREATE")
    if cursor.one_of("DATABASE", "SCHEMA"):
        return _create_database(cursor)
    if cursor.accept("TABLE"):
        return _create_table(cursor)
    if cursor.is_word("UNIQUE", "INDEX"):
        return _create_index(cursor)
    if cursor.is_word("TEMPORARY", "GLOBAL", "LOCAL"):
        raise cursor.refuse("TEMPORARY TABLE")
    words = [t.upper for t in cursor.tokens[cursor.at : cursor.at + 6] if t.kind is Kind.WORD]
    for word in words:
        if word in _CREATED:
            raise cursor.refuse(f"CREATE {_CREATED[word]}")
    raise cursor.error()


_CREATED = {
    "VIEW": "VIEW", "USER": "USER", "ROLE": "ROLE", "PROCEDURE": "PROCEDURE", "FUNCTION": "FUNCTION",
    "TRIGGER": "TRIGGER", "EVENT": "EVENT", "SEQUENCE": "SEQUENCE", "PLACEMENT": "PLACEMENT POLICY",
    "RESOURCE": "RESOURCE GROUP", "FULLTEXT": "FULLTEXT INDEX", "SPATIAL": "SPATIAL INDEX", "VECTOR": "VECTOR INDEX",
    "COLUMNAR": "COLUMNAR INDEX", "BINDING": "BINDING", "SERVER": "SERVER", "LOGFILE": "LOGFILE GROUP",
    "TABLESPACE": "TABLESPACE", "STATISTICS": "STATISTICS",
}  # fmt: skip


def _create_database(cursor: Cursor) -> CreateDatabase:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name()
    charset, collate = _database_options(cursor)
    return CreateDatabase(name, if_not_exists, charset, collate)


def _database_options(cursor: Cursor) -> tuple[str | None, str | None]:
    charset = collate = None
    while cursor.token.kind is not Kind.END:
        cursor.accept("DEFAULT")
        if found := parse_charset(cursor):
            charset = found
        elif found := parse_collate(cursor):
            collate = found
        elif cursor.accept("ENCRYPTION"):
            cursor.accept_sign("=")
            cursor.string()
        elif cursor.is_word("PLACEMENT"):
            raise cursor.refuse("PLACEMENT POLICY")
        else:
            raise cursor.error()
    return charset, collate


def _create_table(cursor: Cursor) -> CreateTable | CreateTableLike:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    table = parse_table_name(cursor)
    if cursor.accept("LIKE"):
        return CreateTableLike(table, if_not_exists, parse_table_name(cursor))
    if cursor.is_sign("(") and cursor.ahead().upper == "LIKE":
        cursor.take()
        cursor.take()
        source = parse_table_name(cursor)
        cursor.expect_sign(")")
        return CreateTableLike(table, if_not_exists, source)
    columns: list[ColumnDef] = []
    keys: list[KeyDef] = []
    if cursor.is_sign("("):
        if cursor.ahead().upper in ("SELECT", "WITH"):
            raise cursor.refuse("CREATE TABLE ... SELECT")
        cursor.listed(lambda: _element(cursor, columns, keys))
    options = _table_options(cursor)
    if cursor.is_word("SELECT", "AS", "IGNORE", "REPLACE", "WITH"):
        raise cursor.refuse("CREATE TABLE ... SELECT")
    return CreateTable(table, if_not_exists, tuple(columns), tuple(keys), options)


def _element(cursor: Cursor, columns: list[ColumnDef], keys: list[KeyDef]) -> None:
    if starts_key(cursor):
        keys.append(parse_key(cursor))
    else:
        columns.append(parse_column(cursor))


def _table_options(cursor: Cursor) -> TableOptions:
    options = TableOptions()
    while cursor.token.kind is not Kind.END:
        cursor.accept_sign(",")
        following = _table_option(cursor, options)
        if following is None:
            return options
        options = following
    return options


def _table_option(cursor: Cursor, options: TableOptions) -> TableOptions | None:
    if cursor.accept("DEFAULT") and not cursor.is_word("CHARACTER", "CHARSET", "CHAR", "COLLATE"):
        raise cursor.error()
    if charset := parse_charset(cursor):
        return replace(options, charset=charset)
    if collate := parse_collate(cursor):
        return replace(options, collate=collate)
    if cursor.accept("COMMENT"):
        cursor.accept_sign("=")
        return replace(options, comment=cursor.string())
    if cursor.accept("AUTO_INCREMENT"):
        cursor.accept_sign("=")
        return replace(options, auto_increment=cursor.integer())
    if cursor.accept("AUTO_ID_CACHE"):
        cursor.accept_sign("=")
        return replace(options, auto_id_cache=cursor.integer())
    if cursor.is_word(*_FORGOTTEN):
        if cursor.take().upper == "DATA":
            cursor.expect("DIRECTORY")
        cursor.accept_sign("=")
        cursor.take()
        return options
    if cursor.token.kind is Kind.WORD and cursor.token.upper in _OUTSIDE:
        raise cursor.refuse(_OUTSIDE[cursor.token.upper])
    return None


def _create_index(cursor: Cursor) -> AlterTable:
    kind = KeyKind.UNIQUE if cursor.accept("UNIQUE") else KeyKind.INDEX
    cursor.expect("INDEX")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    key = KeyDef(kind, cursor.name(), ())
    if word := cursor.one_of("USING", "TYPE") and cursor.one_of("BTREE", "HASH", "RTREE"):
        key = replace(key, type=word)
    cursor.expect("ON")
    table = parse_table_name(cursor)
    key = parse_key_body(cursor, key)
    _algorithm(cursor)
    return AlterTable(table, (AddKey(key, if_not_exists),))


def _algorithm(cursor: Cursor) -> bool:
    """ALGORITHM = … and LOCK = …: TiDB does as it does whatever is asked."""
    found = False
    while cursor.one_of("ALGORITHM", "LOCK"):
        cursor.accept_sign("=")
        cursor.take()
        found = True
    return found


# DROP, TRUNCATE, RENAME


def parse_drop(cursor: Cursor) -> Ddl:
    cursor.expect("DROP")
    if cursor.one_of("DATABASE", "SCHEMA"):
        if_exists = cursor.accept("IF", "EXISTS")
        return DropDatabase(cursor.name(), if_exists)
    if cursor.one_of("TABLE", "TABLES"):
        if_exists = cursor.accept("IF", "EXISTS")
        tables = _comma_separated_tables(cursor)
        cursor.one_of("RESTRICT", "CASCADE")
        return DropTable(tables, if_exists)
    if cursor.accept("INDEX"):
        if_exists = cursor.accept("IF", "EXISTS")
        name = "PRIMARY" if cursor.accept("PRIMARY") else cursor.name()
        cursor.expect("ON")
        table = parse_table_name(cursor)
        _algorithm(cursor)
        if name.upper() == "PRIMARY":
            return AlterTable(table, (DropPrimaryKey(),))
        return AlterTable(table, (DropKey(name, if_exists),))
    for token in cursor.tokens[cursor.at : cursor.at + 3]:
        if token.kind is Kind.WORD and (token.upper in _CREATED or token.upper in ("TEMPORARY", "PREPARE", "STATS")):
            raise cursor.refuse(f"DROP {_CREATED.get(token.upper, token.upper)}")
    raise cursor.error()


def _comma_separated_tables(cursor: Cursor) -> tuple[TableName, ...]:
    tables = [parse_table_name(cursor)]
    while cursor.accept_sign(","):
        tables.append(parse_table_name(cursor))
    return tuple(tables)


def parse_truncate(cursor: Cursor) -> TruncateTable:
    cursor.expect("TRUNCATE")
    cursor.accept("TABLE")
    return TruncateTable(parse_table_name(cursor))


def parse_rename(cursor: Cursor) -> RenameTables:
    cursor.expect("RENAME")
    if cursor.is_word("USER"):
        raise cursor.refuse("RENAME USER")
    if not cursor.one_of("TABLE", "TABLES"):
        raise cursor.error()
    pairs: list[tuple[TableName, TableName]] = []
    while True:
        old = parse_table_name(cursor)
        cursor.expect("TO")
        pairs.append((old, parse_table_name(cursor)))
        if not cursor.accept_sign(","):
            return RenameTables(tuple(pairs))


# ALTER


def parse_alter(cursor: Cursor) -> Ddl:
    cursor.expect("ALTER")
    cursor.accept("IGNORE")
    if cursor.one_of("DATABASE", "SCHEMA"):
        name = None if cursor.is_word("DEFAULT", "CHARACTER", "COLLATE", "CHARSET") else cursor.name()
        charset, collate = _database_options(cursor)
        if charset is None and collate is None:
            raise cursor.error()
        return AlterDatabase(name, charset, collate)
    if not cursor.accept("TABLE"):
        if cursor.token.kind is Kind.WORD and cursor.token.upper in _CREATED:
            raise cursor.refuse(f"ALTER {_CREATED[cursor.token.upper]}")
        raise cursor.error()
    table = parse_table_name(cursor)
    specs: list[AlterSpec] = []
    while cursor.token.kind is not Kind.END:
        if not _algorithm(cursor):
            if cursor.accept("FORCE"):
                raise cursor.refuse("ALTER TABLE ... FORCE")
            specs.extend(_spec(cursor))
        if not cursor.accept_sign(","):
            break
    return AlterTable(table, tuple(specs))


def _spec(cursor: Cursor) -> tuple[AlterSpec, ...]:
    match cursor.token.upper:
        case "ADD":
            return _add(cursor)
        case "DROP":
            return (_drop(cursor),)
        case "MODIFY" | "CHANGE":
            return (_modify(cursor),)
        case "RENAME":
            return (_rename(cursor),)
        case "ALTER":
            return (_alter(cursor),)
        case "CONVERT":
            cursor.expect("CONVERT", "TO")
            charset = parse_charset(cursor)
            if charset is None:
                raise cursor.error()
            return (SetCharset(charset, parse_collate(cursor), converts=True),)
    return (_table_setting(cursor),)


def _add(cursor: Cursor) -> tuple[AlterSpec, ...]:
    cursor.expect("ADD")
    if cursor.is_word("PARTITION"):
        raise cursor.refuse("ADD PARTITION")
    if cursor.is_word("STATS_EXTENDED"):
        raise cursor.refuse("STATS_EXTENDED")
    if starts_key(cursor):
        if_not_exists = any(cursor.are_words_at(i, "IF", "NOT", "EXISTS") for i in (1, 2))
        return (AddKey(parse_key(cursor), if_not_exists),)
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.is_sign("("):
        return tuple(AddColumn(c, None, if_not_exists) for c in cursor.listed(lambda: parse_column(cursor)))
    column = parse_column(cursor)
    return (AddColumn(column, parse_position(cursor), if_not_exists),)


def _drop(cursor: Cursor) -> AlterSpec:
    cursor.expect("DROP")
    if cursor.accept("PRIMARY"):
        cursor.expect("KEY")
        return DropPrimaryKey()
    if cursor.one_of("INDEX", "KEY"):
        if_exists = cursor.accept("IF", "EXISTS")
        if cursor.accept("PRIMARY"):
            return DropPrimaryKey()
        return DropKey(cursor.name(), if_exists)
    for word, what in (
        ("PARTITION", "DROP PARTITION"),
        ("FOREIGN", "FOREIGN KEY"),
        ("CHECK", "CHECK constraint"),
        ("CONSTRAINT", "CHECK constraint"),
        ("STATS_EXTENDED", "STATS_EXTENDED"),
    ):
        if cursor.is_word(word):
            raise cursor.refuse(what)
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name()
    cursor.one_of("RESTRICT", "CASCADE")
    return DropColumn(name, if_exists)


def _modify(cursor: Cursor) -> ModifyColumn:
    changes = cursor.take().upper == "CHANGE"
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    old_name = cursor.name() if changes else None
    column = parse_column(cursor)
    return ModifyColumn(old_name or column.name, column, parse_position(cursor), if_exists)


def _rename(cursor: Cursor) -> AlterSpec:
    cursor.expect("RENAME")
    if cursor.accept("COLUMN"):
        old = cursor.name()
        cursor.expect("TO")
        return RenameColumn(old, cursor.name())
    if cursor.one_of("INDEX", "KEY"):
        old = cursor.name()
        cursor.expect("TO")
        return RenameKey(old, cursor.name())
    if not cursor.one_of("TO", "AS"):
        cursor.accept_sign("=")
    return RenameTo(parse_table_name(cursor))


def _alter(cursor: Cursor) -> AlterSpec:
    cursor.expect("ALTER")
    if cursor.accept("INDEX"):
        name = cursor.name()
        word = cursor.one_of("VISIBLE", "INVISIBLE")
        if word is None:
            raise cursor.error()
        return SetKeyVisibility(name, word == "INVISIBLE")
    if cursor.is_word("CHECK", "CONSTRAINT"):
        raise cursor.refuse("CHECK constraint")
    cursor.accept("COLUMN")
    name = cursor.name()
    if cursor.accept("SET", "DEFAULT"):
        default, is_expression = parse_default(cursor)
        return SetDefault(name, default, is_expression)
    cursor.expect("DROP", "DEFAULT")
    return SetDefault(name, None, False)


def _table_setting(cursor: Cursor) -> AlterSpec:
    options = _table_options_of_one(cursor)
    if options is None:
        word = cursor.token
        if word.kind is Kind.WORD and word.upper in _OUTSIDE:
            raise cursor.refuse(_OUTSIDE[word.upper])
        if word.kind is Kind.WORD and word.upper in ("ENABLE", "DISABLE", "LOCK", "UNLOCK", "WITH", "WITHOUT"):
            raise cursor.refuse(f"{word.upper} in ALTER TABLE")
        raise cursor.error()
    if options.auto_increment is not None:
        return SetAutoIncrement(options.auto_increment)
    if options.charset or options.collate:
        return SetCharset(options.charset, options.collate, converts=False)
    if options.auto_id_cache:
        raise cursor.refuse("AUTO_ID_CACHE in ALTER TABLE")
    return SetComment(options.comment)


def _table_options_of_one(cursor: Cursor) -> TableOptions | None:
    """One option, or a character set with its collation, which are one."""
    is_comment = cursor.is_word("COMMENT")
    options = _table_option(cursor, TableOptions())
    if options is None or (options == TableOptions() and not is_comment):
        return None
    if options.charset and (cursor.is_word("COLLATE") or cursor.are_words("DEFAULT", "COLLATE")):
        return _table_option(cursor, options)
    return options
