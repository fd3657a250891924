"""Options that name keys of RawKV, for the commands that have them."""

from typing import Annotated

import typer

from tidemill.cli.options import parse_seconds
from tidemill.errors import UsageError
from tidemill.sinks.tikv import is_tikv_uri
from tidemill.source.keyrange import DEFAULT_KEYSPACE, DEFAULT_SAFE_INTERVAL_SECONDS, KeyFormat, KeyRange, read_key

StartKey = Annotated[
    str | None,
    typer.Option("--start-key", help="RawKV: capture keys from this one on; empty: from the first of the keyspace."),
]
EndKey = Annotated[
    str | None,
    typer.Option("--end-key", help="RawKV: and below this one; empty: to the last of the keyspace."),
]
Format = Annotated[
    KeyFormat, typer.Option("--format", help="How both keys are written: hex, raw, or escaped, such as a\\x00b.")
]
KeyspaceName = Annotated[
    str | None, typer.Option("--keyspace", help="RawKV: the keyspace, by its name; DEFAULT if it is left out.")
]
SafeInterval = Annotated[
    str,
    typer.Option(
        "--safe-interval",
        help="RawKV: what is resolved counts as resolved this much later, since a region that changes its leader may "
        "break a younger promise.",
    ),
]
DEFAULT_SAFE_INTERVAL = f"{DEFAULT_SAFE_INTERVAL_SECONDS:g}s"


def keys_of(
    sink_uri: str,
    start: str | None,
    end: str | None,
    form: KeyFormat,
    keyspace: str | None,
    safe_interval: str = DEFAULT_SAFE_INTERVAL,
) -> KeyRange | None:
    """Which keys of RawKV are asked for; None: tables are. A sink that takes nothing but keys asks for all of them."""
    if start is None and end is None and keyspace is None and not is_tikv_uri(sink_uri):
        return None
    if keyspace == "":
        raise UsageError(f"--keyspace is empty. Give its name, or leave it out for {DEFAULT_KEYSPACE}.")
    return KeyRange(
        read_key(start or "", form, "--start-key"),
        read_key(end or "", form, "--end-key"),
        keyspace or "",
        parse_seconds(safe_interval),
    )
