"""``tidemill server``: a capture of a cluster."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tidemill.api.app import create_app
from tidemill.api.serving import ApiServer
from tidemill.capture.cluster.operations import CaptureOperations
from tidemill.capture.cluster.options import ServerOptions
from tidemill.capture.cluster.server import Server, Serving
from tidemill.capture.etcd.client import EtcdUser
from tidemill.capture.etcd.keys import DEFAULT_CLUSTER
from tidemill.capture.etcd.session import DEFAULT_TTL_SECONDS
from tidemill.capture.running import end_spark
from tidemill.cli import stopping
from tidemill.cli.options import (
    Ca,
    Cert,
    KeyFile,
    ReadyFile,
    SparkConf,
    SparkMaster,
    configure_log,
    security_of,
    spark_conf_of,
    spark_master_of,
    zone_of,
)
from tidemill.errors import UsageError
from tidemill.model.address import read_address

ETCD_PASSWORD_VARIABLE = "TIDEMILL_ETCD_PASSWORD"


def server(
    pd: Annotated[str, typer.Option("--pd", help="PD's addresses, comma separated: 127.0.0.1:2379.")],
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Folder of this capture's segments, and of its lock.")],
    etcd: Annotated[
        str, typer.Option("--etcd", help="etcd's addresses, for what the cluster remembers. Default: PD's own etcd.")
    ] = "",
    addr: Annotated[str, typer.Option("--addr", help="Where the API listens.")] = "127.0.0.1:8300",
    peer_addr: Annotated[
        str | None,
        typer.Option("--peer-addr", help="Where other captures reach this one. Default: --addr's host, a free port."),
    ] = None,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="Captures of one etcd with one cluster-id are one cluster.")
    ] = DEFAULT_CLUSTER,
    session_ttl: Annotated[
        int, typer.Option("--capture-session-ttl", help="Seconds after which a capture that is silent is given up.")
    ] = DEFAULT_TTL_SECONDS,
    etcd_user: Annotated[
        str, typer.Option("--etcd-user", help=f"etcd's user; {ETCD_PASSWORD_VARIABLE} holds the password.")
    ] = "",
    ca: Ca = "",
    cert: Cert = "",
    key: KeyFile = "",
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="The zone in which TIMESTAMP values are written.")
    ] = "UTC",
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="Write JSON here once the capture is one of its cluster.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a capture: it takes part in the work on all changefeeds of its cluster, and owns them when it is elected.

    Ends on Ctrl-C or SIGTERM, once others have taken over its tables.

    Example: tidemill server --pd 127.0.0.1:2379 --data-dir capture-1 --addr 127.0.0.1:8300
    """
    configure_log(log_level)
    host, port = _address(addr, "--addr")
    password = os.environ.get(ETCD_PASSWORD_VARIABLE, "")
    options = ServerOptions(
        pd=pd,
        data_dir=data_dir,
        etcd=etcd,
        address=addr,
        peer_address=peer_addr if peer_addr is not None else f"{host}:0",
        cluster=cluster_id,
        session_ttl_seconds=session_ttl,
        spark_master=spark_master_of(spark_master),
        spark_conf=spark_conf_of(spark_conf),
        zone=zone_of(time_zone),
        security=security_of(ca, cert, key),
        etcd_user=EtcdUser(etcd_user, password) if etcd_user else None,
    )
    waiting = ReadyFile(ready_file)
    stop = stopping.current()

    async def serve() -> None:
        """The API answers from the beginning, if only that it is not ready."""
        capture = Server(options)
        app = create_app(CaptureOperations(capture.serving))

        async def ready(serving: Serving) -> None:
            name = serving.capture.id if serving.capture is not None else ""
            waiting.write({"api": api.address, "pid": os.getpid(), "capture": name})

        async with ApiServer(app, host, port) as api:
            capture.serving.options = replace(options, address=api.address)
            await capture.run(stop.is_set, ready)

    with stop.graceful(), stop.on_abandon(end_spark), stop.at_hand():
        asyncio.run(serve())


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        if port != "0":
            read_address(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} {error}, for example 127.0.0.1:8300.") from None
    return host, int(port)
