"""The grammar of columns and keys: what stands inside CREATE TABLE (…) and behind ADD and MODIFY."""

from dataclasses import replace

from tidebox.sql.parse.cursor import Cursor
from tidebox.sql.parse.expressions import (
    Call,
    Expression,
    Number,
    Unary,
    parse_expression,
)
from tidebox.sql.parse.statements import (
    After,
    ColumnDef,
    First,
    Generated,
    KeyDef,
    KeyKind,
    KeyPart,
    Position,
    TableName,
    TypeSpec,
)
from tidemill.tidb.lexer import Kind, digits_as_bytes

_SYNONYMS = {
    "INTEGER": "INT", "INT1": "TINYINT", "INT2": "SMALLINT", "INT3": "MEDIUMINT", "MIDDLEINT": "MEDIUMINT",
    "INT4": "INT", "INT8": "BIGINT", "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "FIXED": "DECIMAL", "REAL": "DOUBLE",
    "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "CHARACTER": "CHAR", "VARCHARACTER": "VARCHAR", "NCHAR": "CHAR",
    "NVARCHAR": "VARCHAR", "LONG": "MEDIUMTEXT",
}  # fmt: skip
_INTEGERS = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
_WITH_LENGTH = ("BIT", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "YEAR", "TEXT", "BLOB", *_INTEGERS)
_WITH_FSP = ("DATETIME", "TIMESTAMP", "TIME")
_REALS = ("FLOAT", "DOUBLE", "DECIMAL")
_PLAIN = ("DATE", "JSON", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB")
_TEXTS = ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET")
_GEOMETRY = frozenset(
    [
        "GEOMETRY",
        "POINT",
        "LINESTRING",
        "POLYGON",
        "MULTIPOINT",
        "MULTILINESTRING",
        "MULTIPOLYGON",
        "GEOMETRYCOLLECTION",
    ]
)
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


def parse_table_name(cursor: Cursor) -> TableName:
    name = cursor.name()
    if cursor.accept_sign("."):
        return TableName(name, cursor.name(any_word=True))
    return TableName(None, name)


def parse_column(cursor: Cursor) -> ColumnDef:
    name = cursor.name()
    while cursor.accept_sign("."):
        name = cursor.name(any_word=True)
    return _options(cursor, ColumnDef(name, parse_type(cursor)))


def parse_position(cursor: Cursor) -> Position:
    if cursor.accept("FIRST"):
        return First()
    if cursor.accept("AFTER"):
        return After(cursor.name())
    return None


# Types


def parse_type(cursor: Cursor) -> TypeSpec:
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    word = cursor.take().upper
    name = _SYNONYMS.get(word, word)
    if word == "NATIONAL":
        name = _SYNONYMS.get(inner := cursor.take().upper, inner)
    if word in ("BOOL", "BOOLEAN"):
        return TypeSpec("TINYINT", 1)
    if word == "SERIAL":
        raise cursor.refuse("SERIAL")
    if word in _GEOMETRY:
        raise cursor.refuse(f"the type {word}")
    if word == "LONG":
        name = "MEDIUMBLOB" if cursor.accept("VARBINARY") else "MEDIUMTEXT"
        cursor.one_of("VARCHAR", "VARCHARACTER")
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    if name == "CHAR" and cursor.accept("VARYING"):
        name = "VARCHAR"
    spec = _sized(cursor, TypeSpec(name))
    if name in _INTEGERS or name in _REALS or name == "YEAR":
        return _signs(cursor, spec)
    return _charset(cursor, spec) if name in _TEXTS else spec


def _sized(cursor: Cursor, spec: TypeSpec) -> TypeSpec:
    name = spec.name
    if name in ("ENUM", "SET"):
        return replace(spec, elems=cursor.listed(lambda: _element(cursor)))
    if name in _REALS:
        sizes = cursor.listed(cursor.integer) if cursor.is_sign("(") else ()
        if len(sizes) > 2:
            raise cursor.error()
        return replace(spec, length=(*sizes, None)[0], decimal=sizes[1] if len(sizes) == 2 else None)
    if name in _WITH_FSP:
        return replace(spec, decimal=_in_parentheses(cursor))
    if name == "VECTOR":
        if cursor.accept_sign("<"):
            cursor.expect("FLOAT")
            cursor.expect_sign(">")
        return replace(spec, length=_in_parentheses(cursor))
    if name in _WITH_LENGTH:
        length = _in_parentheses(cursor)
        if length is None and name in ("VARCHAR", "VARBINARY"):
            raise cursor.error()
        return replace(spec, length=length)
    if name not in _PLAIN:
        cursor.at -= 1
        raise cursor.error()
    return spec


def _element(cursor: Cursor) -> str:
    token = cursor.token
    if token.kind in (Kind.HEX, Kind.BITS):
        cursor.take()
        return digits_as_bytes(token).decode()
    return cursor.string()


def _in_parentheses(cursor: Cursor) -> int | None:
    if not cursor.accept_sign("("):
        return None
    found = cursor.integer()
    cursor.expect_sign(")")
    return found


def _signs(cursor: Cursor, spec: TypeSpec) -> TypeSpec:
    while word := cursor.one_of("SIGNED", "UNSIGNED", "ZEROFILL"):
        if word == "UNSIGNED":
            spec = replace(spec, is_unsigned=True)
        elif word == "ZEROFILL":
            spec = replace(spec, is_zerofill=True, is_unsigned=True)
    return spec


def _charset(cursor: Cursor, spec: TypeSpec) -> TypeSpec:
    while True:
        if charset := parse_charset(cursor):
            spec = replace(spec, charset=charset)
        elif cursor.accept("BINARY"):
            spec = replace(spec, is_binary=True)
        elif cursor.accept("ASCII"):
            spec = replace(spec, charset="latin1")
        elif cursor.accept("UNICODE"):
            spec = replace(spec, charset="ucs2")
        else:
            return spec


def parse_charset(cursor: Cursor) -> str | None:
    """CHARACTER SET name, or None if something else comes next."""
    if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
        cursor.accept_sign("=")
        return _word_or_string(cursor).lower()
    return None


def parse_collate(cursor: Cursor) -> str | None:
    if cursor.accept("COLLATE"):
        cursor.accept_sign("=")
        return _word_or_string(cursor).lower()
    return None


def _word_or_string(cursor: Cursor) -> str:
    if cursor.accept("BINARY"):
        return "binary"
    return cursor.string() if cursor.token.kind is Kind.STRING else cursor.name()


# Options of a column


def _options(cursor: Cursor, column: ColumnDef) -> ColumnDef:
    while (following := _option(cursor, column)) is not None:
        column = following
    return column


def _option(cursor: Cursor, column: ColumnDef) -> ColumnDef | None:
    """``column`` with the next option; None if there is no further one."""
    if cursor.accept("NOT", "NULL"):
        return replace(column, is_not_null=True)
    if cursor.accept("NULL"):
        return replace(column, is_not_null=False)
    if cursor.accept("DEFAULT"):
        default, is_expression = parse_default(cursor)
        return replace(column, default=default, default_is_expression=is_expression)
    if cursor.accept("ON", "UPDATE"):
        return replace(column, on_update=_now(cursor))
    if cursor.accept("AUTO_INCREMENT"):
        return replace(column, is_auto_increment=True)
    if cursor.is_word("PRIMARY", "KEY"):
        cursor.accept("PRIMARY")
        cursor.expect("KEY")
        return replace(column, key=KeyKind.PRIMARY, is_clustered=_clustered(cursor))
    if cursor.accept("UNIQUE"):
        cursor.accept("KEY")
        return replace(column, key=column.key or KeyKind.UNIQUE)
    if cursor.accept("COMMENT"):
        return replace(column, comment=cursor.string())
    if collate := parse_collate(cursor):
        return replace(column, type=replace(column.type, collate=collate))
    if cursor.is_word("GENERATED", "AS"):
        return replace(column, generated=_generated(cursor))
    _refuse_option(cursor)
    return None


def _refuse_option(cursor: Cursor) -> None:
    for words, name in (
        (("REFERENCES",), "FOREIGN KEY"),
        (("CHECK",), "CHECK constraint"),
        (("CONSTRAINT",), "CHECK constraint"),
        (("AUTO_RANDOM",), "AUTO_RANDOM"),
        (("STORAGE",), "STORAGE"),
        (("COLUMN_FORMAT",), "COLUMN_FORMAT"),
    ):
        if cursor.are_words(*words):
            raise cursor.refuse(name)


def parse_default(cursor: Cursor) -> tuple[Expression, bool]:
    """What stands behind DEFAULT, and whether it is an expression in parentheses."""
    if cursor.accept_sign("("):
        expression = parse_expression(cursor)
        cursor.expect_sign(")")
        return expression, True
    if cursor.accept("NEXT", "VALUE", "FOR") or cursor.is_word("NEXTVAL"):
        raise cursor.refuse("SEQUENCE")
    if cursor.is_word(*_NOW):
        return Call("current_timestamp", _fsp_argument(_now(cursor))), False
    # The bare form takes a literal with its sign: what follows belongs to the column's other options.
    if cursor.accept_sign("-"):
        return Unary("-", _literal(cursor)), False
    cursor.accept_sign("+")
    return _literal(cursor), False


def _literal(cursor: Cursor) -> Expression:
    is_literal = cursor.token.kind in (Kind.STRING, Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.HEX, Kind.BITS)
    if not is_literal and not cursor.is_word("NULL", "TRUE", "FALSE") and cursor.ahead().kind is not Kind.STRING:
        if cursor.token.kind is Kind.WORD and cursor.ahead().text == "(":
            return parse_expression(cursor, 100)  # a function: CURRENT_DATE(), UUID(); judged by who builds the column
        if not cursor.is_word("CURRENT_DATE"):
            raise cursor.error()
    return parse_expression(cursor, 100)


def _fsp_argument(fsp: int) -> tuple[Expression, ...]:
    return (Number(str(fsp)),) if fsp else ()


def _now(cursor: Cursor) -> int:
    if not cursor.is_word(*_NOW):
        raise cursor.error()
    needs = cursor.take().upper == "NOW"
    if not cursor.accept_sign("("):
        if needs:
            raise cursor.error()
        return 0
    if cursor.accept_sign(")"):
        return 0
    fsp = cursor.integer()
    cursor.expect_sign(")")
    return fsp


def _generated(cursor: Cursor) -> Generated:
    if cursor.accept("GENERATED"):
        cursor.expect("ALWAYS")
    cursor.expect("AS")
    cursor.expect_sign("(")
    expression = parse_expression(cursor)
    cursor.expect_sign(")")
    return Generated(expression, cursor.one_of("VIRTUAL", "STORED") == "STORED")


def _clustered(cursor: Cursor) -> bool | None:
    word = cursor.one_of("CLUSTERED", "NONCLUSTERED")
    return None if word is None else word == "CLUSTERED"


# Keys


def starts_key(cursor: Cursor) -> bool:
    """Whether a key or a constraint comes next, rather than a column."""
    if cursor.is_word("VECTOR", "COLUMNAR"):
        return cursor.ahead().upper == "INDEX"
    return cursor.is_word("CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")


def parse_key(cursor: Cursor) -> KeyDef:
    name: str | None = None
    if cursor.accept("CONSTRAINT") and not cursor.is_word("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        name = cursor.name()
    for word, what in (
        ("FOREIGN", "FOREIGN KEY"),
        ("CHECK", "CHECK constraint"),
        ("FULLTEXT", "FULLTEXT index"),
        ("SPATIAL", "SPATIAL index"),
        ("VECTOR", "VECTOR INDEX"),
        ("COLUMNAR", "COLUMNAR INDEX"),
    ):
        if cursor.is_word(word):
            raise cursor.refuse(what)
    if cursor.accept("PRIMARY"):
        cursor.expect("KEY")
        kind = KeyKind.PRIMARY
    elif cursor.accept("UNIQUE"):
        cursor.one_of("KEY", "INDEX")
        kind = KeyKind.UNIQUE
    elif cursor.one_of("KEY", "INDEX"):
        kind = KeyKind.INDEX
    else:
        raise cursor.error()
    if cursor.accept("IF", "NOT", "EXISTS"):
        pass  # asked for by the caller, who looks before calling
    if not cursor.is_sign("(") and not cursor.is_word("USING", "TYPE"):
        given = cursor.name()
        name = given if kind is not KeyKind.PRIMARY else None
    return parse_key_body(cursor, KeyDef(kind, None if kind is KeyKind.PRIMARY else name, ()))


def parse_key_body(cursor: Cursor, key: KeyDef) -> KeyDef:
    """The columns of a key, and its options before and after them."""
    key = _key_type(cursor, key)
    key = replace(key, parts=cursor.listed(lambda: _key_part(cursor)))
    while True:
        before = cursor.at
        key = _key_type(cursor, key)
        if (clustered := _clustered(cursor)) is not None:
            key = replace(key, is_clustered=clustered)
        elif cursor.accept("COMMENT"):
            key = replace(key, comment=cursor.string())
        elif word := cursor.one_of("VISIBLE", "INVISIBLE"):
            key = replace(key, is_invisible=word == "INVISIBLE")
        elif cursor.accept("KEY_BLOCK_SIZE"):
            cursor.accept_sign("=")
            cursor.integer()
        elif cursor.is_word("GLOBAL"):
            raise cursor.refuse("GLOBAL index")
        elif cursor.is_word("WITH", "WHERE", "PRE_SPLIT_REGIONS"):
            raise cursor.refuse(f"{cursor.token.upper} of an index")
        if cursor.at == before:
            return key


def _key_type(cursor: Cursor, key: KeyDef) -> KeyDef:
    if cursor.one_of("USING", "TYPE"):
        word = cursor.one_of("BTREE", "HASH", "RTREE")
        if word is None:
            raise cursor.refuse(f"index type {cursor.token.text}")
        return replace(key, type=word)
    return key


def _key_part(cursor: Cursor) -> KeyPart:
    if cursor.is_sign("("):
        raise cursor.refuse("expression index")
    part = KeyPart(cursor.name(), _in_parentheses(cursor))
    if cursor.one_of("ASC", "DESC"):
        pass  # TiDB takes the word and keeps every index ascending
    return part
