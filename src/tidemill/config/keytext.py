"""Keys as people write them: in hex, as they are, or escaped; and the ranges and filters that are made of them."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from tidemill.errors import UsageError
from tidemill.model.keys import DEFAULT_KEYSPACE, Bounds, KeyApi, KeyFilter, KeyRange

MAX_KEY_BYTES = 8192  # TiKV's own default

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{3}|[abfnrtv\\'\"])|(\\)", re.DOTALL)
_NAMED = dict(zip(b"abfnrtv\\'\"", b"\a\b\f\n\r\t\v\\'\"", strict=True))


class KeyFormat(StrEnum):
    """How keys are written on the command line."""

    hex = "hex"  # 6b657931
    raw = "raw"  # key1, in UTF-8
    escaped = "escaped"  # key\x001


def read_key(text: str, form: KeyFormat, option: str) -> bytes:
    """Raises UsageError, which names the ``option`` that has it."""
    match form:
        case KeyFormat.raw:
            key = text.encode()
        case KeyFormat.hex:
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", text):
                raise UsageError(
                    f"{option} {_cut(text)!r} is not a key in hex: write two digits 0-9, a-f for each byte, as "
                    f"6b6579 for 'key', or give --format raw."
                )
            key = bytes.fromhex(text)
        case KeyFormat.escaped:
            key = _unescaped(text, option)
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(f"{option} has {len(key)} bytes, and TiKV takes keys of {MAX_KEY_BYTES} at most. Cut it.")
    return key


def _unescaped(text: str, option: str) -> bytes:
    def byte(found: re.Match[bytes]) -> bytes:
        escape = found[1]
        if escape is None:
            raise UsageError(
                f"{option} {_cut(text)!r} is not an escaped key: behind a backslash comes x and two hex digits, three "
                "octal digits, or one of a b f n r t v \\ ' \". Write a backslash itself as \\\\."
            )
        if escape[:1] == b"x":
            return bytes([int(escape[1:], 16)])
        if len(escape) == 1:
            return bytes([_NAMED[escape[0]]])
        number = int(escape, 8)
        if number > 0xFF:
            raise UsageError(f"{option} {_cut(text)!r} has \\{escape.decode()}, which is no byte: \\377 is the last.")
        return bytes([number])

    return _ESCAPE.sub(byte, text.encode())


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def ranges_of(texts: Sequence[tuple[str, str]], form: KeyFormat) -> list[Bounds]:
    """From the texts of their starts and ends."""
    return [
        (read_key(start, form, "--start-key"), read_key(end, form, "--end-key")) for start, end in texts or [("", "")]
    ]


def key_filter(prefixes: Sequence[str], key_pattern: str, value_pattern: str) -> KeyFilter:
    """``prefixes`` are escaped, as TiKV-CDC has them."""
    read = (read_key(prefix, KeyFormat.escaped, "key-prefix") for prefix in prefixes)
    return KeyFilter(tuple(prefix for prefix in read if prefix), key_pattern, value_pattern)


def key_range(ranges: Sequence[Bounds], **more: Any) -> KeyRange:
    """``more``: what else a ``KeyRange`` has. Raises UsageError for ranges that cannot be."""
    if more.get("keyspace") == DEFAULT_KEYSPACE:
        more["keyspace"] = ""
    first, *others = ranges
    return KeyRange(*first, more=tuple(others), **more)


def keys_from(values: Mapping[str, Any]) -> KeyRange | None:
    """What a changefeed's file says, by its dotted keys; None: nothing of keys. Raises UsageError."""
    if not any(path.startswith("keys.") for path in values):
        return None
    form = KeyFormat(values.get("keys.format", KeyFormat.hex))
    texts = [(each.get(_START, ""), each.get(_END, "")) for each in values.get("keys.ranges", ())]
    if "keys.start-key" in values or "keys.end-key" in values:
        texts.insert(0, (values.get("keys.start-key", ""), values.get("keys.end-key", "")))
    given = {
        field: values[f"keys.{path}"]
        for field, path in (
            ("keyspace", "keyspace"),
            ("safe_interval_seconds", "safe-interval"),
            ("span_count", "span-count"),
        )
        if f"keys.{path}" in values
    }
    chosen = key_filter(
        values.get("filter.key-prefix", ()),
        values.get("filter.key-pattern", ""),
        values.get("filter.value-pattern", ""),
    )
    return key_range(ranges_of(texts, form), filter=chosen, api=KeyApi(values.get("keys.api", KeyApi.raw)), **given)


_START, _END = "keys.ranges[].start-key", "keys.ranges[].end-key"
