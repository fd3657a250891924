"""Ranges and filters of keys, from the texts of options and of a changefeed's file."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.model.keys import DEFAULT_KEYSPACE, Bounds, KeyApi, KeyFilter, KeyRange
from tidemill.model.keytext import KeyFormat, read_key


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
