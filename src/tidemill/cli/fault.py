"""``tidemill fault``: ask a running embedded upstream to fail, over HTTP at PD's port.

What each fault does is decided there (``store.faults``); here are its flags, and how its answer is shown.
"""

import http.client
import ssl
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar
from typing import Annotated, Any

import orjson
import typer

from tidemill.cli.options import Ca, Cert, KeyFile, Output, parse_seconds, security_of
from tidemill.cli.remote.show import in_columns
from tidemill.errors import (
    IncompatibleUpstreamError,
    TidemillError,
    UntrustedUpstreamError,
    UpstreamError,
    UpstreamUnavailableError,
    UsageError,
)
from tidemill.model.security import PLAIN, Security
from tidemill.upstream.pd import parse_addresses
from tidemill.upstream.tls import context_of

_PATH = "/tidemill/v1/faults/"
_TIMEOUT_SECONDS = 30.0
_LARGEST_ID = (1 << 63) - 1

_security = ContextVar("security", default=PLAIN)  # given before the name of the fault

fault = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
)


@fault.callback()
def over_tls(ca: Ca = "", cert: Cert = "", key: KeyFile = "") -> None:
    """Make a running tidemill upstream fail: split, merge, kill, delay. Also lists its regions and stores.

    One that speaks TLS is asked with --ca, --cert and --key before the name of the fault.
    """
    _security.set(security_of(ca, cert, key))


Pd = Annotated[str, typer.Option("--pd", help="PD's address, as tidemill upstream tells it: 127.0.0.1:2379.")]
OutputFlag = Annotated[Output, typer.Option("--output", help="How to print what came of it.")]
Region = Annotated[int, typer.Option("--region", help="The region's id; tidemill fault regions lists them.")]
Store = Annotated[int, typer.Option("--store", help="The store's id; tidemill fault stores lists them.")]
Node = Annotated[int, typer.Option("--node", help="The SQL node's number; tidemill fault sql-nodes lists them.")]
Key = Annotated[str | None, typer.Option("--key", help="A key as text.")]
HexKey = Annotated[str | None, typer.Option("--hex-key", help="A key in hex, two digits a byte.")]
For = Annotated[str | None, typer.Option("--for", help="How long, such as 5s; without it until it is undone.")]


@fault.command("regions")
def regions(pd: Pd, output: OutputFlag = Output.text) -> None:
    """List the regions: their keys, epochs, leaders and stores.

    Example: tidemill fault regions --pd 127.0.0.1:2379
    """
    _show(_ask(pd, "regions"), output)


@fault.command("stores")
def stores(pd: Pd, output: OutputFlag = Output.text) -> None:
    """List the stores: their addresses, whether they are up, how many regions each leads.

    Example: tidemill fault stores --pd 127.0.0.1:2379
    """
    _show(_ask(pd, "stores"), output)


@fault.command("split")
def split(
    pd: Pd,
    key: Key = None,
    hex_key: HexKey = None,
    region: Annotated[
        int | None, typer.Option("--region", help="The region to cut; without a key in the middle of what it holds.")
    ] = None,
    output: OutputFlag = Output.text,
) -> None:
    """Cut a region in two, at a key or in its middle.

    Example: tidemill fault split --pd 127.0.0.1:2379 --key m
    """
    _show(_ask(pd, "split", key=key, hex_key=hex_key, region=region), output)


@fault.command("merge")
def merge(
    pd: Pd,
    region: Annotated[int, typer.Option("--region", help="The region that goes.")],
    into: Annotated[
        int | None, typer.Option("--into", help="The neighbour that takes it in; default: the right one, if any.")
    ] = None,
    output: OutputFlag = Output.text,
) -> None:
    """Merge a region into its neighbour.

    Example: tidemill fault merge --pd 127.0.0.1:2379 --region 11
    """
    _show(_ask(pd, "merge", region=region, into=into), output)


@fault.command("transfer-leader")
def transfer_leader(pd: Pd, region: Region, store: Store, output: OutputFlag = Output.text) -> None:
    """Let another store lead a region.

    Example: tidemill fault transfer-leader --pd 127.0.0.1:2379 --region 4 --store 2
    """
    _show(_ask(pd, "transfer-leader", region=region, store=store), output)


@fault.command("stop-store")
def stop_store(pd: Pd, store: Store, duration: For = None, output: OutputFlag = Output.text) -> None:
    """Stop a store in good order: its leaders move first.

    Example: tidemill fault stop-store --pd 127.0.0.1:2379 --store 1 --for 2s
    """
    _show(_ask(pd, "stop-store", store=store, seconds=_seconds(duration)), output)


@fault.command("kill-store")
def kill_store(pd: Pd, store: Store, duration: For = None, output: OutputFlag = Output.text) -> None:
    """Kill a store: connections are cut, what was not answered may have happened, leaders move after a moment.

    Example: tidemill fault kill-store --pd 127.0.0.1:2379 --store 2 --for 500ms
    """
    _show(_ask(pd, "kill-store", store=store, seconds=_seconds(duration)), output)


@fault.command("start-store")
def start_store(
    pd: Pd,
    store: Store,
    new_address: Annotated[bool, typer.Option("--new-address", help="At another port than before.")] = False,
    output: OutputFlag = Output.text,
) -> None:
    """Start a store again, at the address it had or at another.

    Example: tidemill fault start-store --pd 127.0.0.1:2379 --store 1
    """
    _show(_ask(pd, "start-store", store=store, new_address=new_address), output)


@fault.command("pd-away")
def pd_away(pd: Pd, duration: For = None, output: OutputFlag = Output.text) -> None:
    """Let PD be gone: its connections are cut, nobody gets a timestamp.

    Example: tidemill fault pd-away --pd 127.0.0.1:2379 --for 1s
    """
    _show(_ask(pd, "pd-away", seconds=_seconds(duration)), output)


@fault.command("pd-back")
def pd_back(pd: Pd, output: OutputFlag = Output.text) -> None:
    """Let PD answer again.

    Example: tidemill fault pd-back --pd 127.0.0.1:2379
    """
    _show(_ask(pd, "pd-back"), output)


@fault.command("drop-streams")
def drop_streams(
    pd: Pd,
    store: Annotated[int | None, typer.Option("--store", help="Only this store's; default: all.")] = None,
    output: OutputFlag = Output.text,
) -> None:
    """Break every change stream; clients must register anew.

    Example: tidemill fault drop-streams --pd 127.0.0.1:2379
    """
    _show(_ask(pd, "drop-streams", store=store), output)


@fault.command("delay-apply")
def delay_apply(
    pd: Pd,
    by: Annotated[str, typer.Option("--by", help="How long, such as 200ms; 0 turns it off.")],
    output: OutputFlag = Output.text,
) -> None:
    """Let every write wait between being accepted and being applied.

    Example: tidemill fault delay-apply --pd 127.0.0.1:2379 --by 0
    """
    _show(_ask(pd, "delay-apply", seconds=_seconds(by)), output)


@fault.command("orphan-lock")
def orphan_lock(
    pd: Pd,
    key: Key = None,
    hex_key: HexKey = None,
    ttl: Annotated[str, typer.Option("--ttl", help="How long the lock counts as alive.")] = "3s",
    output: OutputFlag = Output.text,
) -> None:
    """Leave a lock, as a client does that dies before its commit; resolved-ts stands still until somebody resolves it.

    Example: tidemill fault orphan-lock --pd 127.0.0.1:2379 --key orphan --ttl 1s
    """
    _show(_ask(pd, "orphan-lock", key=key, hex_key=hex_key, ttl_seconds=_seconds(ttl)), output)


@fault.command("hold-resolved")
def hold_resolved(pd: Pd, region: Region, output: OutputFlag = Output.text) -> None:
    """Let a region send no resolved-ts until it is released.

    Example: tidemill fault hold-resolved --pd 127.0.0.1:2379 --region 4
    """
    _show(_ask(pd, "hold-resolved", region=region), output)


@fault.command("release-resolved")
def release_resolved(pd: Pd, region: Region, output: OutputFlag = Output.text) -> None:
    """Let a held region send its resolved-ts again.

    Example: tidemill fault release-resolved --pd 127.0.0.1:2379 --region 4
    """
    _show(_ask(pd, "release-resolved", region=region), output)


@fault.command("sql-nodes")
def sql_nodes(pd: Pd, output: OutputFlag = Output.text) -> None:
    """List the SQL nodes: their addresses, the version of the schema that each has, whether they serve.

    Example: tidemill fault sql-nodes --pd 127.0.0.1:2379
    """
    _show(_ask(pd, "sql-nodes"), output)


@fault.command("hold-schema")
def hold_schema(pd: Pd, node: Node, output: OutputFlag = Output.text) -> None:
    """Keep a SQL node from renewing its schema: DDL waits for it, and when its lease is over it serves no more.

    Example: tidemill fault hold-schema --pd 127.0.0.1:2379 --node 2
    """
    _show(_ask(pd, "hold-schema", node=node), output)


@fault.command("release-schema")
def release_schema(pd: Pd, node: Node, output: OutputFlag = Output.text) -> None:
    """Let a held SQL node have the newest schema again, and serve with it.

    Example: tidemill fault release-schema --pd 127.0.0.1:2379 --node 2
    """
    _show(_ask(pd, "release-schema", node=node), output)


# Asking


def _ask(pd: str, name: str, **arguments: object) -> dict[str, Any]:
    """Do the fault; return its document. Arguments that are None are left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    for flag, value in given.items():
        if isinstance(value, int) and abs(value) > _LARGEST_ID:
            raise UsageError(f"--{flag.replace('_', '-')} {value} is too large to be an id. List them first.")
        if isinstance(value, str) and not value.isprintable() and _is_no_text(value):
            raise UsageError(f"--{flag.replace('_', '-')} is not UTF-8 text. Give such a key with --hex-key.")
    body = orjson.dumps(given)
    security = _security.get()
    address = parse_addresses(pd, security)[0]
    try:
        with closing(_connection(address, security)) as connection:
            connection.request("POST", _PATH + name, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
    except TimeoutError as error:
        hint = " If it does not speak TLS, leave --ca, --cert and --key out." if security.is_tls else ""
        raise _no_upstream(address, f"no answer within {_TIMEOUT_SECONDS:g} s.{hint}".rstrip(".")) from error
    except ssl.SSLError as error:
        raise UntrustedUpstreamError(
            f"cannot ask {address} for a fault over TLS: {error.reason or error}. Check --ca, --cert and --key."
        ) from error
    except ConnectionRefusedError as error:
        raise UpstreamUnavailableError(
            f"nobody listens at {address}. Start one with: tidemill upstream, and give the address it prints."
        ) from error
    except http.client.BadStatusLine as error:  # whose text is what came, such as the greeting of a SQL node
        raise _no_upstream(address, "what answered does not speak HTTP") from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_upstream(address, str(error) or type(error).__name__) from error
    return _document(address, response.status, answer)


def _is_no_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _connection(address: str, security: Security) -> http.client.HTTPConnection:
    if not security.is_tls:
        return http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)
    return http.client.HTTPSConnection(address, timeout=_TIMEOUT_SECONDS, context=context_of(security))


def _document(address: str, status: int, answer: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise _no_upstream(address, f"it answered with HTTP status {status}") from error
    if not isinstance(document, dict):
        raise _no_upstream(address, f"it answered with HTTP status {status}")
    failure = document.get("error")
    if isinstance(failure, dict) and "code" in failure:
        kind: Callable[[str], TidemillError] = UsageError if failure["code"] == "usage" else UpstreamError
        raise kind(str(failure.get("message")))
    if status != 200:
        raise _no_upstream(address, f"it answered with HTTP status {status}")
    return document


def _no_upstream(address: str, found: str) -> IncompatibleUpstreamError:
    return IncompatibleUpstreamError(
        f"cannot ask {address} for a fault: {found}. Faults are served only by tidemill upstream, at its PD's port. "
        "One that speaks TLS is asked with --ca, --cert and --key before the name of the fault."
    )


def _seconds(text: str | None) -> float | None:
    return parse_seconds(text) if text is not None else None


# Showing


def _show(document: dict[str, Any], output: Output) -> None:
    if output is Output.json:
        typer.echo(orjson.dumps(document).decode())
    elif "regions" in document:
        _table(["REGION", "START", "END", "EPOCH", "LEADER", "STORES", ""], map(_region_row, document["regions"]))
    elif "stores" in document:
        rows = ([s["id"], s["address"], "up" if s["is_up"] else "down", s["leaders"]] for s in document["stores"])
        _table(["STORE", "ADDRESS", "STATE", "LEADERS"], rows)
    elif "sql_nodes" in document:
        _table(["NODE", "ADDRESS", "SCHEMA", "STATE", ""], map(_node_row, document["sql_nodes"]))
    elif "pd" in document:
        typer.echo(f"PD at {document['pd']['address']} {'is away' if document['pd']['is_away'] else 'answers'}.")
    elif "streams" in document:
        typer.echo(f"Dropped {document['streams']} streams.")
    elif "delay_seconds" in document:
        delay = document["delay_seconds"]
        typer.echo(f"Writes are applied after {delay:g} s." if delay else "Writes are applied at once.")
    elif "start_ts" in document:
        typer.echo(f"Locked {_key(document['key'])} at start-ts {document['start_ts']}.")


def _region_row(region: dict[str, Any]) -> list[Any]:
    leader = "none" if region["leader"] is None else region["leader"]
    epoch = f"{region['conf_ver']}/{region['version']}"
    stores = ",".join(map(str, region["stores"]))
    held = "held" if region["is_held"] else ""
    return [region["id"], _key(region["start"]), _key(region["end"]), epoch, leader, stores, held]


def _node_row(node: dict[str, Any]) -> list[Any]:
    state = "serves" if node["is_serving"] else "out of its lease"
    return [node["id"], node["address"], node["schema_version"], state, "held" if node["is_held"] else ""]


def _key(hexadecimal: str) -> str:
    """As text where that is legible, otherwise in hex; a bound that is open as a dash."""
    text = bytes.fromhex(hexadecimal).decode("latin-1")
    return (
        "-" if not text else text if text.isascii() and text.isprintable() and " " not in text else f"0x{hexadecimal}"
    )


def _table(columns: list[str], rows: Any) -> None:
    typer.echo("\n".join(in_columns([columns, *(list(map(str, row)) for row in rows)])))
