"""Column types and literals drawn by lot: values that fit, values at the edge, and values that are wrong."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

COLLATIONS = (
    "utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci", "utf8mb4_0900_bin", "latin1_bin",
    "ascii_bin", "gbk_bin", "gbk_chinese_ci", "utf8_bin", "utf8_general_ci", "utf8_unicode_ci",
)  # fmt: skip
_WORDS = (
    "a", "A", "b", "B", "abc", "ABC", "abc ", "Abd", "", " ", "x%", "x_y", "0", "1", "-1", "12abc", "1.5", "2024-01-02",
    "it''s", "\\\\", 'q"q', "zz",
)  # fmt: skip
_WIDE = ("é", "E", "ß", "ss", "你好", "世界", "Ä", "🙂", "ａ", "Ÿ", "中文abc", "naïve")
_DATES = ("2024-01-02", "1999-12-31", "2000-02-29", "1000-01-01", "9999-12-31", "20240203", "24-1-5", "2024-06-30")
_TIMES = ("00:00:00", "12:34:56", "23:59:59", "01:02:03.456789", "23:59:59.999999", "10:00:00.5")
_WRONG = ("'abc'", "'2024-13-01'", "''", "1e40", "-1e10", "'99999999999999999999'", "'1x'", "'[1'", "1000000")

_FEWER = {"year": 3, "time": 3, "bit": 1}  # where the rest is a matter of how TiDB's own casts overflow

INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


@dataclass(frozen=True)
class ColumnType:
    """``kind`` with its sizes, and the rest as it is written behind them."""

    kind: str
    sizes: tuple[int, ...] = ()
    is_unsigned: bool = False
    collation: str = ""
    elems: tuple[str, ...] = ()
    is_zerofill: bool = False

    def __str__(self) -> str:
        text = self.kind
        if self.elems:
            text += "(" + ",".join(f"'{e}'" for e in self.elems) + ")"
        elif self.sizes:
            text += f"({','.join(map(str, self.sizes))})"
        text += " unsigned" * (self.is_unsigned and not self.is_zerofill) + " zerofill" * self.is_zerofill
        if self.collation:
            text += f" character set {self.collation.partition('_')[0]} collate {self.collation}"
        return text

    @property
    def is_text(self) -> bool:
        return self.kind in TEXTS

    @property
    def is_number(self) -> bool:
        return self.kind in INTEGERS or self.kind in ("decimal", "float", "double")

    @property
    def is_time(self) -> bool:
        return self.kind in ("date", "datetime", "timestamp")

    @property
    def needs_length_in_keys(self) -> bool:
        return self.kind.endswith(("text", "blob"))

    @property
    def fits_keys(self) -> bool:
        return self.kind not in ("json", "vector")


def draw_type(lot: random.Random, *, collation: bool = True) -> ColumnType:
    kind = lot.choice(
        ("int", "int", "bigint", "tinyint", "smallint", "mediumint", "decimal", "decimal", "float", "double", "varchar",
         "varchar", "varchar", "char", "text", "tinytext", "mediumtext", "longtext", "binary", "varbinary", "blob",
         "tinyblob", "mediumblob", "longblob", "date", "datetime", "timestamp", "time", "year", "bit", "enum", "set",
         "json", "vector", "datetime", "date")
    )  # fmt: skip
    unsigned = lot.random() < 0.3
    chosen = lot.choice(COLLATIONS) if collation and lot.random() < 0.5 else ""
    if kind in INTEGERS:
        if lot.random() < 0.1:
            return ColumnType(kind, (lot.randint(1, 12),), True, is_zerofill=True)
        return ColumnType(kind, is_unsigned=unsigned)
    if kind == "decimal":
        sizes = lot.choice(((10, 2), (5, 0), (65, 30), (20, 10), (1, 1), (30, 30), (12, 4)))
        return ColumnType(kind, sizes, unsigned)
    if kind in ("float", "double"):
        return ColumnType(kind, (9, 3) if lot.random() < 0.2 else (), unsigned)
    if kind in ("char", "varchar"):
        return ColumnType(kind, (lot.choice((1, 5, 10, 20, 100)),), collation=chosen)
    if kind in TEXTS:
        return ColumnType(kind, collation=chosen)
    if kind in ("binary", "varbinary"):
        return ColumnType(kind, (lot.choice((1, 4, 8, 20)),))
    if kind in ("datetime", "timestamp", "time"):
        return ColumnType(kind, (lot.randint(1, 6),) if lot.random() < 0.5 else ())
    if kind == "bit":
        return ColumnType(kind, (lot.choice((1, 7, 8, 17, 64)),))
    if kind in ("enum", "set"):
        elems = lot.choice((("x", "y", "z"), ("a", "b", "c", "d"), ("1", "2", "10"), ("é", "你", "q")))
        return ColumnType(kind, elems=elems, collation=chosen if chosen.startswith("utf8mb4") else "")
    if kind == "vector":
        return ColumnType(kind, (3,) if lot.random() < 0.5 else ())
    return ColumnType(kind)


def draw_value(lot: random.Random, kind: ColumnType, *, wrong: float = 0.03) -> str:
    """A literal for a column of this type; NULL now and then, and a wrong one as often as asked."""
    drawn = lot.random()
    if drawn < wrong:
        return lot.choice(_WRONG[: _FEWER.get(kind.kind, len(_WRONG))])
    if drawn < wrong + 0.08:
        return "NULL"
    return _fitting(lot, kind)


def _fitting(lot: random.Random, kind: ColumnType) -> str:
    match kind.kind:
        case name if name in INTEGERS:
            return _integer(lot, kind)
        case "decimal":
            return _decimal(lot, kind)
        case "float" | "double":
            drawn = lot.choice(("0", "1.5", "0.1", "1e3", "123.456", "1234.5678", "1e-5", "'2.5'", "99999"))
            return drawn if kind.is_unsigned or lot.random() < 0.7 else f"-{drawn}" if drawn[0] != "'" else "'-2.5'"
        case name if name in TEXTS:
            return _text(lot, kind)
        case name if name in BYTES:
            size = kind.sizes[0] if kind.sizes else 12
            content = lot.randbytes(lot.randint(0, size))
            return f"x'{content.hex()}'" if lot.random() < 0.6 else f"'{lot.choice(('a', 'b', 'B', '0'))}'"
        case "date":
            return f"'{lot.choice(_DATES)}'"
        case "datetime":
            drawn = f"'{lot.choice(_DATES[:5])} {lot.choice(_TIMES)}'" if lot.random() < 0.8 else f"'{_DATES[5]}'"
            # Rounded up it would be past the calendar's end, which TiDB tells in one way or another.
            return drawn.replace("9999-12-31 23:59:59.999999", "9999-12-31 23:59:59")
        case "timestamp":
            return f"'{lot.choice(_DATES[:3])} {lot.choice(_TIMES)}'"
        case "time":
            sign = "-" if lot.random() < 0.2 else ""
            return lot.choice((f"'{sign}{lot.choice(_TIMES)}'", f"'{sign}838:59:59'", f"{sign}12345", "'1 02:03:04'"))
        case "year":
            return lot.choice(("1901", "2155", "2024", "'99'", "0", "70", "'2000'", "69", "'0'"))
        case "bit":
            top = (1 << kind.sizes[0]) - 1
            value = lot.choice((0, 1, top, lot.randint(0, top)))
            return lot.choice((str(value), f"b'{value:b}'"))
        case "enum":
            return lot.choice((f"'{lot.choice(kind.elems)}'", str(lot.randint(1, len(kind.elems)))))
        case "set":
            chosen = lot.sample(kind.elems, lot.randint(0, len(kind.elems)))
            return lot.choice((f"'{','.join(chosen)}'", str(lot.randint(0, (1 << len(kind.elems)) - 1))))
        case "json":
            return lot.choice(_JSON)
        case _:
            count = kind.sizes[0] if kind.sizes else lot.randint(0, 4)
            return "'[" + ",".join(lot.choice(("1", "0.5", "-2.25", "1e3", "0")) for _ in range(count)) + "]'"


_JSON: Sequence[str] = (
    "'{}'", "'[]'", "'null'", "'1'", "'-1.5'", "'\"text\"'", "'true'", '\'{"a": 1, "b": [1, 2, {"c": null}]}\'',
    '\'[1, "x", 2.5, false, {"k": "v"}]\'', '\'{"b": 2, "a": {"z": "é你"}}\'', "'18446744073709551615'", "'1e100'",
    '\'{"long key with spaces": [[[]]]}\'', "'[0.1, 1e-7, 12345678901234567890]'",
)  # fmt: skip


def _integer(lot: random.Random, kind: ColumnType) -> str:
    bits = INTEGERS[kind.kind]
    low, high = (0, (1 << bits) - 1) if kind.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    drawn = lot.random()
    if drawn < 0.7:
        value = lot.randint(0 if kind.is_unsigned else -5, 20)
    elif drawn < 0.9:
        value = lot.choice((low, high, lot.randint(low, high)))
    elif drawn < 0.93:
        value = lot.choice((low - 1, high + 1))
    else:
        return lot.choice(("1.4", "1.5", "'7'", "'3.6'", "2.5e0", "true", "x'05'", "'1e1'"))
    return str(value)


def _decimal(lot: random.Random, kind: ColumnType) -> str:
    whole = kind.sizes[0] - kind.sizes[1]
    digits = "".join(lot.choice("0123456789") for _ in range(lot.randint(0, min(whole, 4)))) or "0"
    if lot.random() < 0.1:
        digits = "9" * (whole + (lot.random() < 0.2))
    text = (
        (digits or "0") + "." + "".join(lot.choice("0123456789") for _ in range(lot.choice((1, 2, kind.sizes[1] + 1))))
    )
    if not kind.is_unsigned and lot.random() < 0.3:
        text = f"-{text}"
    return lot.choice((text, text, f"'{text}'", text.partition(".")[0]))


def _text(lot: random.Random, kind: ColumnType) -> str:
    charset = kind.collation.partition("_")[0] or "utf8mb4"
    words: tuple[str, ...] = (*_WORDS, *_WIDE)
    if charset in ("latin1", "ascii"):
        words = _WORDS
    elif charset in ("gbk", "utf8"):
        words = (*_WORDS, "你好", "世界", "中文abc")
    return f"'{lot.choice(words)}'"
