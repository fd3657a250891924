"""``tidemill upstream``: the embedded PD, TiKV stores and SQL nodes as a process of their own."""

from pathlib import Path
from typing import Annotated

import typer

from tidemill import kernelcache
from tidemill.cli import stopping
from tidemill.cli.box import require_box
from tidemill.cli.options import ReadyFile, configure_log, parse_seconds
from tidemill.model.security import Security

_POLL_SECONDS = 0.2


def upstream(
    stores: Annotated[int, typer.Option(help="How many stores to run.")] = 1,
    pd_port: Annotated[int, typer.Option(help="Port of PD; 0 takes a free one.")] = 2379,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data; without it a temporary one that goes with the process.")
    ] = None,
    load: Annotated[Path | None, typer.Option(help="A history.parquet to serve as if it had happened here.")] = None,
    replay: Annotated[
        float | None,
        typer.Option(help="Apply the history live, this many times as fast as it was; 0: without pauses."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Written once it serves: the addresses of PD, of the stores and of SQL, as JSON."),
    ] = None,
    resolved_interval: Annotated[
        str, typer.Option(help="How often change streams get a resolved-ts: 1s, 200ms.")
    ] = "1s",
    api_version: Annotated[
        int, typer.Option(help="How raw keys and values are laid out: 1, or 2 with change capture of raw writes.")
    ] = 1,
    chaos: Annotated[
        int | None,
        typer.Option(help="A seed: regions split, merge and move, stores go and come back, by themselves."),
    ] = None,
    sql_port: Annotated[
        int | None,
        typer.Option(help="Serve SQL to MySQL clients, user root without a password; 0 takes a free port."),
    ] = None,
    sql_nodes: Annotated[
        int, typer.Option(help="How many SQL nodes; each has a port of its own, from --sql-port upwards.")
    ] = 1,
    sql_lease: Annotated[
        str, typer.Option(help="How long a SQL node serves with a schema that it cannot renew.")
    ] = "45s",
    ca: Annotated[
        str,
        typer.Option(
            help="File with an authority's certificate: PD and stores speak TLS, with clients that it has signed."
        ),
    ] = "",
    cert: Annotated[str, typer.Option(help="File with the servers' certificate, for 127.0.0.1.")] = "",
    key: Annotated[str, typer.Option(help="File with its key.")] = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run a PD, TiKV stores and, if asked, SQL nodes in this process, for clients that speak their protocols.

    Example: tidemill upstream --stores 3 --pd-port 0 --load history.parquet --replay 1 --ready-file ready.json
    """
    require_box("upstream")
    from tidebox.upstream import EmbeddedUpstream  # late: the other commands start without RocksDB
    from tidebox.warm import warm_up

    configure_log(log_level)
    if not kernelcache.is_complete():
        typer.echo("Starting. The first start on a machine compiles code, which takes a minute or so …", err=True)
    waiting = ReadyFile(ready_file)
    stop = stopping.current()
    with (
        stop.graceful(),
        EmbeddedUpstream.start(
            stores=stores,
            pd_port=pd_port,
            data_dir=data_dir,
            load=load,
            replay=replay,
            resolved_interval_seconds=parse_seconds(resolved_interval),
            api_version=api_version,
            chaos=chaos,
            sql_port=sql_port,
            sql_nodes=sql_nodes,
            sql_lease_seconds=parse_seconds(sql_lease),
            security=Security(ca, cert, key),
        ) as cluster,
    ):
        warm_up()
        ready = {"pd": cluster.pd_address, "stores": cluster.store_addresses}
        sql = {"sql": cluster.sql_addresses} if cluster.sql_addresses else {}
        waiting.write(ready | sql)
        typer.echo(_greeting(cluster.pd_address, cluster.sql_addresses), err=True)
        # The replay's failure must end the process: a history that stops halfway looks like a quiet cluster.
        while not stop.wait(_POLL_SECONDS):
            cluster.wait_replayed(0)


def _greeting(pd: str, sql: list[str]) -> str:
    nodes = f", SQL at {' and '.join(sql)} (user root, no password)" if sql else ""
    return f"PD serves at {pd}{nodes}. Stop with Ctrl-C."
