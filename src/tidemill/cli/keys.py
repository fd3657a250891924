"""Options that name keys of a TiKV without SQL, for the commands that have them."""

from typing import Annotated, Any

import typer

from tidemill.cli.options import parse_seconds
from tidemill.config.keytext import key_filter, key_range, ranges_of
from tidemill.config.sink_uri import is_tikv_uri
from tidemill.errors import UsageError
from tidemill.model.keys import (
    DEFAULT_KEYSPACE,
    DEFAULT_SAFE_INTERVAL_SECONDS,
    DEFAULT_SPAN_COUNT,
    MOST_SPANS,
    KeyApi,
    KeyRange,
)
from tidemill.model.keytext import KeyFormat

StartKey = Annotated[
    list[str] | None,
    typer.Option(
        "--start-key",
        help="Keys in place of tables, from this one on; empty: from the first of the keyspace. Given again, each with "
        "its --end-key: several ranges.",
        show_default=False,
    ),
]
EndKey = Annotated[
    list[str] | None,
    typer.Option("--end-key", help="And below this one; empty: to the last of the keyspace.", show_default=False),
]
Format = Annotated[
    KeyFormat, typer.Option("--format", help="How both keys are written: hex, raw, or escaped, such as a\\x00b.")
]
KeyspaceName = Annotated[
    str | None, typer.Option("--keyspace", help="The keyspace of the keys, by its name; DEFAULT if it is left out.")
]
SafeInterval = Annotated[
    str,
    typer.Option(
        "--safe-interval",
        help="RawKV: what is resolved counts as resolved this much later, since a region that changes its leader may "
        "break a younger promise.",
    ),
]
SpanCount = Annotated[
    int,
    typer.Option(
        "--span-count",
        min=1,
        max=MOST_SPANS,
        help="Keys: into how many parts the ranges are cut, along regions. A changefeed keeps its parts.",
    ),
]
Api = Annotated[
    KeyApi,
    typer.Option("--kv-api", help="How the keys are written: raw, or txn: by transactions, without SQL."),
]
KeyPrefix = Annotated[
    list[str] | None,
    typer.Option("--key-prefix", help="Only keys that begin so, escaped; given again: or so.", show_default=False),
]
KeyPattern = Annotated[
    str, typer.Option("--key-pattern", help="Only keys in which this regular expression of RE2 is found.")
]
ValuePattern = Annotated[
    str, typer.Option("--value-pattern", help="Only puts in whose value it is found. Deletes always pass.")
]
DEFAULT_SAFE_INTERVAL = f"{DEFAULT_SAFE_INTERVAL_SECONDS:g}s"


def keys_of(
    sink_uri: str,
    start: list[str] | None,
    end: list[str] | None,
    form: KeyFormat,
    keyspace: str | None,
    safe_interval: str = DEFAULT_SAFE_INTERVAL,
    span_count: int = DEFAULT_SPAN_COUNT,
    api: KeyApi = KeyApi.raw,
    prefixes: list[str] | None = None,
    key_pattern: str = "",
    value_pattern: str = "",
    from_file: KeyRange | None = None,
) -> KeyRange | None:
    """Which keys are asked for; None: tables are. What the changefeed's file says counts where no option does. A sink
    that takes nothing but keys asks for all of them."""
    chosen = key_filter(prefixes or (), key_pattern, value_pattern)
    is_asked = start or end or keyspace is not None or api is KeyApi.txn or chosen
    if not is_asked and (from_file is not None or not is_tikv_uri(sink_uri)):
        return from_file
    if keyspace == "":
        raise UsageError(f"--keyspace is empty. Give its name, or leave it out for {DEFAULT_KEYSPACE}.")
    return key_range(
        ranges_of(pairs_of(start or [], end or []), form),
        keyspace=keyspace or "",
        safe_interval_seconds=parse_seconds(safe_interval),
        span_count=span_count,
        filter=chosen,
        api=api,
    )


def pairs_of(starts: list[str], ends: list[str]) -> list[tuple[str, str]]:
    """The n-th start goes with the n-th end. Of a single range either may be left out."""
    if len(starts) <= 1 and len(ends) <= 1:
        return [(next(iter(starts), ""), next(iter(ends), ""))]
    if len(starts) != len(ends):
        raise UsageError(
            f"--start-key is given {len(starts)} times and --end-key {len(ends)} times. Give each range both; "
            "either may be empty, as ''."
        )
    return list(zip(starts, ends, strict=True))


def with_keys(
    document: dict[str, Any] | None,
    sink_uri: str,
    pairs: list[tuple[str, str]] | None,
    form: KeyFormat,
    keyspace: str | None,
    span_count: int,
    api: KeyApi,
) -> dict[str, Any] | None:
    """A changefeed's file with its section [keys] as the options say, where they ask for keys. The server reads it.
    ``pairs``: None where no bound is given; an empty one asks for all keys."""
    is_asked = pairs is not None or keyspace is not None or api is KeyApi.txn
    if not is_asked and (not is_tikv_uri(sink_uri) or "keys" in (document or {})):
        return document
    ranges = [{"start-key": start, "end-key": end} for start, end in pairs or [("", "")]]
    section: dict[str, Any] = {
        "ranges": ranges, "format": str(form), "span-count": span_count, "api": str(api),
        **({"keyspace": keyspace} if keyspace else {}),
    }  # fmt: skip
    return {**(document or {}), "keys": section}
