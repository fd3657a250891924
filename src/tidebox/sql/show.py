"""What there is: SHOW, DESCRIBE and INFORMATION_SCHEMA, as clients expect to find them.

catalog ──► rows of texts and numbers ──► as the answer to SHOW, or as a table that queries read
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Final, Protocol

from tidebox.sql.compute.kinds import INT, TEXT, Type
from tidebox.sql.compute.scope import ScopeColumn
from tidebox.sql.query import Listed
from tidebox.sql.tables import CatalogTable
from tidebox.sql.types import CHARSETS, is_text
from tidebox.sql.wire.columns import COLLATIONS
from tidemill.tidb.create_table import (
    create_table_sql,
    has_charset,
    public_columns,
    public_indexes,
    shown_default,
    type_text,
)
from tidemill.tidb.lexer import quoted

INFORMATION_SCHEMA: Final = "information_schema"
_NOT_NULL, _PRIMARY, _UNIQUE, _MULTIPLE, _AUTO, _ON_UPDATE = 1, 2, 4, 8, 512, 8192
_CHARSETS: Final = (
    ("ascii", "US ASCII", "ascii_bin", 1),
    ("binary", "binary", "binary", 1),
    ("gbk", "Chinese Internal Code Specification", "gbk_chinese_ci", 2),
    ("latin1", "Latin1", "latin1_bin", 1),
    ("utf8", "UTF-8 Unicode", "utf8_bin", 3),
    ("utf8mb4", "UTF-8 Unicode", "utf8mb4_bin", 4),
)

Rows = list[tuple[Any, ...]]
Answer = tuple[tuple[tuple[str, Type], ...], Rows]


class Databases(Protocol):
    """The catalog as far as it is shown."""

    @property
    def zone(self) -> tzinfo: ...

    def names(self) -> list[str]: ...

    def document(self, schema: str) -> Mapping[str, Any]: ...

    def tables(self, schema: str) -> Iterable[CatalogTable]: ...


def columns(*names: str) -> tuple[tuple[str, Type], ...]:
    """Texts, or numbers where the name ends in ``#``."""
    return tuple((name.rstrip("#"), INT if name.endswith("#") else TEXT) for name in names)


# Tables and columns


def show_columns(table: CatalogTable, zone: tzinfo, *, is_full: bool) -> Answer:
    rows: Rows = []
    for document in public_columns(table.document):
        kind = document["type"]
        row: tuple[Any, ...] = (
            document["name"]["O"],
            type_text(kind),
            "NO" if kind["Flag"] & _NOT_NULL else "YES",
            _key(kind["Flag"]),
            shown_default(document, zone),
            _extra(document),
        )
        if is_full:
            collation = kind["Collate"] if has_charset(kind) else None
            row = (*row[:2], collation, *row[2:], "select,insert,update,references", document["comment"])
        rows.append(row)
    if is_full:
        names = ("Field", "Type", "Collation", "Null", "Key", "Default", "Extra", "Privileges", "Comment")
    else:
        names = ("Field", "Type", "Null", "Key", "Default", "Extra")  # type: ignore[assignment]  # fewer of them
    return columns(*names), rows


def _key(flag: int) -> str:
    if flag & _PRIMARY:
        return "PRI"
    if flag & _UNIQUE:
        return "UNI"
    return "MUL" if flag & _MULTIPLE else ""


def _extra(document: Mapping[str, Any]) -> str:
    flag, parts = document["type"]["Flag"], []
    if flag & _AUTO:
        parts.append("auto_increment")
    elif document["generated_expr_string"]:
        parts.append("STORED GENERATED" if document["generated_stored"] else "VIRTUAL GENERATED")
    elif document.get("default_is_expr"):
        parts.append("DEFAULT_GENERATED")
    if flag & _ON_UPDATE:
        decimal = document["type"]["Decimal"]
        digits = f"({decimal})" if decimal > 0 else ""
        prefix = "DEFAULT_GENERATED " if str(document["default"] or "").upper().startswith("CURRENT") else ""
        parts.append(f"{prefix}on update CURRENT_TIMESTAMP{digits}")
    return " ".join(dict.fromkeys(parts))


def show_index(table: CatalogTable) -> Answer:
    names = columns(
        "Table",
        "Non_unique#",
        "Key_name",
        "Seq_in_index#",
        "Column_name",
        "Collation",
        "Cardinality#",
        "Sub_part#",
        "Packed",
        "Null",
        "Index_type",
        "Comment",
        "Index_comment",
        "Visible",
        "Expression",
        "Clustered",
        "Global",
    )
    rows: Rows = []
    for index in public_indexes(table.document):
        for place, part in enumerate(index["idx_cols"], 1):
            column = table.document["cols"][part["offset"]]
            rows.append(
                (
                    table.document["name"]["O"],
                    int(not index["is_unique"]),
                    index["idx_name"]["O"],
                    place,
                    part["name"]["O"],
                    "A",
                    0,
                    None if part["length"] < 0 else part["length"],
                    None,
                    "" if column["type"]["Flag"] & _NOT_NULL else "YES",
                    "BTREE",
                    "",
                    index["comment"],
                    "NO" if index["is_invisible"] else "YES",
                    None,
                    "YES" if index.get("is_clustered") else "NO",
                    "NO",
                )
            )
    return names, rows


# SHOW CREATE


def create_table(table: CatalogTable, next_id: int, zone: tzinfo) -> str:
    """The statement that makes the table, as TiDB prints it. ``next_id``: what AUTO_INCREMENT gives next, by the
    store's counter."""
    return create_table_sql(table.document, next_id=next_id, zone=zone)


def create_database(document: Mapping[str, Any]) -> str:
    name, charset, collate = document["db_name"]["O"], document["charset"], document["collate"]
    tail = f" COLLATE {collate}" if collate != f"{charset}_bin" else ""
    return f"CREATE DATABASE {quoted(name)} /*!40100 DEFAULT CHARACTER SET {charset}{tail} */"


# Lists that never change


def character_sets() -> Answer:
    return columns("Charset", "Description", "Default collation", "Maxlen#"), list(_CHARSETS)


def collations() -> Answer:
    known = ("ascii_bin", "binary", "latin1_bin", "utf8_bin", "utf8_general_ci", "utf8mb4_bin", "utf8mb4_general_ci")
    rows: Rows = []
    for name in (*known, "utf8mb4_0900_bin"):
        charset = name.partition("_")[0]
        is_default = "Yes" if any(row[2] == name for row in _CHARSETS) else ""
        padding = "NO PAD" if name in ("binary", "utf8mb4_0900_bin") else "PAD SPACE"
        rows.append((name, charset, COLLATIONS[name], is_default, "Yes", 1, padding))
    return columns("Collation", "Charset", "Id#", "Default", "Compiled", "Sortlen#", "Pad_attribute"), rows


def engines() -> Answer:
    comment = "Supports transactions, row-level locking, and foreign keys"
    return (
        columns("Engine", "Support", "Comment", "Transactions", "XA", "Savepoints"),
        [("InnoDB", "DEFAULT", comment, "YES", "YES", "YES")],
    )


def table_status(catalog: Databases, schema: str) -> Answer:
    names = columns(
        "Name",
        "Engine",
        "Version#",
        "Row_format",
        "Rows#",
        "Avg_row_length#",
        "Data_length#",
        "Max_data_length#",
        "Index_length#",
        "Data_free#",
        "Auto_increment#",
        "Create_time",
        "Update_time",
        "Check_time",
        "Collation",
        "Checksum",
        "Create_options",
        "Comment",
    )
    rows: Rows = []
    for table in catalog.tables(schema):
        document = table.document
        head = (document["name"]["O"], "InnoDB", 10, "Compact", 0, 0, 0, 0, 0, 0, None, None, None, None)
        rows.append((*head, document["collate"], None, "", document["comment"]))
    return names, rows


# INFORMATION_SCHEMA


def listed(catalog: Databases, name: str) -> Listed | None:
    """A table of INFORMATION_SCHEMA; None if it has none of this name."""
    found = _LISTED.get(name.upper())
    if found is None:
        return None
    names, make = found
    schema = INFORMATION_SCHEMA.upper()
    scope = tuple(ScopeColumn(n, kind, name.upper(), schema, name.upper()) for n, kind in columns(*names))
    return Listed(scope, lambda: make(catalog))


def listed_names() -> list[str]:
    return sorted(_LISTED)


def _schemata(catalog: Databases) -> Iterator[Sequence[Any]]:
    yield ("def", "INFORMATION_SCHEMA", "utf8mb4", "utf8mb4_bin", None, None)
    for name in catalog.names():
        document = catalog.document(name)
        yield ("def", document["db_name"]["O"], document["charset"], document["collate"], None, None)


def _each_table(catalog: Databases) -> Iterator[tuple[str, CatalogTable]]:
    for name in catalog.names():
        shown = str(catalog.document(name)["db_name"]["O"])
        for table in catalog.tables(name):
            yield shown, table


def _tables(catalog: Databases) -> Iterator[Sequence[Any]]:
    for name in listed_names():
        yield ("def", "INFORMATION_SCHEMA", name, "SYSTEM VIEW", None, 10, None, 0, "utf8mb4_bin", "", None, None)
    for schema, table in _each_table(catalog):
        d = table.document
        kind = "VIEW" if d.get("view") else "SEQUENCE" if d.get("sequence") else "BASE TABLE"
        partitioned = "partitioned" if d.get("partition") else ""
        clustered = "CLUSTERED" if d["pk_is_handle"] or d["is_common_handle"] else "NONCLUSTERED"
        name = d["name"]["O"]
        yield (
            "def", schema, name, kind, "InnoDB", 10, "Compact", 0, d["collate"], partitioned, d["comment"], d["id"],
            clustered,
        )  # fmt: skip


def _columns(catalog: Databases) -> Iterator[Sequence[Any]]:
    for schema, table in _each_table(catalog):
        for place, column in enumerate(public_columns(table.document), 1):
            yield _column_row(schema, table, column, place, catalog.zone)


_DATA_TYPES: Final = {
    1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint", 4: "float", 5: "double", 246: "decimal",
    7: "timestamp", 12: "datetime", 10: "date", 11: "time", 13: "year", 16: "bit", 245: "json", 247: "enum", 248: "set",
    225: "vector",
}  # fmt: skip


def _column_row(schema: str, table: CatalogTable, column: Mapping[str, Any], place: int, zone: tzinfo) -> Sequence[Any]:
    kind = column["type"]
    text = type_text(kind).removesuffix(" zerofill")  # told by SHOW only
    data_type = _DATA_TYPES.get(kind["Tp"]) or text.partition("(")[0]
    has_text = has_charset(kind)
    is_string = is_text(dict(kind)) or kind["Tp"] in (247, 248)
    length = kind["Flen"] if is_string else None
    octets = None if length is None else length * CHARSETS[kind["Charset"]][1]
    is_number = data_type in ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit")
    precision = kind["Flen"] if is_number else None
    scale = kind["Decimal"] if data_type == "decimal" else 0 if is_number else None
    if data_type in ("float", "double"):
        scale = None if kind["Decimal"] < 0 else kind["Decimal"]
    digits = max(kind["Decimal"], 0) if kind["Tp"] in (7, 11, 12) else None
    return (
        "def", schema, table.document["name"]["O"], column["name"]["O"], place, shown_default(column, zone),
        "NO" if kind["Flag"] & _NOT_NULL else "YES", data_type, length, octets, precision, scale, digits,
        kind["Charset"] if has_text else None, kind["Collate"] if has_text else None, text, _key(kind["Flag"]),
        _extra(column), "select,insert,update,references", column["comment"], column["generated_expr_string"],
    )  # fmt: skip


def _statistics(catalog: Databases) -> Iterator[Sequence[Any]]:
    for schema, table in _each_table(catalog):
        for row in show_index(table)[1]:
            yield (
                "def", schema, row[0], str(row[1]), schema, row[2], row[3], row[4], row[5], row[6], row[7], row[8],
                row[9], row[10], row[11], row[12], row[13], row[14],
            )  # fmt: skip


def _key_column_usage(catalog: Databases) -> Iterator[Sequence[Any]]:
    for schema, table in _each_table(catalog):
        for index in public_indexes(table.document):
            if not index["is_unique"]:
                continue
            for place, part in enumerate(index["idx_cols"], 1):
                name = table.document["name"]["O"]
                yield (
                    "def", schema, index["idx_name"]["O"], "def", schema, name, part["name"]["O"], place, None, None,
                    None, None,
                )  # fmt: skip


def _table_constraints(catalog: Databases) -> Iterator[Sequence[Any]]:
    for schema, table in _each_table(catalog):
        for index in public_indexes(table.document):
            if index["is_unique"]:
                kind = "PRIMARY KEY" if index["is_primary"] else "UNIQUE"
                yield ("def", schema, index["idx_name"]["O"], schema, table.document["name"]["O"], kind)


def _nothing(catalog: Databases) -> Iterator[Sequence[Any]]:
    return iter(())


def _of_answer(answer: Callable[[], Answer]) -> Callable[[Databases], Iterable[Sequence[Any]]]:
    return lambda catalog: answer()[1]


_LISTED: Final[dict[str, tuple[tuple[str, ...], Callable[[Databases], Iterable[Sequence[Any]]]]]] = {
    "SCHEMATA": (
        ("CATALOG_NAME", "SCHEMA_NAME", "DEFAULT_CHARACTER_SET_NAME", "DEFAULT_COLLATION_NAME", "SQL_PATH",
         "TIDB_PLACEMENT_POLICY_NAME"),
        _schemata,
    ),
    "TABLES": (
        ("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "TABLE_TYPE", "ENGINE", "VERSION#", "ROW_FORMAT", "TABLE_ROWS#",
         "TABLE_COLLATION", "CREATE_OPTIONS", "TABLE_COMMENT", "TIDB_TABLE_ID#", "TIDB_PK_TYPE"),
        lambda catalog: ((*row, None) if len(row) == 12 else row for row in _tables(catalog)),
    ),
    "COLUMNS": (
        ("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME", "ORDINAL_POSITION#", "COLUMN_DEFAULT",
         "IS_NULLABLE", "DATA_TYPE", "CHARACTER_MAXIMUM_LENGTH#", "CHARACTER_OCTET_LENGTH#", "NUMERIC_PRECISION#",
         "NUMERIC_SCALE#", "DATETIME_PRECISION#", "CHARACTER_SET_NAME", "COLLATION_NAME", "COLUMN_TYPE", "COLUMN_KEY",
         "EXTRA", "PRIVILEGES", "COLUMN_COMMENT", "GENERATION_EXPRESSION"),
        _columns,
    ),
    "STATISTICS": (
        ("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "NON_UNIQUE", "INDEX_SCHEMA", "INDEX_NAME", "SEQ_IN_INDEX#",
         "COLUMN_NAME", "COLLATION", "CARDINALITY#", "SUB_PART#", "PACKED", "NULLABLE", "INDEX_TYPE", "COMMENT",
         "INDEX_COMMENT", "IS_VISIBLE", "EXPRESSION"),
        _statistics,
    ),
    "KEY_COLUMN_USAGE": (
        ("CONSTRAINT_CATALOG", "CONSTRAINT_SCHEMA", "CONSTRAINT_NAME", "TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME",
         "COLUMN_NAME", "ORDINAL_POSITION#", "POSITION_IN_UNIQUE_CONSTRAINT#", "REFERENCED_TABLE_SCHEMA",
         "REFERENCED_TABLE_NAME", "REFERENCED_COLUMN_NAME"),
        _key_column_usage,
    ),
    "TABLE_CONSTRAINTS": (
        ("CONSTRAINT_CATALOG", "CONSTRAINT_SCHEMA", "CONSTRAINT_NAME", "TABLE_SCHEMA", "TABLE_NAME",
         "CONSTRAINT_TYPE"),
        _table_constraints,
    ),
    "REFERENTIAL_CONSTRAINTS": (
        ("CONSTRAINT_CATALOG", "CONSTRAINT_SCHEMA", "CONSTRAINT_NAME", "UNIQUE_CONSTRAINT_CATALOG",
         "UNIQUE_CONSTRAINT_SCHEMA", "UNIQUE_CONSTRAINT_NAME", "MATCH_OPTION", "UPDATE_RULE", "DELETE_RULE",
         "TABLE_NAME", "REFERENCED_TABLE_NAME"),
        _nothing,
    ),
    "VIEWS": (
        ("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "VIEW_DEFINITION", "CHECK_OPTION", "IS_UPDATABLE", "DEFINER",
         "SECURITY_TYPE", "CHARACTER_SET_CLIENT", "COLLATION_CONNECTION"),
        _nothing,
    ),
    "ROUTINES": (("ROUTINE_SCHEMA", "ROUTINE_NAME", "ROUTINE_TYPE"), _nothing),
    "TRIGGERS": (("TRIGGER_SCHEMA", "TRIGGER_NAME", "EVENT_OBJECT_TABLE"), _nothing),
    "EVENTS": (("EVENT_SCHEMA", "EVENT_NAME"), _nothing),
    "PARTITIONS": (("TABLE_SCHEMA", "TABLE_NAME", "PARTITION_NAME"), _nothing),
    "CHARACTER_SETS": (
        ("CHARACTER_SET_NAME", "DESCRIPTION", "DEFAULT_COLLATE_NAME", "MAXLEN#"), _of_answer(character_sets)
    ),
    "COLLATIONS": (
        ("COLLATION_NAME", "CHARACTER_SET_NAME", "ID#", "IS_DEFAULT", "IS_COMPILED", "SORTLEN#", "PAD_ATTRIBUTE"),
        _of_answer(collations),
    ),
    "ENGINES": (("ENGINE", "SUPPORT", "COMMENT", "TRANSACTIONS", "XA", "SAVEPOINTS"), _of_answer(engines)),
}  # fmt: skip
