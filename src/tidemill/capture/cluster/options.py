"""What a capture of a cluster is started with, and what it makes of a changefeed's info."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.capture.etcd.client import EtcdUser
from tidemill.capture.etcd.keys import DEFAULT_CLUSTER
from tidemill.capture.etcd.session import DEFAULT_TTL_SECONDS
from tidemill.capture.options import RunOptions
from tidemill.config.changefeed import read_config
from tidemill.model.cluster import NEVER, ChangefeedInfo
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.security import PLAIN, Security

_GC_TTL_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """``address``: of the API, which is what TiCDC calls a capture's address. ``peer_address``: where other captures
    reach it; port 0 is any."""

    pd: str
    data_dir: Path
    etcd: str = ""  # default: PD's own
    address: str = "127.0.0.1:8300"
    peer_address: str = "127.0.0.1:0"
    cluster: str = DEFAULT_CLUSTER
    session_ttl_seconds: int = DEFAULT_TTL_SECONDS
    spark_master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    zone: str = "UTC"
    security: Security = PLAIN  # to PD, TiKV, etcd and other captures
    allowed_cn: tuple[str, ...] = ()  # of other captures' certificates, beside their authority; empty: any
    etcd_user: EtcdUser | None = field(default=None, repr=False)
    gc_ttl_seconds: int = _GC_TTL_SECONDS

    def folder(self, changefeed: ChangefeedKey) -> Path:
        return self.data_dir / "changefeeds" / changefeed.namespace / changefeed.id


def run_options(server: ServerOptions, info: ChangefeedInfo) -> RunOptions:
    """Raises a UsageError for what cannot be."""
    from tidemill.flow.encoder import protocol_keys  # late: they bring the compiler along

    config = read_config(info.config, f"changefeed {info.key}", protocol_keys())
    security = config.security if config.security != PLAIN else server.security
    return RunOptions(
        pd=server.pd,
        sink_uri=info.sink_uri,
        data_dir=server.folder(info.key),
        start_ts=info.start_ts,
        target_ts=info.target_ts if info.target_ts != NEVER else None,
        spark_master=server.spark_master,
        spark_conf=server.spark_conf,
        zone=server.zone,
        config=config,
        security=security,
        name=info.key.id,
        gc_ttl_seconds=server.gc_ttl_seconds,
        initial_copy=info.initial_copy,
    )
