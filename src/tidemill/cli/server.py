"""``tidemill server``: a capture of a cluster."""

import asyncio
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from tidemill.api.access import UsersFile
from tidemill.api.app import create_app
from tidemill.api.forwarding import Forwarder
from tidemill.api.serving import ApiServer
from tidemill.api.tls import ApiTls, client_context
from tidemill.capture.cluster.operations import CaptureOperations
from tidemill.capture.cluster.options import ServerOptions
from tidemill.capture.cluster.server import Server, Serving
from tidemill.capture.etcd.client import EtcdUser
from tidemill.capture.etcd.keys import DEFAULT_CLUSTER
from tidemill.capture.etcd.session import DEFAULT_TTL_SECONDS, LEAST_TTL_SECONDS
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
    name_of,
    security_of,
    spark_conf_of,
    spark_master_of,
    zone_of,
)
from tidemill.errors import UsageError
from tidemill.model.address import read_address
from tidemill.model.security import Security
from tidemill.upstream.pd import parse_addresses

ETCD_PASSWORD_VARIABLE = "TIDEMILL_ETCD_PASSWORD"


def server(
    pd: Annotated[str, typer.Option("--pd", help="PD's addresses, comma separated: 127.0.0.1:2379.")],
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Folder of this capture's segments, and of its lock.")],
    etcd: Annotated[
        str, typer.Option("--etcd", help="etcd's addresses, for what the cluster remembers. Default: PD's own etcd.")
    ] = "",
    addr: Annotated[str, typer.Option("--addr", help="Where the API listens; port 0: any.")] = "127.0.0.1:8300",
    advertise_addr: Annotated[
        str, typer.Option("--advertise-addr", help="Where others reach the API. Default: --addr.")
    ] = "",
    peer_addr: Annotated[
        str, typer.Option("--peer-addr", help="Where other captures reach this one. Default: --addr's host, any port.")
    ] = "",
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="Captures of one etcd with one cluster-id are one cluster.")
    ] = DEFAULT_CLUSTER,
    session_ttl: Annotated[
        int,
        typer.Option(
            "--capture-session-ttl",
            min=LEAST_TTL_SECONDS,
            max=3600,
            help="Seconds after which a capture that is silent is given up.",
        ),
    ] = DEFAULT_TTL_SECONDS,
    etcd_user: Annotated[
        str, typer.Option("--etcd-user", help=f"etcd's user; {ETCD_PASSWORD_VARIABLE} holds the password.")
    ] = "",
    ca: Ca = "",
    cert: Cert = "",
    key: KeyFile = "",
    mtls: Annotated[
        bool, typer.Option("--mtls", help="Clients of the API have to show a certificate of the same authority.")
    ] = False,
    cert_allowed_cn: Annotated[
        str, typer.Option("--cert-allowed-cn", help="And only of these common names, comma separated; captures, too.")
    ] = "",
    users: Annotated[
        Path | None,
        typer.Option("--users", help="File with those who may ask the API: NAME:PASSWORD or TOKEN, a line each."),
    ] = None,
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

    Ends on Ctrl-C or SIGTERM, once others have taken over its tables. With --cert and --key the API speaks TLS.

    Example: tidemill server --pd 127.0.0.1:2379 --data-dir capture-1 --addr 127.0.0.1:8300
    """
    configure_log(log_level)
    host, port = _address(addr, "--addr")
    advertised = _reachable(advertise_addr or addr, "--advertise-addr" if advertise_addr else "--addr")
    security, secret = security_of(ca, cert, key), os.environ.pop(ETCD_PASSWORD_VARIABLE, "")
    parse_addresses(pd, security)
    tls = _api_tls(security, mtls, cert_allowed_cn)
    admitted = UsersFile(users) if users is not None else None
    options = ServerOptions(
        pd=pd,
        data_dir=data_dir,
        etcd=etcd,
        address=addr,
        peer_address=_peer_address(peer_addr, advertised),
        cluster=name_of(cluster_id, "--cluster-id"),
        session_ttl_seconds=session_ttl,
        spark_master=spark_master_of(spark_master),
        spark_conf=spark_conf_of(spark_conf),
        zone=zone_of(time_zone),
        security=security,
        allowed_cn=tls.allowed_cn if tls is not None else (),
        etcd_user=EtcdUser(etcd_user, secret) if etcd_user else None,
    )
    waiting = ReadyFile(ready_file)
    stop = stopping.current()

    async def serve() -> None:
        """The API answers from the beginning, if only that it is not ready."""
        capture = Server(options)
        operations = CaptureOperations(capture.serving)
        forwarder = Forwarder(operations, client_context(security) if tls is not None else None)
        app = create_app(operations, forwarder=forwarder, users=admitted)

        async def ready(serving: Serving) -> None:
            name = serving.capture.id if serving.capture is not None else ""
            waiting.write({"api": api.address, "pid": os.getpid(), "capture": name})

        async with ApiServer(app, host, port, tls=tls, has_users=admitted is not None) as api:
            told = advertise_addr or f"{advertised}:{api.address.rpartition(':')[2]}"
            capture.serving.options = replace(options, address=told)
            await capture.run(stop.is_set, ready)

    with stop.graceful(), stop.on_abandon(end_spark), stop.at_hand():
        asyncio.run(serve())


def _address(text: str, option: str) -> tuple[str, int]:
    """Port 0 is any."""
    host, _, port = text.rpartition(":")
    try:
        read_address(f"{host}:1" if port == "0" else text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} {error}, for example 127.0.0.1:8300.") from None
    return host.strip("[]"), int(port)


def _reachable(text: str, option: str) -> str:
    """The host, as an address begins. Others are told it, so it has to be one."""
    host, _ = _address(text, option)
    try:
        is_any = ip_address(host).is_unspecified
    except ValueError:
        is_any = False
    if is_any:
        raise UsageError(f"{option} {text}: others cannot reach {host}. Say with --advertise-addr where they reach us.")
    return text.rpartition(":")[0]


def _peer_address(text: str, advertised: str) -> str:
    if text:
        _reachable(text, "--peer-addr")
    return text or f"{advertised}:0"


def _api_tls(security: Security, mtls: bool, allowed_cn: str) -> ApiTls | None:
    names = tuple(name.strip() for name in allowed_cn.split(",") if name.strip())
    if not security.cert_path:
        if mtls or names:
            raise UsageError("--mtls and --cert-allowed-cn are of an API that speaks TLS: give --ca, --cert and --key.")
        return None
    if names and not mtls:
        raise UsageError("--cert-allowed-cn names clients' certificates, which nobody asks for: give --mtls as well.")
    return ApiTls(security, mtls, names)
