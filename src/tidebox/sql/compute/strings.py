"""Functions of texts and bytes. Importing this registers them."""

import hashlib
import zlib
from base64 import b64encode
from typing import Any

from tidebox.sql.codec.collation import sort_key, text_bytes
from tidebox.sql.compute import convert, operators
from tidebox.sql.compute.compare import common_collation
from tidebox.sql.compute.kinds import BYTES, INT, TEXT, UNSIGNED, Computed, Kind, Type
from tidebox.sql.compute.registry import MANY, function, integers, is_constant, strict, texts
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call


def _text_type(arguments: list[Computed]) -> Type:
    types = [argument.type for argument in arguments]
    if any(t.kind in (Kind.BYTES, Kind.BITS, Kind.BIT) for t in types):
        return BYTES
    strings = [t for t in types if t.kind.is_string]
    return Type(Kind.TEXT, collation=common_collation(strings) if any(t.collation for t in strings) else "")


def _on_text(arguments: list[Computed], apply: Any, count: int | None = None) -> Computed:
    """A function of texts that gives a text; of bytes if any of its first ``count`` arguments is binary."""
    kind = _text_type(arguments[:count])
    if kind.kind is Kind.BYTES:
        computes = [convert.as_bytes(argument) for argument in arguments]
    else:
        computes = texts(arguments)
    return strict(kind, computes, apply, is_constant(arguments))


@function("CONCAT", least=1, most=MANY)
def _concat(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _on_text(arguments, lambda *parts: (b"" if isinstance(parts[0], bytes) else "").join(parts))


@function("CONCAT_WS", least=2, most=MANY)
def _concat_ws(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    separator, *parts = texts(arguments)

    def compute(row: Any) -> str | None:
        between = separator(row)
        if between is None:
            return None
        found: str = between.join(value for part in parts if (value := part(row)) is not None)
        return found

    return Computed(_text_type(arguments)._replace(kind=Kind.TEXT), compute, is_constant(arguments))


@function("LENGTH", "OCTET_LENGTH", least=1)
def _length(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, [convert.as_bytes(arguments[0])], len, is_constant(arguments))


@function("CHAR_LENGTH", "CHARACTER_LENGTH", least=1)
def _char_length(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if arguments[0].type.kind in (Kind.BYTES, Kind.BITS):
        return _length(tree, arguments, context)
    return strict(INT, texts(arguments), len, is_constant(arguments))


@function("BIT_LENGTH", least=1)
def _bit_length(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, [convert.as_bytes(arguments[0])], lambda raw: 8 * len(raw), is_constant(arguments))


@function("UPPER", "UCASE", "LOWER", "LCASE", least=1)
def _case(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if arguments[0].type.kind in (Kind.BYTES, Kind.BITS):
        return arguments[0]
    change = str.upper if tree.name in ("UPPER", "UCASE") else str.lower

    def apply(text: str) -> str:
        found = change(text)
        if len(found) == len(text):
            return found
        # A letter whose counterpart is several stays, as with ß.
        return "".join(c if len(other := change(c)) != 1 else other for c in text)

    return _on_text(arguments, apply)


@function("REVERSE", least=1)
def _reverse(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _on_text(arguments, lambda text: text[::-1])


@function("LTRIM", "RTRIM", least=1)
def _trim_side(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    is_left = tree.name == "LTRIM"

    def apply(text: Any) -> Any:
        blank = " " if isinstance(text, str) else b" "
        return text.lstrip(blank) if is_left else text.rstrip(blank)

    return _on_text(arguments, apply)


@function("TRIM_BOTH", "TRIM_LEADING", "TRIM_TRAILING", least=2)
def _trim(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: Any, what: Any) -> Any:
        if not what:
            return text
        if tree.name != "TRIM_TRAILING":
            while text.startswith(what):
                text = text[len(what) :]
        if tree.name != "TRIM_LEADING":
            while text.endswith(what):
                text = text[: -len(what)]
        return text

    return _on_text(arguments, apply)


def _text_and_numbers(arguments: list[Computed], context: Context, apply: Any) -> Computed:
    kind = _text_type(arguments[:1])
    first = convert.as_bytes(arguments[0]) if kind.kind is Kind.BYTES else convert.as_text(arguments[0])
    return strict(kind, [first, *integers(arguments[1:], context)], apply, is_constant(arguments))


@function("LEFT", "RIGHT", least=2)
def _side(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if tree.name == "LEFT":
        return _text_and_numbers(arguments, context, lambda text, count: text[: max(count, 0)])
    return _text_and_numbers(
        arguments, context, lambda text, count: text[max(len(text) - count, 0) :] if count > 0 else text[:0]
    )


@function("SUBSTRING", least=2, most=3)
def _substring(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: Any, start: int, count: int | None = None) -> Any:
        begin = start - 1 if start > 0 else len(text) + start
        if start == 0 or begin < 0 or (count is not None and count <= 0):
            return text[:0]
        return text[begin:] if count is None else text[begin : begin + count]

    return _text_and_numbers(arguments, context, apply)


@function("REPEAT", least=2)
def _repeat(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: Any, count: int) -> Any:
        if len(text) * max(count, 0) > 64 << 20:
            return None
        return text * max(count, 0)

    return _text_and_numbers(arguments, context, apply)


@function("SPACE", least=1)
def _space(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(TEXT, integers(arguments, context), lambda count: " " * min(max(count, 0), 64 << 20))


@function("LPAD", "RPAD", least=3)
def _pad(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = _text_type([arguments[0], arguments[2]])
    read = convert.as_bytes if kind.kind is Kind.BYTES else convert.as_text
    computes = [read(arguments[0]), integers([arguments[1]], context)[0], read(arguments[2])]

    def apply(text: Any, size: int, filler: Any) -> Any:
        if size < 0 or size > 64 << 20 or (not filler and size > len(text)):
            return None
        missing = size - len(text)
        if missing <= 0:
            return text[:size]
        padding = (filler * (missing // len(filler) + 1))[:missing]
        return padding + text if tree.name == "LPAD" else text + padding

    return strict(kind, computes, apply, is_constant(arguments))


@function("REPLACE", least=3)
def _replace(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _on_text(arguments, lambda text, old, new: text.replace(old, new) if old else text)


@function("INSTR", least=2)
def _instr(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _locate(tree, arguments[::-1], context)


@function("LOCATE", least=2, most=3)
def _locate(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    collation = common_collation([argument.type for argument in arguments[:2]])
    is_folding = collation.endswith("_ci")

    def apply(needle: str, text: str, start: int = 1) -> int:
        if is_folding:
            needle, text = needle.upper(), text.upper()
        return text.find(needle, start - 1) + 1 if 0 < start <= len(text) + 1 else 0

    computes = [*texts(arguments[:2]), *integers(arguments[2:], context)]
    return strict(INT, computes, apply, is_constant(arguments))


@function("SUBSTRING_INDEX", least=3)
def _substring_index(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: str, between: str, count: int) -> str:
        if not between or count == 0:
            return ""
        parts = text.split(between)
        return between.join(parts[:count] if count > 0 else parts[count:])

    return strict(TEXT, [*texts(arguments[:2]), *integers(arguments[2:], context)], apply, is_constant(arguments))


@function("FIELD", least=2, most=MANY)
def _field(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    tests = [operators.comparison("=", arguments[0], each, context.settings).compute for each in arguments[1:]]
    return Computed(INT, lambda row: next((at for at, test in enumerate(tests, 1) if test(row)), 0))


@function("ELT", least=2, most=MANY)
def _elt(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    (index,) = integers(arguments[:1], context)
    choices = texts(arguments[1:])

    def compute(row: Any) -> Any:
        at = index(row)
        return choices[at - 1](row) if at is not None and 0 < at <= len(choices) else None

    return Computed(TEXT, compute)


@function("FIND_IN_SET", least=2)
def _find_in_set(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    weigh = sort_key(common_collation([argument.type for argument in arguments]))

    def apply(needle: str, among: str) -> int:
        wanted = weigh(needle)
        parts = among.split(",") if among else []
        return next((at for at, part in enumerate(parts, 1) if weigh(part) == wanted), 0)

    return strict(INT, texts(arguments), apply, is_constant(arguments))


@function("STRCMP", least=2)
def _strcmp(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    weigh = sort_key(common_collation([argument.type for argument in arguments]))

    def apply(left: str, right: str) -> int:
        a, b = weigh(left), weigh(right)
        return (a > b) - (a < b)

    return strict(INT, texts(arguments), apply, is_constant(arguments))


@function("ASCII", "ORD", least=1)
def _ascii(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: bytes) -> int:
        if not text:
            return 0
        if tree.name == "ASCII" or text[0] < 0x80:
            return text[0]
        first = text.decode("utf-8", "surrogateescape")[0]
        return int.from_bytes(text_bytes(first), "big")

    return strict(INT, [convert.as_bytes(arguments[0])], apply, is_constant(arguments))


@function("CHAR", least=1, most=MANY)
def _char(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    computes = integers(arguments, context)

    def compute(row: Any) -> bytes:
        found = b""
        for each in computes:
            value = each(row)
            if value is not None:
                value &= 0xFFFFFFFF
                found += value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")
        return found

    return Computed(BYTES, compute, is_constant(arguments))


@function("HEX", least=1)
def _hex(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = arguments[0].type
    if kind.kind.is_number:
        settings = context.settings
        return strict(
            TEXT,
            [arguments[0].compute],
            lambda value: f"{convert.integer(value, kind, settings) & operators.UNSIGNED_MAX:X}",
            is_constant(arguments),
        )
    return strict(TEXT, [convert.as_bytes(arguments[0])], lambda raw: raw.hex().upper(), is_constant(arguments))


@function("UNHEX", least=1)
def _unhex(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: str) -> bytes | None:
        try:
            return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)
        except ValueError:
            return None

    return strict(BYTES, texts(arguments), apply, is_constant(arguments))


@function("BIN", "OCT", least=1)
def _base(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    shape = "b" if tree.name == "BIN" else "o"
    return strict(
        TEXT,
        integers(arguments, context),
        lambda value: format(value & operators.UNSIGNED_MAX, shape),
        is_constant(arguments),
    )


@function("TO_BASE64", least=1)
def _to_base64(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(raw: bytes) -> str:
        text = b64encode(raw).decode()
        return "\n".join(text[at : at + 76] for at in range(0, len(text), 76))

    return strict(TEXT, [convert.as_bytes(arguments[0])], apply, is_constant(arguments))


@function("MD5", "SHA", "SHA1", least=1)
def _digest(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    make = hashlib.md5 if tree.name == "MD5" else hashlib.sha1
    return strict(TEXT, [convert.as_bytes(arguments[0])], lambda raw: make(raw).hexdigest(), is_constant(arguments))


@function("SHA2", least=2)
def _sha2(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(raw: bytes, bits: int) -> str | None:
        sizes = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
        return hashlib.new(sizes[bits], raw).hexdigest() if bits in sizes else None

    computes = [convert.as_bytes(arguments[0]), *integers(arguments[1:], context)]
    return strict(TEXT, computes, apply, is_constant(arguments))


@function("CRC32", least=1)
def _crc32(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(UNSIGNED, [convert.as_bytes(arguments[0])], zlib.crc32, is_constant(arguments))
