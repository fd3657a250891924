"""TiDB's documents back as SQL: the statement that makes a table, as SHOW CREATE TABLE prints it.

Only what is public is written. What other databases do not know stands in comments that they pass over
(``/*T![…] … */``), as TiDB writes it.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnFlag, ColumnType
from tidemill.tidb.lexer import literal, quoted

Document = Mapping[str, Any]  # parsed JSON of TiDB's

_PUBLIC: Final = 5
_UNSPECIFIED: Final = -1
_ALL_BITS: Final = 64
_TEXT_NAMES: Final = {
    ColumnType.TINYBLOB: "tinytext",
    ColumnType.BLOB: "text",
    ColumnType.MEDIUMBLOB: "mediumtext",
    ColumnType.LONGBLOB: "longtext",
}
_INTEGER_NAMES: Final = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
}
_NO_DEFAULT_FLAG: Final = 1 << 12
_USUAL_COLLATIONS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "binary": "binary",
    "gbk": "gbk_chinese_ci",
}
_FOREIGN_KEY_ACTIONS: Final = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}
_INVOKER: Final = 1  # as whom a view is read: its definer otherwise
_PARTITIONED_BY: Final = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}


def create_table_sql(
    document: Document, schema: str | None = None, *, next_id: int | None = None, zone: tzinfo = UTC
) -> str:
    """The statement that makes the table; with ``schema`` in front of its name. ``next_id``: what AUTO_INCREMENT
    gives next, where the caller knows better than the document. ``zone``: of the session that is shown it."""
    lines = [_column_line(document, column, zone) for column in public_columns(document)]
    lines += [_index_line(document, index) for index in public_indexes(document)]
    lines += list(_foreign_key_lines(document))
    lines += list(_check_lines(document))
    body = ",\n".join(f"  {line}" for line in lines)
    name = quoted(document["name"]["O"])
    if schema is not None:
        name = f"{quoted(schema)}.{name}"
    return f"CREATE TABLE {name} (\n{body}\n){_table_options(document, next_id)}{_partitioning(document)}"


def create_view_sql(document: Document, schema: str) -> str:
    """The statement that makes the view, also in place of one of its name. It says all that depended on the session:
    tables have their databases with them. Who defined it is left out: only TiDB knows that user."""
    columns = ",".join(quoted(column["name"]["O"]) for column in document.get("cols") or ())
    view = document["view"]
    security = " SQL SECURITY INVOKER" if view.get("view_security") == _INVOKER else ""
    name = f"{quoted(schema)}.{quoted(document['name']['O'])}"
    return f"CREATE OR REPLACE{security} VIEW {name} ({columns}) AS {view['view_select']}"


def type_text(kind: Document) -> str:
    """A column's type as SHOW and DESCRIBE print it, in lower case, without its character set."""
    tp, flag = ColumnType(kind["Tp"]), kind["Flag"]
    length, decimal = kind["Flen"], kind["Decimal"]
    is_binary = kind["Charset"] == "binary"
    signs = (" unsigned" if flag & ColumnFlag.UNSIGNED else "") + (" zerofill" if flag & ColumnFlag.ZEROFILL else "")
    if tp in INTEGER_TYPES:
        # Widths are deprecated and not shown, but for what was BOOL and what is padded with zeros.
        is_wide = flag & ColumnFlag.ZEROFILL or (tp is ColumnType.TINY and length == 1)
        return f"{_INTEGER_NAMES[tp]}{f'({length})' if is_wide else ''}{signs}"
    if tp in _TEXT_NAMES:
        return tp.name.lower() if is_binary else _TEXT_NAMES[tp]
    match tp:
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            size = f"({length},{decimal})" if decimal != _UNSPECIFIED else ""
            return f"{tp.name.lower()}{size}{signs}"
        case ColumnType.NEWDECIMAL:
            return f"decimal({length},{decimal}){signs}"
        case ColumnType.DATETIME | ColumnType.TIMESTAMP | ColumnType.DURATION:
            name = "time" if tp is ColumnType.DURATION else tp.name.lower()
            return f"{name}({decimal})" if decimal > 0 else name
        case ColumnType.STRING:
            return f"{'binary' if is_binary else 'char'}({length})"
        case ColumnType.VARCHAR | ColumnType.VARSTRING:
            return f"{'varbinary' if is_binary else 'varchar'}({length})"
        case ColumnType.ENUM | ColumnType.SET:
            elems = ",".join(literal(e) for e in kind["Elems"] or ())
            return f"{tp.name.lower()}({elems})"
        case ColumnType.BIT | ColumnType.YEAR:
            return f"{tp.name.lower()}({length})"
        case ColumnType.VECTOR:
            return "vector" if length == _UNSPECIFIED else f"vector({length})"
    return tp.name.lower()


def has_charset(kind: Document) -> bool:
    """Whether the column holds text in a character set."""
    is_text = kind["Tp"] in STRING_TYPES or kind["Tp"] in (ColumnType.ENUM, ColumnType.SET)
    return is_text and kind["Charset"] != "binary"


def public_columns(document: Document) -> Iterator[Document]:
    return (c for c in document.get("cols") or () if c["state"] == _PUBLIC and not c.get("hidden"))


def public_indexes(document: Document) -> list[dict[str, Any]]:
    """All public ones; the primary key of integers, which is no index, with them. ``is_clustered`` is told of each."""
    found: list[dict[str, Any]] = []
    if document.get("pk_is_handle"):
        for column in document["cols"]:
            if column["type"]["Flag"] & ColumnFlag.PRI_KEY:
                part = {"name": column["name"], "offset": column["offset"], "length": _UNSPECIFIED}
                found.append(
                    {
                        "idx_name": {"O": "PRIMARY"},
                        "idx_cols": [part],
                        "is_unique": True,
                        "is_primary": True,
                        "is_invisible": False,
                        "comment": "",
                        "is_clustered": True,
                    }
                )
    public = (index for index in document.get("index_info") or () if index["state"] == _PUBLIC)
    is_common = bool(document.get("is_common_handle"))
    found += [{**index, "is_clustered": bool(index.get("is_primary")) and is_common} for index in public]
    return found


def shown_default(column: Document, zone: tzinfo = UTC) -> str | None:
    """A column's default as SHOW and DESCRIBE print it; None: NULL, or none."""
    kind = column["type"]
    default = None if kind["Flag"] & _NO_DEFAULT_FLAG else column.get("default")
    if column.get("default_bit") is not None and kind["Tp"] == ColumnType.BIT:
        raw = column["default_bit"]
        data = b64decode(raw) if isinstance(raw, str) else bytes(raw)
        return f"b'{int.from_bytes(data, 'big'):b}'"
    if default is None:
        return None
    is_moment = kind["Tp"] in (ColumnType.TIMESTAMP, ColumnType.DATETIME)
    if is_moment and str(default).upper() == "CURRENT_TIMESTAMP" and kind["Decimal"] > 0:
        return f"CURRENT_TIMESTAMP({kind['Decimal']})"
    if kind["Tp"] == ColumnType.TIMESTAMP and not column.get("default_is_expr"):
        return _in_zone(str(default), max(kind["Decimal"], 0), zone)
    return str(default)


def _in_zone(default: str, digits: int, zone: tzinfo) -> str:
    """A moment that the document has in UTC. Zeros, and CURRENT_TIMESTAMP, are none."""
    try:
        moment = datetime.fromisoformat(default).replace(tzinfo=UTC)
    except ValueError:
        return default
    text = moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S.%f")
    return text[: len(text) - 6 + digits] if digits else text[:-7]


def _table_options(document: Document, next_id: int | None) -> str:
    text = f" ENGINE=InnoDB DEFAULT CHARSET={document['charset']} COLLATE={document['collate']}"
    has_counter = any(column["type"]["Flag"] & ColumnFlag.AUTO_INCREMENT for column in public_columns(document))
    next_id = (document.get("auto_inc_id") or 0) if next_id is None else next_id
    if next_id > 1 and has_counter:
        text += f" AUTO_INCREMENT={next_id}"
    if document.get("auto_id_cache"):
        text += f" /*T![auto_id_cache] AUTO_ID_CACHE={document['auto_id_cache']} */"
    if document.get("max_shard_row_id_bits"):
        split = document.get("pre_split_regions")
        text += f" /*T! SHARD_ROW_ID_BITS={document['max_shard_row_id_bits']}"
        text += (f" PRE_SPLIT_REGIONS={split}" if split else "") + " */"
    if document.get("comment"):
        text += f" COMMENT={literal(document['comment'])}"
    return text


def _column_line(table: Document, column: Document, zone: tzinfo) -> str:
    kind = column["type"]
    flag = kind["Flag"]
    parts = [quoted(column["name"]["O"]), type_text(kind)]
    if has_charset(kind):
        if kind["Charset"] != table["charset"]:
            parts.append(f"CHARACTER SET {kind['Charset']} COLLATE {kind['Collate']}")
        elif kind["Collate"] != table["collate"] or kind["Collate"] != _USUAL_COLLATIONS.get(kind["Charset"]):
            parts.append(f"COLLATE {kind['Collate']}")
    if column.get("generated_expr_string"):
        how = "STORED" if column.get("generated_stored") else "VIRTUAL"
        parts.append(f"GENERATED ALWAYS AS ({column['generated_expr_string']}) {how}")
    if flag & ColumnFlag.NOT_NULL:
        parts.append("NOT NULL")
    elif kind["Tp"] == ColumnType.TIMESTAMP and column.get("default") is None and not flag & _NO_DEFAULT_FLAG:
        parts.append("NULL")
    parts += _default_part(column, zone)
    if flag & ColumnFlag.AUTO_INCREMENT:
        parts.append("AUTO_INCREMENT")
    if table.get("auto_random_bits") and flag & ColumnFlag.PRI_KEY:
        of_all = table.get("auto_random_range_bits") or _ALL_BITS
        bits = f"{table['auto_random_bits']}" + (f", {of_all}" if of_all != _ALL_BITS else "")
        parts.append(f"/*T![auto_rand] AUTO_RANDOM({bits}) */")
    if flag & ColumnFlag.ON_UPDATE_NOW:
        decimal = kind["Decimal"]
        parts.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({decimal})" if decimal > 0 else ""))
    if column.get("comment"):
        parts.append(f"COMMENT {literal(column['comment'])}")
    return " ".join(parts)


def _default_part(column: Document, zone: tzinfo) -> list[str]:
    kind = column["type"]
    flag = kind["Flag"]
    if flag & ColumnFlag.AUTO_INCREMENT or column.get("generated_expr_string"):
        return []
    shown = shown_default(column, zone)
    if shown is None:
        return [] if flag & (ColumnFlag.NOT_NULL | _NO_DEFAULT_FLAG) else ["DEFAULT NULL"]
    if column.get("default_is_expr"):
        return [f"DEFAULT {shown}" if shown.upper().startswith("CURRENT") else f"DEFAULT ({shown})"]
    dates = (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.DATE)
    if kind["Tp"] == ColumnType.BIT or (shown.upper().startswith("CURRENT_TIMESTAMP") and kind["Tp"] in dates):
        return [f"DEFAULT {shown}"]
    if shown.upper() == "CURRENT_DATE" and kind["Tp"] in dates:
        return ["DEFAULT (CURRENT_DATE)"]
    return [f"DEFAULT {literal(shown)}"]


def _index_line(table: Document, index: Document) -> str:
    names = ",".join(_index_part(table, part) for part in index["idx_cols"])
    if index.get("is_primary"):
        how = "CLUSTERED" if index["is_clustered"] else "NONCLUSTERED"
        line = f"PRIMARY KEY ({names}) /*T![clustered_index] {how} */"
    else:
        word = "UNIQUE KEY" if index.get("is_unique") else "KEY"
        line = f"{word} {quoted(index['idx_name']['O'])} ({names})"
    if index.get("is_global"):
        line += " /*T![global_index] GLOBAL */"
    if index.get("is_invisible"):
        line += " /*!80000 INVISIBLE */"
    if index.get("comment"):
        line += f" COMMENT {literal(index['comment'])}"
    return line


def _index_part(table: Document, part: Document) -> str:
    column = table["cols"][part["offset"]]
    if column.get("hidden") and column.get("generated_expr_string"):
        return f"({column['generated_expr_string']})"
    length = f"({part['length']})" if part["length"] >= 0 else ""
    return f"{quoted(part['name']['O'])}{length}"


def _foreign_key_lines(document: Document) -> Iterator[str]:
    for key in document.get("fk_info") or ():
        if key.get("state") != _PUBLIC:
            continue
        columns, referenced = (",".join(quoted(c["O"]) for c in key[names]) for names in ("cols", "ref_cols"))
        schema = (key.get("ref_schema") or {}).get("O")
        table = (f"{quoted(schema)}." if schema else "") + quoted(key["ref_table"]["O"])
        line = f"CONSTRAINT {quoted(key['fk_name']['O'])} FOREIGN KEY ({columns}) REFERENCES {table} ({referenced})"
        for event in ("DELETE", "UPDATE"):
            action = _FOREIGN_KEY_ACTIONS.get(int(key.get(f"on_{event.lower()}") or 0))
            line += f" ON {event} {action}" if action else ""
        yield line


def _check_lines(document: Document) -> Iterator[str]:
    for check in document.get("constraint_info") or ():
        if check.get("state") == _PUBLIC:
            not_enforced = "" if check.get("enforced", True) else " /*!80016 NOT ENFORCED */"
            name = quoted(check["constraint_name"]["O"])
            yield f"CONSTRAINT {name} CHECK (({check['expr_string']})){not_enforced}"


def _partitioning(document: Document) -> str:
    """The clause behind the table's options; empty for a table that is not partitioned."""
    partition = document.get("partition")
    kind = _PARTITIONED_BY.get(partition.get("type", 0)) if partition and partition.get("enable") else None
    if partition is None or kind is None:
        return ""
    columns = ",".join(quoted(c["O"]) for c in partition.get("columns") or ())
    definitions = partition.get("definitions") or ()
    if kind in ("HASH", "KEY"):
        by = partition.get("expr") if kind == "HASH" else columns
        plain = all(d["name"]["L"] == f"p{i}" and not d.get("comment") for i, d in enumerate(definitions))
        head = f"\nPARTITION BY {kind} ({by}) PARTITIONS {len(definitions)}"
        if plain:
            return head
        return f"\nPARTITION BY {kind} ({by})\n({_definitions(definitions)})"
    by = f"{kind} COLUMNS({columns})" if columns else f"{kind} ({partition.get('expr')})"
    return f"\nPARTITION BY {by}\n({_definitions(definitions)})"


def _definitions(definitions: Any) -> str:
    return ",\n ".join(_definition(definition) for definition in definitions)


def _definition(definition: Document) -> str:
    text = f"PARTITION {quoted(definition['name']['O'])}"
    if definition.get("less_than"):
        text += f" VALUES LESS THAN ({','.join(definition['less_than'])})"
    elif definition.get("in_values"):
        values = [v[0] if len(v) == 1 else f"({','.join(v)})" for v in definition["in_values"]]
        is_default = values == ["DEFAULT"]
        text += " DEFAULT" if is_default else f" VALUES IN ({','.join(values)})"
    if definition.get("comment"):
        text += f" COMMENT {literal(definition['comment'])}"
    return text
