"""``tidemill changefeed``: create, watch and steer changefeeds of a cluster."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.keys import Api as KvApi
from tidemill.cli.keys import EndKey, Format, KeyspaceName, SpanCount, StartKey, pairs_of, with_keys
from tidemill.cli.options import SINK_URI_VARIABLE, Output, name_of, parse_ts, sink_uri_of
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.folder import given_over
from tidemill.cli.remote.options import (
    ChangefeedId,
    Name,
    Namespace,
    NoConfirm,
    OutputFlag,
    Table,
    To,
    confirmed,
    connected,
    named,
)
from tidemill.cli.remote.show import duration, lag, moment_of, now_ts, print_json, print_table, say, since
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UsageError
from tidemill.model.keys import DEFAULT_SPAN_COUNT, KeyApi
from tidemill.model.keytext import KeyFormat
from tidemill.model.ts import MAX_TS, lag_seconds, show

_FEEDS = "/api/v2/changefeeds"
_SETTLING_SECONDS = 15.0  # for a changefeed to be as it was asked to be
_POLL_SECONDS = 0.2
_MUCH_BEHIND_SECONDS = 86_400

changefeed = typer.Typer(
    help="Create, watch and steer changefeeds of a cluster of captures.", no_args_is_help=True, rich_markup_mode=None
)

SinkUri = Annotated[
    str | None,
    typer.Option(
        "--sink-uri",
        help="Where to write: kafka://…, mysql://…, file://…. @FILE reads it from a file.",
        envvar=SINK_URI_VARIABLE,
    ),
]
TargetTs = Annotated[
    str | None,
    typer.Option("--target-ts", help="End there, once all up to it is durable: a time, or a TSO."),
]
Config = Annotated[Path | None, typer.Option("--config", help="The changefeed's TOML file, in TiCDC's spelling.")]


@changefeed.command()
@connected
def create(
    api: Api,
    name: Annotated[str | None, typer.Argument(help="Its name. Default: a random one.", show_default=False)] = None,
    sink_uri: SinkUri = None,
    start_ts: Annotated[
        str | None,
        typer.Option(
            "--start-ts",
            help="Changes after this moment are captured: a time, a TSO, or -15m. Default: now.",
        ),
    ] = None,
    target_ts: TargetTs = None,
    config: Config = None,
    initial_scan: Annotated[
        bool, typer.Option("--initial-scan", help="First copy all rows as of --start-ts, then capture changes.")
    ] = False,
    from_data_dir: Annotated[
        Path | None,
        typer.Option("--from-data-dir", help="Continue the changefeed of this folder of an ended tidemill run."),
    ] = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_format: Format = KeyFormat.hex,
    keyspace: KeyspaceName = None,
    span_count: SpanCount = DEFAULT_SPAN_COUNT,
    kv_api: KvApi = KeyApi.raw,
    no_confirm: NoConfirm = False,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Create a changefeed, which the captures run from then on.

    Example: tidemill changefeed create orders --sink-uri kafka://127.0.0.1:9092/orders?protocol=canal-json
    """
    if not sink_uri:
        raise UsageError("a changefeed needs --sink-uri, which says where to write. Or set TIDEMILL_SINK_URI.")
    wanted = named(name, changefeed_id) if name or changefeed_id else ""
    if from_data_dir is not None and (not wanted or start_ts is not None or initial_scan):
        raise UsageError(
            "--from-data-dir continues a changefeed where it stands: give the new one a name, and leave --start-ts and "
            "--initial-scan out."
        )
    start, target = parse_ts(start_ts, "--start-ts"), parse_ts(target_ts, "--target-ts")
    ranges = pairs_of(start_key or [], end_key or []) if start_key or end_key else None
    document = {
        "namespace": namespace,
        "changefeed_id": wanted,
        "sink_uri": sink_uri_of(sink_uri),
        "start_ts": start or 0,
        "target_ts": target or 0,
        "replica_config": with_keys(_config(config), sink_uri, ranges, key_format, keyspace, span_count, kv_api),
        "initial_scan": initial_scan,
    }
    if start is not None:
        behind = lag_seconds(start, (now_ts(api) >> 18) / 1000)
        if behind > _MUCH_BEHIND_SECONDS:
            question = f"--start-ts lies {duration(behind)} back: all changes since then are captured. Continue?"
            if not confirmed(question, no_confirm):
                return
    tables = api.post(
        "/api/v2/verify_table",
        {
            "replica_config": document["replica_config"],
            "start_ts": document["start_ts"],
            "sink_uri": document["sink_uri"],
        },
    )
    info = api.post(_FEEDS, document) if from_data_dir is None else given_over(api, from_data_dir, document)
    if output is Output.json:
        print_json(info)
        return
    left_out = [f"{table['database_name']}.{table['table_name']}" for table in tables.get("ineligible_tables", ())]
    if left_out:
        typer.echo(f"Not captured, since they have no key: {', '.join(left_out)}. Give them a key.", err=True)
    where = "" if namespace == "default" else f" --namespace {namespace}"
    if from_data_dir is None:
        typer.echo(f"Created changefeed {info['id']}, starting at {show(info['start_ts'])}.")
    else:
        at = show(info["checkpoint_ts"])
        typer.echo(f"Created changefeed {info['id']}, which continues that of {from_data_dir} at {at}.")
    typer.echo(f"Watch it with: tidemill changefeed query {info['id']}{where}")


@changefeed.command("list")
@connected
def list_changefeeds(
    api: Api,
    every: Annotated[bool, typer.Option("--all", "-a", help="Those that are finished or removed, too.")] = False,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """List changefeeds: how each stands, and how far it is.

    Example: tidemill changefeed list --server http://127.0.0.1:8300
    """
    found = api.get(_FEEDS, namespace=namespace, state="all" if every else "")["items"]
    if output is Output.json:
        print_json([_listed(each) for each in found])
        return
    now = now_ts(api) if found else None
    print_table(
        ["CHANGEFEED", "STATE", "CHECKPOINT", "LAG", "ERROR"],
        (
            [
                each["id"],
                each["state"],
                f"{each['checkpoint_time']} UTC",
                lag(each["checkpoint_tso"], now),
                _trouble(each),
            ]
            for each in found
            if now is not None
        ),
        f"There is no changefeed in namespace {namespace}. Make one with: tidemill changefeed create",
    )


def _listed(each: dict[str, Any]) -> dict[str, Any]:
    """As TiCDC's client prints it."""
    return {
        "id": each["id"],
        "namespace": each["namespace"],
        "summary": {
            "state": each["state"],
            "tso": each["checkpoint_tso"],
            "checkpoint": each["checkpoint_time"],
            "error": each["error"],
        },
    }


def _trouble(each: dict[str, Any]) -> str:
    error = each.get("error")
    return f"{error['code']}: {error['message']}" if error else ""


@changefeed.command()
@connected
def query(
    api: Api,
    name: Name = None,
    simple: Annotated[bool, typer.Option("--simple", "-s", help="State and checkpoint only.")] = False,
    caught_up: Annotated[
        str | None,
        typer.Option("--caught-up", help="Only say whether all up to this ts is durable: a TSO or a time. No: 1."),
    ] = None,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Show how a changefeed stands, and what holds its checkpoint back.

    Example: tidemill changefeed query orders
    """
    wanted = named(name, changefeed_id)
    info = api.get(f"{_FEEDS}/{wanted}", namespace=namespace)
    if caught_up is not None:
        _say_caught_up(info, parse_ts(caught_up, "--caught-up") or 0, output)
        return
    if output is Output.json:
        print_json(_simple(info) if simple else _detailed(info))
        return
    now = now_ts(api)
    checkpoint = info["checkpoint_ts"]
    lines = [
        ("changefeed", f"{info['id']} in namespace {info['namespace']}"),
        ("state", info["state"]),
        ("checkpoint", f"{moment_of(checkpoint)}, {lag(checkpoint, now)} behind"),
    ]
    if not simple:
        lines += [
            ("resolved", f"{moment_of(info['resolved_ts'])}, {lag(info['resolved_ts'], now)} behind"),
            ("start", moment_of(info["start_ts"])),
            ("target", moment_of(_target(info))),
            ("sink", info.get("sink_uri", "")),
            ("rules", ", ".join(info["config"]["filter"].get("rules", ()))),
            ("tables", _placement(info)),
        ]
    if info.get("error"):
        lines.append(("error", _trouble(info)))
    width = max(len(word) for word, _ in lines)
    for word, text in lines:
        typer.echo(f"{word + ':':{width + 1}} {text}")
    _say_why(info, now)


def _say_why(info: dict[str, Any], now: Any) -> None:
    causes = info.get("held_back_by", [])
    if causes:
        typer.echo("\nWhat holds the checkpoint back:")
    for each in causes:
        parts = [f"  {each['cause']}: {each['subject']}", since(each["since"], now)]
        at = f" It is at {show(each['ts'])}." if each["ts"] else ""
        typer.echo(f"{', '.join(filter(None, parts))}: {each['detail'].rstrip('.')}.{at}")


def _target(info: dict[str, Any]) -> int:
    target = int(info.get("target_ts", 0))
    return 0 if target >= MAX_TS else target


def _placement(info: dict[str, Any]) -> str:
    tasks = info.get("task_status", [])
    return ", ".join(f"{len(task['table_ids'] or ())} on {task['capture_id']}" for task in tasks) or "none"


def _simple(info: dict[str, Any]) -> dict[str, Any]:
    return {
        "upstream_id": info.get("upstream_id", 0),
        "namespace": info["namespace"],
        "id": info["id"],
        "state": info["state"],
        "checkpoint_tso": info["checkpoint_ts"],
        "checkpoint_time": info["checkpoint_time"],
        "error": info.get("error"),
    }


def _detailed(info: dict[str, Any]) -> dict[str, Any]:
    """As TiCDC's client prints it; ``held_back_by`` is ours."""
    always = {**_simple(info), "start_ts": info.get("start_ts", 0), "target_ts": info.get("target_ts", 0)}
    names = ("sink_uri", "config", "create_time", "resolved_ts", "creator_version", "task_status", "held_back_by")
    return {**always, **{name: info[name] for name in names if name in info}}


@changefeed.command()
@connected
def pause(
    api: Api,
    name: Name = None,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Stop a changefeed where it is. The upstream keeps what it still needs, for as long as its gc-ttl.

    Example: tidemill changefeed pause orders
    """
    wanted = named(name, changefeed_id)
    before = _common(api, wanted, namespace)
    api.post(f"{_FEEDS}/{wanted}/pause", namespace=namespace)
    now = _settled(api, wanted, namespace, lambda state: state not in ("normal", "warning", "pending"))
    if now["state"] != "stopped":
        say(f"Changefeed {wanted} is {now['state']}, it was {before['state']}: nothing to pause.", output)
    else:
        say(f"Paused changefeed {wanted} at {show(now['checkpoint_ts'])}.", output)


@changefeed.command()
@connected
def resume(
    api: Api,
    name: Name = None,
    overwrite_checkpoint_ts: Annotated[
        str | None,
        typer.Option(
            "--overwrite-checkpoint-ts", help="Continue from there, not from its checkpoint: a TSO, time or now."
        ),
    ] = None,
    no_confirm: NoConfirm = False,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Let a paused, failed or finished changefeed continue at its checkpoint.

    Example: tidemill changefeed resume orders
    """
    wanted = named(name, changefeed_id)
    before = _common(api, wanted, namespace)
    now = now_ts(api)
    body = {}
    if overwrite_checkpoint_ts is not None:
        text = overwrite_checkpoint_ts
        at = now if text == "now" else parse_ts(text, "--overwrite-checkpoint-ts") or now
        body["overwrite_checkpoint_ts"] = at
        checkpoint = before["checkpoint_ts"]
        what = "changes in between are skipped" if at > checkpoint else "changes in between come again"
        question = f"Continue at {show(at)} instead of {show(checkpoint)}? {what.capitalize()}."
        if not confirmed(question, no_confirm):
            return
    elif lag_seconds(before["checkpoint_ts"], (now >> 18) / 1000) > _MUCH_BEHIND_SECONDS:
        question = f"Its checkpoint lies {lag(before['checkpoint_ts'], now)} back. Continue there?"
        if not confirmed(question, no_confirm):
            return
    api.post(f"{_FEEDS}/{wanted}/resume", body, namespace=namespace)
    after = _settled(api, wanted, namespace, lambda state: state not in ("stopped", "failed", "finished"))
    if before["state"] in ("normal", "warning", "pending"):
        say(f"Changefeed {wanted} is {after['state']}: nothing to resume.", output)
    else:
        say(f"Resumed changefeed {wanted}.", output)


@changefeed.command()
@connected
def update(
    api: Api,
    name: Name = None,
    sink_uri: SinkUri = None,
    target_ts: TargetTs = None,
    config: Config = None,
    no_confirm: NoConfirm = False,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Change a paused changefeed: its sink URI, its target, its config. A config replaces the whole one.

    Example: tidemill changefeed update orders --config orders.toml
    """
    wanted = named(name, changefeed_id)
    body: dict[str, Any] = {}
    if sink_uri:
        body["sink_uri"] = sink_uri_of(sink_uri)
    if target_ts is not None:
        body["target_ts"] = parse_ts(target_ts, "--target-ts")
    if config is not None:
        body["replica_config"] = _config(config)
    if not body:
        raise UsageError("what is to change? Give --sink-uri, --target-ts or --config.")
    words = {"sink_uri": "sink URI", "target_ts": "target-ts", "replica_config": "config"}
    changing = " and ".join(words[each] for each in body)
    if not confirmed(f"Replace the {changing} of changefeed {wanted}?", no_confirm):
        return
    info = api.put(f"{_FEEDS}/{wanted}", body, namespace=namespace)
    if output is Output.json:
        print_json(info)
    else:
        typer.echo(f"Updated changefeed {wanted}. It stays paused; resume it with: tidemill changefeed resume {wanted}")


@changefeed.command()
@connected
def remove(
    api: Api,
    name: Name = None,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Remove a changefeed: its checkpoint is forgotten. What it has written downstream stays.

    Example: tidemill changefeed remove orders
    """
    wanted = named(name, changefeed_id)
    info = api.get(f"{_FEEDS}/{wanted}", namespace=namespace)
    api.delete(f"{_FEEDS}/{wanted}", namespace=namespace)
    if output is Output.json:
        print_json({"id": wanted, "checkpoint_ts": info["checkpoint_ts"], "sink_uri": info.get("sink_uri", "")})
    else:
        typer.echo(
            f"Removed changefeed {wanted}, which was at {show(info['checkpoint_ts'])}. What it has written to "
            f"{info.get('sink_uri', 'its sink')} stays."
        )


@changefeed.command()
@connected
def statistics(
    api: Api,
    name: Name = None,
    interval: Annotated[float, typer.Option("--interval", "-I", min=0.1, help="Seconds between two lines.")] = 10.0,
    lines: Annotated[int, typer.Option("--lines", min=0, help="How many lines; 0: until Ctrl-C.")] = 0,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
) -> None:
    """Print again and again how far the sink is behind what was pulled, and behind the upstream.

    Example: tidemill changefeed statistics orders --interval 1
    """
    wanted = named(name, changefeed_id)
    printed = 0
    while True:
        at = _common(api, wanted, namespace)
        checkpoint = at["checkpoint_ts"] >> 18
        gaps = {
            "sink_gap": f"{max(0, (at['resolved_ts'] >> 18) - checkpoint)}ms",
            "replication_gap": f"{max(0, (now_ts(api) >> 18) - checkpoint)}ms",
        }
        print_json(gaps)
        printed += 1
        if printed == lines:
            return
        _sleep(interval)


@changefeed.command("move-table")
@connected
def move_table(
    api: Api,
    name: Name = None,
    table: Table = 0,
    to: To = "",
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Move a table to another capture, which takes over where the first one ends.

    Example: tidemill changefeed move-table orders --table 112 --to CAPTURE
    """
    ask_to_move(api, named(name, changefeed_id), table, to, namespace, output)


def ask_to_move(api: Api, wanted: str, table: int, to: str, namespace: str, output: Output) -> None:
    if not table or not to:
        raise UsageError("which table, and where? Give --table ID and --to CAPTURE; tidemill capture list shows them.")
    api.post(
        f"{_FEEDS}/{wanted}/move_table", {"capture_id": name_of(to, "--to"), "table_id": table}, namespace=namespace
    )
    say(f"Asked to move table {table} of changefeed {wanted} to {to}.", output)


@changefeed.command()
@connected
def rebalance(
    api: Api,
    name: Name = None,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Spread a changefeed's tables over all captures anew.

    Example: tidemill changefeed rebalance orders
    """
    ask_to_rebalance(api, named(name, changefeed_id), namespace, output)


def ask_to_rebalance(api: Api, wanted: str, namespace: str, output: Output) -> None:
    api.post(f"{_FEEDS}/{wanted}/rebalance", namespace=namespace)
    say(f"Asked to rebalance changefeed {wanted}.", output)


def _common(api: Api, wanted: str, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{_FEEDS}/{wanted}/status", namespace=namespace)
    return found


def _settled(api: Api, wanted: str, namespace: str, is_right: Callable[[str], bool]) -> dict[str, Any]:
    """How it stands once it is as it was asked to be, or after a while."""
    deadline = SYSTEM_CLOCK.monotonic() + _SETTLING_SECONDS
    while True:
        found = _common(api, wanted, namespace)
        if is_right(found["state"]) or SYSTEM_CLOCK.monotonic() > deadline:
            return found
        _sleep(_POLL_SECONDS)


def _sleep(seconds: float) -> None:
    from tidemill.cli import stopping

    stopping.current().wait(seconds)


def _say_caught_up(info: dict[str, Any], ts: int, output: Output) -> None:
    checkpoint = info["checkpoint_ts"]
    has_reached = checkpoint >= ts
    if output is Output.json:
        print_json({"id": info["id"], "caught_up": has_reached, "checkpoint_ts": checkpoint, "ts": ts})
    else:
        word = "Yes" if has_reached else "No"
        typer.echo(f"{word}: changefeed {info['id']} is durable up to {show(checkpoint)}; {show(ts)} was asked for.")
    if not has_reached:
        raise typer.Exit(1)


def _config(path: Path | None) -> dict[str, Any] | None:
    """The file as it is: the server says what is wrong in it."""
    if path is None:
        return None
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Give the changefeed's TOML file.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: it is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"cannot read {path}: {error}. It must be TOML, as TiCDC's changefeed files are.") from None
    _check_plain(document, path)
    return document


def _check_plain(value: Any, path: Path, depth: int = 0) -> None:
    match value:
        case dict():
            for each in value.values():
                _check_plain(each, path, depth + 1)
        case list():
            for each in value:
                _check_plain(each, path, depth + 1)
        case str() | bool() | int():
            pass
        case float() if value == value and abs(value) != float("inf"):
            pass
        case _:
            raise UsageError(f"cannot use {path}: {value} is no value that any key has. Write it as a text or number.")
