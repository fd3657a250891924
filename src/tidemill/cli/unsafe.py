"""``tidemill unsafe``: what helps where nothing else does, and does harm elsewhere."""

from datetime import timedelta
from typing import Annotated

import typer

from tidemill.cli.options import Output, parse_ts
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import NoConfirm, OutputFlag, confirmed, connected
from tidemill.cli.remote.show import now_ts, print_json, say
from tidemill.model.ts import Ts, compose, show

_SAFE_AGE = timedelta(minutes=1)

unsafe = typer.Typer(
    help="For emergencies: metadata, locks, the GC safepoint.", no_args_is_help=True, rich_markup_mode=None
)


@unsafe.command("show-metadata")
@connected
def show_metadata(api: Api, output: OutputFlag = Output.text) -> None:
    """Print all metadata of the cluster, secrets masked.

    Example: tidemill unsafe show-metadata
    """
    found = api.get("/api/v2/unsafe/metadata")
    if output is Output.json:
        print_json(found)
        return
    for each in found:
        typer.echo(f"Key: {each['key']}, Value: {each['value']}")
    typer.echo(f"Show {len(found)} KVs")


@unsafe.command("resolve-lock")
@connected
def resolve_lock(
    api: Api,
    region: Annotated[int, typer.Option("--region", min=1, help="The region's id.")],
    ts: Annotated[
        str | None, typer.Option("--ts", help="Locks of transactions below this ts. Default: a minute ago.")
    ] = None,
    output: OutputFlag = Output.text,
) -> None:
    """Resolve the locks of a region: transactions that are over are finished, others rolled back when they are late.

    Example: tidemill unsafe resolve-lock --region 7
    """
    below = parse_ts(ts, "--ts")
    if below is None:
        below = Ts(now_ts(api) - compose(int(_SAFE_AGE.total_seconds() * 1000)))
    api.post("/api/v2/unsafe/resolve_lock", {"region_id": region, "ts": below})
    say(f"Resolved the locks of region {region} below {show(below)}.", output)


@unsafe.command("delete-service-gc-safepoint")
@connected
def delete_service_gc_safepoint(api: Api, no_confirm: NoConfirm = False, output: OutputFlag = Output.text) -> None:
    """Let the upstream collect what changefeeds that do not run still need. They cannot continue then.

    Example: tidemill unsafe delete-service-gc-safepoint --no-confirm
    """
    if confirmed("Let the upstream collect what this cluster's changefeeds still need?", no_confirm):
        api.delete("/api/v2/unsafe/service_gc_safepoint")
        say("Deleted the service GC safepoint. It is set again while a changefeed runs.", output)
