"""CREATE TABLE and ALTER TABLE read for what they do to a table's columns and keys.

For those who have nothing of a table but the statements that made it. What concerns neither columns nor keys
(options, table partitions, foreign keys, checks) is passed over. Lengths that are left out are those TiDB assumes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnFlag, ColumnInfo, ColumnType
from tidemill.tidb.lexer import Kind, MalformedTextError, Token, tokens
from tidemill.tidb.mysql_type import default_decimal, default_length, type_word

_SYNONYMS = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint",
    "int4": "int", "int8": "bigint", "bool": "tinyint", "boolean": "tinyint", "dec": "decimal", "numeric": "decimal",
    "fixed": "decimal", "real": "double", "float4": "float", "float8": "double", "character": "char", "nchar": "char",
    "nvarchar": "varchar", "long": "mediumtext",
}  # fmt: skip
_COLLATIONS = {"utf8mb4": "utf8mb4_bin", "utf8": "utf8_bin", "latin1": "latin1_bin", "ascii": "ascii_bin"}
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_NUMBERS = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT})
_TIMES = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.DURATION})
_NO_COLUMN = frozenset(
    {"PRIMARY", "KEY", "INDEX", "UNIQUE", "CONSTRAINT", "FOREIGN", "CHECK", "FULLTEXT", "SPATIAL", "LIKE", "PARTITION"}
)


@dataclass(frozen=True, slots=True)
class Key:
    name: str  # "": the first column's, made unique
    columns: tuple[tuple[str, int], ...]  # with the length of a prefix, or -1
    is_unique: bool = False
    is_primary: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: ColumnInfo  # its id and offset mean nothing
    after: str | None = None  # None: at the end; "": at the beginning
    is_computed: bool = False  # what older rows have in it is not said by the statement


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    name: str
    column: ColumnInfo
    after: str | None = None


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class AddKey:
    key: Key


@dataclass(frozen=True, slots=True)
class DropKey:
    name: str  # PRIMARY for the primary key


@dataclass(frozen=True, slots=True)
class RenameKey:
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class RenameTo:
    schema: str  # "": the one it is in
    name: str


@dataclass(frozen=True, slots=True)
class MovesRows:
    """Rows appear or vanish without a change of any of them that is told: those of a table partition."""


Change = (
    AddColumn | ChangeColumn | DropColumn | RenameColumn | SetDefault | AddKey | DropKey | RenameKey | RenameTo
    | MovesRows
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Creation:
    changes: tuple[Change, ...]
    like: tuple[str, str] | None = None  # schema, which may be empty, and name of the table whose form it gets


def created(query: str) -> Creation | None:
    """What a CREATE TABLE says; None for any other statement, and for one that cannot be read."""
    reader = _reader(query)
    if reader is None or not reader.take("CREATE"):
        return None
    reader.take("TEMPORARY")
    if not reader.take("TABLE"):
        return None
    reader.take_all("IF", "NOT", "EXISTS")
    reader.name()
    like_at = 1 if reader.is_operator("(") and reader.peek(1).upper == "LIKE" else 0
    if reader.peek(like_at).upper == "LIKE":
        reader.at += like_at + 1
        return Creation((), reader.name())
    lines, options = reader.lines(), reader
    charset = options.table_charset() or "utf8mb4"
    changes = tuple(change for line in lines for change in _element(_Reader(line), charset))
    return Creation(changes)


def altered(query: str, charset: str = "utf8mb4") -> tuple[Change, ...]:
    """What an ALTER TABLE, CREATE INDEX, DROP INDEX or RENAME TABLE of one table changes. ``charset`` is the table's.
    Nothing for any other statement."""
    reader = _reader(query)
    if reader is None:
        return ()
    if reader.take_all("RENAME", "TABLE"):
        reader.name()
        reader.take("TO")
        return (RenameTo(*reader.name()),)
    if reader.take("ALTER"):
        reader.take("IGNORE")
        if not reader.take("TABLE"):
            return ()
        reader.name()
        return tuple(change for clause in reader.clauses() for change in _clause(_Reader(clause), charset))
    if reader.take("DROP") and reader.take("INDEX"):
        reader.take_all("IF", "EXISTS")
        return (DropKey(reader.word()),)
    if not reader.take("CREATE"):
        return ()
    is_unique = reader.take("UNIQUE")
    if not reader.take("INDEX"):
        return ()
    reader.take_all("IF", "NOT", "EXISTS")
    name = reader.word()
    reader.skip_to("ON")
    reader.take("ON")
    reader.name()
    return (AddKey(Key(name, reader.key_columns(), is_unique)),)


class _Reader:
    """Walks over tokens; beyond the last one there is always another that means nothing."""

    def __init__(self, found: Sequence[Token]) -> None:
        self.found, self.at = found, 0

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self.found[place] if place < len(self.found) else Token(Kind.END, "", 0, 0)

    def take(self, word: str) -> bool:
        if self.peek().upper != word:
            return False
        self.at += 1
        return True

    def take_all(self, *words: str) -> bool:
        if any(self.peek(n).upper != word for n, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def is_operator(self, text: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return token.kind is Kind.OPERATOR and token.text == text

    def operator(self, text: str) -> bool:
        if not self.is_operator(text):
            return False
        self.at += 1
        return True

    def word(self) -> str:
        token = self.peek()
        self.at += 1
        return token.text

    def name(self) -> tuple[str, str]:
        """A name that may have two parts: (schema or "", name)."""
        first = self.word()
        if self.operator("."):
            return first, self.word()
        return "", first

    def skip_to(self, *words: str) -> None:
        while self.peek().kind is not Kind.END and self.peek().upper not in words:
            self.at += 1

    def group(self) -> Sequence[Token]:
        """What stands in the parentheses that open here; nothing where none do."""
        if not self.is_operator("("):
            return ()
        begin, depth = self.at + 1, 0
        while self.peek().kind is not Kind.END:
            depth += self.is_operator("(") - self.is_operator(")")
            self.at += 1
            if not depth:
                return self.found[begin : self.at - 1]
        return ()

    def lines(self) -> list[Sequence[Token]]:
        return list(_split(self.group()))

    def clauses(self) -> Iterator[Sequence[Token]]:
        return _split(self.found[self.at :])

    def key_columns(self) -> tuple[tuple[str, int], ...]:
        """Of the first parentheses from here on. A part that is an expression has no column."""
        while self.peek().kind is not Kind.END and not self.is_operator("("):
            self.at += 1
        found = []
        for part in self.lines():
            length = int(part[2].text) if len(part) > 2 and part[2].kind is Kind.INTEGER else -1
            found.append(("" if part[0].kind is Kind.OPERATOR else part[0].text, length))
        return tuple(found)

    def table_charset(self) -> str:
        while self.peek().kind is not Kind.END:
            if self.charset_word():
                self.operator("=")
                return self.word().lower()
            self.at += 1
        return ""

    def charset_word(self) -> bool:
        return self.take_all("CHARACTER", "SET") or self.take_all("CHAR", "SET") or self.take("CHARSET")


def _reader(query: str) -> _Reader | None:
    try:
        return _Reader(tokens(query)[:-1])
    except MalformedTextError:
        return None


def _split(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    begin = depth = 0
    for at, token in enumerate(found):
        if token.kind is Kind.OPERATOR:
            depth += (token.text == "(") - (token.text == ")")
            if token.text in (",", ";") and depth == 0:
                if at > begin:
                    yield found[begin:at]
                begin = at + 1
    if len(found) > begin:
        yield found[begin:]


def _element(line: _Reader, charset: str) -> Iterator[Change]:
    """A line of a CREATE TABLE, or what follows ADD."""
    if line.peek().kind is not Kind.NAME and line.peek().upper in _NO_COLUMN:
        yield from _key(line)
    else:
        yield from _added(line, charset)


def _key(line: _Reader) -> Iterator[Change]:
    name = ""
    if line.take("CONSTRAINT") and line.peek().upper not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        name = line.word()
    if line.take("PRIMARY"):
        line.take("KEY")
        yield AddKey(Key("PRIMARY", line.key_columns(), True, True))
        return
    is_unique = line.take("UNIQUE")
    if (line.take("KEY") or line.take("INDEX")) or is_unique:
        line.take_all("IF", "NOT", "EXISTS")
        if not line.is_operator("(") and line.peek().upper != "USING":
            name = line.word()
        yield AddKey(Key(name, line.key_columns(), is_unique))


def _added(line: _Reader, charset: str) -> Iterator[Change]:
    column, keys, after, is_computed = _column(line, charset)
    yield AddColumn(column, after, is_computed)
    for key in keys:
        yield AddKey(key)


def _clause(clause: _Reader, charset: str) -> Iterator[Change]:
    verb = clause.word().upper()
    if verb == "ADD":
        yield from _add(clause, charset)
    elif verb == "DROP":
        yield from _drop(clause)
    elif verb in ("MODIFY", "CHANGE"):
        clause.take("COLUMN")
        clause.take_all("IF", "EXISTS")
        old = clause.word() if verb == "CHANGE" else clause.peek().text
        column, keys, after, _ = _column(clause, charset)
        yield ChangeColumn(old, column, after)
        yield from map(AddKey, keys)
    elif verb == "RENAME":
        yield from _rename(clause)
    elif verb == "ALTER":
        clause.take("COLUMN")
        name = clause.word()
        if clause.take_all("SET", "DEFAULT"):
            yield SetDefault(name, _default(clause)[0])
        elif clause.take_all("DROP", "DEFAULT"):
            yield SetDefault(name, None)
    elif verb in ("TRUNCATE", "EXCHANGE") and clause.take("PARTITION"):
        yield MovesRows()


def _add(clause: _Reader, charset: str) -> Iterator[Change]:
    is_column = clause.take("COLUMN")
    if clause.take("PARTITION"):
        return
    clause.take_all("IF", "NOT", "EXISTS")
    if clause.is_operator("("):
        for line in clause.lines():
            yield from _element(_Reader(line), charset)
    elif is_column:
        yield from _added(clause, charset)
    else:
        yield from _element(clause, charset)


def _drop(clause: _Reader) -> Iterator[Change]:
    if clause.take("PRIMARY"):
        yield DropKey("PRIMARY")
    elif clause.take("PARTITION"):
        yield MovesRows()
    elif clause.take("INDEX") or clause.take("KEY"):
        clause.take_all("IF", "EXISTS")
        yield DropKey(clause.word())
    elif clause.peek().upper not in ("FOREIGN", "CHECK", "CONSTRAINT") or clause.peek().kind is Kind.NAME:
        clause.take("COLUMN")
        clause.take_all("IF", "EXISTS")
        yield DropColumn(clause.word())


def _rename(clause: _Reader) -> Iterator[Change]:
    if clause.take("COLUMN"):
        old = clause.word()
        clause.take("TO")
        yield RenameColumn(old, clause.word())
    elif clause.take("INDEX") or clause.take("KEY"):
        old = clause.word()
        clause.take("TO")
        yield RenameKey(old, clause.word())
    else:
        _ = clause.take("TO") or clause.take("AS") or clause.operator("=")
        yield RenameTo(*clause.name())


def _column(line: _Reader, charset: str) -> tuple[ColumnInfo, list[Key], str | None, bool]:
    """A definition: the column, its own keys, the column it goes behind, and whether its default is computed."""
    name = line.word()
    column = _typed(line, name, charset)
    keys: list[Key] = []
    after: str | None = None
    is_computed = False
    flag = ColumnFlag(column.flag)
    while line.peek().kind is not Kind.END:
        if line.take_all("NOT", "NULL"):
            flag |= ColumnFlag.NOT_NULL
        elif line.take("DEFAULT"):
            column, is_computed = _with_default(column, line)
        elif line.take("AUTO_INCREMENT"):
            flag |= ColumnFlag.AUTO_INCREMENT
        elif line.take("UNIQUE"):
            line.take("KEY")
            keys.append(Key("", ((name, -1),), True))
        elif line.take("PRIMARY") or line.take("KEY"):
            line.take("KEY")
            flag |= ColumnFlag.NOT_NULL
            keys.append(Key("PRIMARY", ((name, -1),), True, True))
        elif line.take("COMMENT"):
            column = replace(column, comment=line.word())
        elif line.take("COLLATE"):
            column = replace(column, collate=line.word().lower())
        elif line.take_all("ON", "UPDATE"):
            flag |= ColumnFlag.ON_UPDATE_NOW
            line.word()
            line.group()
        elif line.take("AS"):
            expression = " ".join(token.text for token in line.group())
            is_stored = line.take("STORED")
            column, is_computed = replace(column, generated_expr=expression or "?", is_stored=is_stored), is_stored
        elif line.take("FIRST"):
            after = ""
        elif line.take("AFTER"):
            after = line.word()
        elif line.is_operator("("):
            line.group()
        else:
            line.at += 1
    return replace(column, flag=int(flag)), keys, after, is_computed


@cache
def _words() -> dict[str, tuple[ColumnType, bool]]:
    found: dict[str, tuple[ColumnType, bool]] = {}
    for kind in ColumnType:
        for charset in ("utf8mb4", "binary"):
            column = ColumnInfo(0, "", 0, kind, 0, -1, -1, charset, charset)
            found.setdefault(type_word(column), (kind, charset == "binary" and kind in STRING_TYPES))
    return found


def _typed(line: _Reader, name: str, charset: str) -> ColumnInfo:
    written = line.word().lower()
    if written == "national":
        written = line.word().lower()
    word = _SYNONYMS.get(written, written)
    if written == "serial":
        flag = ColumnFlag.NOT_NULL | ColumnFlag.UNSIGNED | ColumnFlag.AUTO_INCREMENT | ColumnFlag.UNIQUE_KEY
        return ColumnInfo(0, name, 0, ColumnType.LONGLONG, int(flag), 20, 0, "binary", "binary")
    line.take("PRECISION")
    if line.take("VARYING") or (written == "long" and line.take("VARCHAR")):
        word = "varchar" if written != "long" else word
    elif written == "long" and line.take("VARBINARY"):
        word = "mediumblob"
    kind, is_binary = _words().get(word, (ColumnType.VARCHAR, False))
    inner = line.group()
    elems = tuple(token.text for token in inner if token.kind is Kind.STRING)
    numbers = [int(token.text) for token in inner if token.kind is Kind.INTEGER]
    flag = ColumnFlag(0)
    while line.peek().upper in ("UNSIGNED", "SIGNED", "ZEROFILL", "BINARY", "ASCII", "UNICODE"):
        sign = line.word().upper()
        if sign in ("UNSIGNED", "ZEROFILL"):
            flag |= ColumnFlag.UNSIGNED
        if sign == "ZEROFILL":
            flag |= ColumnFlag.ZEROFILL
    own, collate = charset, ""
    while True:
        if line.charset_word():
            own = line.word().lower()
        elif line.take("COLLATE"):
            collate = line.word().lower()
        else:
            break
    has_text = kind in STRING_TYPES or kind in (ColumnType.ENUM, ColumnType.SET)
    if not has_text or is_binary:
        own, collate = "binary", "binary"
    elif collate and not collate.startswith(own):
        own = collate.partition("_")[0]
    if kind in STRING_TYPES and own == "binary":
        flag |= ColumnFlag.BINARY
    if kind in (ColumnType.BIT, ColumnType.YEAR):
        flag |= ColumnFlag.UNSIGNED
    if written in ("bool", "boolean"):
        numbers = [1]
    length, decimal = _sizes(kind, numbers, is_unsigned=bool(flag & ColumnFlag.UNSIGNED))
    if kind is ColumnType.FLOAT and len(numbers) == 1:  # a precision in bits
        kind, length = (ColumnType.DOUBLE if numbers[0] > 24 else kind), default_length(kind)
    return ColumnInfo(
        0, name, 0, kind, int(flag), length, decimal, own, collate or _COLLATIONS.get(own, own), elems
    )  # fmt: skip


def _sizes(kind: ColumnType, numbers: list[int], *, is_unsigned: bool) -> tuple[int, int]:
    length, decimal = default_length(kind), default_decimal(kind)
    if kind in _TIMES:
        digits = numbers[0] if numbers else 0
        return length + (digits + 1 if digits else 0), digits
    if kind in INTEGER_TYPES and is_unsigned and kind is not ColumnType.LONGLONG:
        length -= 1
    if numbers:
        length = numbers[0]
        decimal = numbers[1] if len(numbers) > 1 else (0 if kind is ColumnType.NEWDECIMAL else decimal)
    return length, decimal


def _with_default(column: ColumnInfo, line: _Reader) -> tuple[ColumnInfo, bool]:
    first = line.peek()
    text, is_computed = _default(line)
    if column.type is ColumnType.BIT and first.kind in (Kind.BITS, Kind.HEX, Kind.INTEGER) and text is not None:
        raw = int(text).to_bytes(max(1, (column.flen + 7) // 8))
        return replace(column, default_bit=raw, origin_default_bit=raw), False
    if column.type is ColumnType.TIMESTAMP and text is not None:
        is_computed = True  # a moment in a zone that nobody tells
    return replace(column, default=text, origin_default=None if is_computed else text), is_computed


def _default(line: _Reader) -> tuple[str | None, bool]:
    """A literal's text, and whether it is none but an expression."""
    if line.is_operator("("):
        line.group()
        return None, True
    sign = "-" if line.operator("-") else ""
    _ = line.operator("+")
    token = line.peek()
    line.at += 1
    if token.kind is Kind.WORD and token.text.startswith("_") and line.peek().kind is Kind.STRING:
        token = line.peek()  # behind the name of its charset
        line.at += 1
    if token.kind is Kind.STRING:
        return token.text, False
    if token.kind in _NUMBERS:
        return sign + token.text, False
    if token.kind in (Kind.BITS, Kind.HEX):
        return str(int(token.text or "0", 2 if token.kind is Kind.BITS else 16)), False
    if token.upper == "NULL":
        return None, False
    if token.upper in ("TRUE", "FALSE"):
        return str(int(token.upper == "TRUE")), False
    inner = line.group()
    if token.upper in _NOW:
        digits = f"({inner[0].text})" if inner else ""
        return f"CURRENT_TIMESTAMP{digits}", True
    return None, True


def subject(query: str) -> tuple[str, str]:
    """Schema, which may be empty, and name of the table that an ALTER, RENAME, FLASHBACK or RECOVER TABLE begins with;
    two empty texts for other statements."""
    reader = _reader(query)
    if reader is None or not any(reader.take(word) for word in ("ALTER", "RENAME", "FLASHBACK", "RECOVER")):
        return "", ""
    reader.take("IGNORE")
    return reader.name() if reader.take("TABLE") else ("", "")


def database(query: str) -> str:
    """The database that a CREATE, ALTER or DROP DATABASE names; empty for other statements."""
    reader = _reader(query)
    if reader is None or not any(reader.take(word) for word in ("CREATE", "ALTER", "DROP")):
        return ""
    if not (reader.take("DATABASE") or reader.take("SCHEMA")):
        return ""
    _ = reader.take_all("IF", "NOT", "EXISTS") or reader.take_all("IF", "EXISTS")
    return reader.word()
