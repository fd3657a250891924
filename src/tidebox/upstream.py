"""``EmbeddedUpstream``: one PD and N stores in this process, each at its own gRPC address.

    with EmbeddedUpstream.start(stores=3, load=path) as upstream:
        connect(upstream.pd_address)

Besides what clients can ask over the wire it offers what tests need: transactions without a
client, splits, leader changes, stores that go away, a region whose resolved-ts stands still. With
``sql_port`` it is a TiDB as well: SQL nodes that MySQL clients connect to (``store.sql``).
All methods may be called from any thread.
"""

import shutil
import tempfile
import threading
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self

from tidebox import load as loading
from tidebox.batch_service import BatchService
from tidebox.cdc_service import CdcService
from tidebox.chaos import Chaos
from tidebox.cluster import Cluster
from tidebox.controls import Controls
from tidebox.engine import Engine
from tidebox.faults import PREFIX, Faults
from tidebox.feed import SCAN_BYTES_PER_SECOND
from tidebox.gc import INTERVAL_SECONDS, Sweeper
from tidebox.health import HEALTH
from tidebox.history import read_history
from tidebox.kv_service import KvService
from tidebox.load import Replay
from tidebox.pd import Pd
from tidebox.raw_service import RawService
from tidebox.rpc import Server
from tidebox.sql.catalog import LEASE_SECONDS
from tidebox.sql.nodes import SqlNodes, check_options
from tidebox.stores import Stores
from tidebox.timers import Later
from tidebox.tls import check_server, server_credentials
from tidebox.txn_service import TxnService
from tidemill._pb import cdcpb_pb2, tikvpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import CorruptDataError, DataDirError, UsageError
from tidemill.log import get_logger
from tidemill.model.security import PLAIN, Security

log = get_logger("store")


class EmbeddedUpstream(Controls):
    """Serving from construction until ``stop``. Use ``start``."""

    def __init__(
        self,
        folder: Path,
        *,
        stores: int,
        pd_port: int,
        resolved_interval_seconds: float,
        clock: Clock,
        is_temporary: bool,
        api_version: int = 1,
        gc_interval_seconds: float = INTERVAL_SECONDS,
        clock_refresh_seconds: float = 0.5,
        security: Security = PLAIN,
    ) -> None:
        self.folder = folder
        self._is_temporary = is_temporary
        self._credentials = server_credentials(security) if security.is_tls else None
        self._interval_seconds = resolved_interval_seconds
        self._pd_port = pd_port
        self._engine = Engine(folder)
        self._stopping = threading.Event()
        self._later = Later()
        self._pd_lock = threading.Lock()
        self._replay: Replay | None = None
        self._ticker = threading.Thread(target=self._tick, name="resolved-ts", daemon=True)
        self._refresh_seconds = clock_refresh_seconds
        self._refresher = threading.Thread(target=self._refresh_clocks, name="raw-clocks", daemon=True)
        self._is_stopped = False
        self.pd_address = ""
        self._chaos: Chaos | None = None
        self._sql: SqlNodes | None = None
        try:
            self.cluster = Cluster(self._engine, clock, stores, api_version)
            self._stores = Stores(self.cluster, self._later, self._make_store)
            self._pd = Pd(self.cluster, folder, is_temporary=is_temporary, security=security)
            self._sweeper = Sweeper(self.cluster.garbage, gc_interval_seconds)
        except BaseException as error:
            self._engine.close()
            if isinstance(error, CorruptDataError):
                raise DataDirError(
                    f"cannot open the upstream's data in {folder}: {error}. "
                    "It is damaged: start from a copy of it, or choose another --data-dir."
                ) from error
            raise

    @classmethod
    def start(
        cls,
        *,
        stores: int = 1,
        pd_port: int = 0,
        data_dir: Path | None = None,
        load: Path | None = None,
        replay: float | None = None,
        resolved_interval_seconds: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        api_version: int = 1,
        gc_interval_seconds: float = INTERVAL_SECONDS,
        clock_refresh_seconds: float = 0.5,
        scan_bytes_per_second: float = SCAN_BYTES_PER_SECOND,
        chaos: int | None = None,
        sql_port: int | None = None,
        sql_nodes: int = 1,
        sql_lease_seconds: float = LEASE_SECONDS,
        security: Security = PLAIN,
    ) -> "EmbeddedUpstream":
        """Start a cluster in ``data_dir``, or in a temporary folder that goes when it stops.

        ``load`` brings in a history: at once, or with ``replay`` live at so many times its own
        pace (0: as fast as it goes), except for what its ``bootstrap_ts`` covers. The stores' own
        clocks, which stamp raw writes of API V2, hear from the TSO every ``clock_refresh_seconds``.
        Incremental scans together read no more than ``scan_bytes_per_second``. ``chaos`` is a seed: the
        cluster then changes by itself all the time. With ``sql_port`` there are ``sql_nodes`` for MySQL clients, at
        that port and those above it, or with 0 at free ones; a node that cannot renew its schema serves on for no
        more than ``sql_lease_seconds``. With ``security`` PD and the stores speak TLS, and clients have to prove who
        they are.
        """
        check_server(security)
        if not 1 <= stores <= 64:
            raise UsageError(f"cannot start {stores} stores: choose 1 to 64")
        if api_version not in (1, 2):
            raise UsageError(f"there is no API version {api_version}: choose 1 or 2")
        if replay is not None and load is None:
            raise UsageError("--replay needs a history: give one with --load")
        if replay is not None and not 0 <= replay < inf:
            raise UsageError(f"--replay {replay:g} is no pace: give how many times its own, or 0 for all speed")
        if sql_port is not None and replay is not None:
            raise UsageError(
                "--sql-port does not go with --replay: what SQL writes and what the history wrote would take the same "
                "ids. Load the history at once, without --replay."
            )
        if sql_port is not None:
            check_options(sql_port, sql_nodes, sql_lease_seconds, api_version)
        elif sql_nodes != 1:
            raise UsageError("--sql-nodes needs --sql-port: give a port, or 0 for free ones")
        if resolved_interval_seconds <= 0:
            raise UsageError(f"the resolved-ts interval must be positive, not {resolved_interval_seconds} seconds")
        if clock_refresh_seconds <= 0 or scan_bytes_per_second <= 0:
            raise UsageError(
                "the refresh of the stores' clocks and the rate of scans must be positive, "
                f"not {clock_refresh_seconds} seconds and {scan_bytes_per_second} bytes a second"
            )
        if gc_interval_seconds <= 0:
            raise UsageError(f"the interval of garbage collection must be positive, not {gc_interval_seconds} seconds")
        # A bad history must not leave a half-made folder behind, so it is read first.
        history = read_history(load) if load is not None else None
        folder = data_dir if data_dir is not None else Path(tempfile.mkdtemp(prefix="tidemill-upstream-"))
        upstream = None
        try:
            upstream = cls(
                folder,
                stores=stores,
                pd_port=pd_port,
                resolved_interval_seconds=resolved_interval_seconds,
                clock=clock,
                is_temporary=data_dir is None,
                api_version=api_version,
                gc_interval_seconds=gc_interval_seconds,
                clock_refresh_seconds=clock_refresh_seconds,
                security=security,
            )
            upstream.cluster.scan_throttle.bytes_per_second = scan_bytes_per_second
            if history is not None:
                at_once = len(history) if replay is None else history.rows_up_to(history.bootstrap_ts)
                loading.load(upstream.cluster, history, at_once)
                if replay is not None:
                    upstream.cluster.tso.pass_by(history.bootstrap_ts)
                    upstream._replay = Replay(upstream.cluster, history, replay, clock)
            upstream._serve()
            if sql_port is not None:
                upstream._serve_sql(sql_port, sql_nodes, sql_lease_seconds)
            if chaos is not None:
                upstream._chaos = Chaos(upstream, chaos)
                upstream._chaos.start()
        except BaseException:
            if upstream is not None:
                upstream.stop()
            elif data_dir is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return upstream

    @property
    def store_addresses(self) -> list[str]:
        return [store.address for store in self.cluster.stores.values()]

    @property
    def sql_addresses(self) -> list[str]:
        """Where MySQL clients connect, one a node; empty without SQL."""
        return self._sql.addresses if self._sql is not None else []

    @property
    def sql(self) -> SqlNodes:
        """The SQL nodes; an error if it was started without."""
        if self._sql is None:
            raise UsageError("this upstream has no SQL nodes: start it with --sql-port")
        return self._sql

    @property
    def cluster_id(self) -> int:
        return self.cluster.cluster_id

    def stop(self) -> None:
        """End every stream, stop serving, close the data. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._stopping.set()
        self.cluster.in_flight.delay_seconds = 0  # what is on its way may arrive
        if self._chaos is not None:
            self._chaos.stop()
        self._later.close()
        if self._replay is not None:
            self._replay.stop()
        if self._sql is not None:
            self._sql.stop()
        for stop in self.cluster.at_stop:
            stop()
        for thread in (self._ticker, self._refresher):
            if thread.is_alive():
                thread.join()
        self._sweeper.stop()
        self.cluster.tso.close()
        self.drop_streams("server is stopping")
        self._stores.close()
        self._pd.stop()
        self.cluster.raw.close()
        with self.cluster.mutex:  # whoever is inside comes out first
            self._engine.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_replayed(self, timeout_seconds: float | None = None) -> bool:
        """Whether the replay has come to its end; True at once if there is none."""
        return self._replay.wait(timeout_seconds) if self._replay is not None else True

    def _serve(self) -> None:
        if self.cluster.api_version == 2:
            with self.cluster.mutex:
                self.cluster.raw.refresh()
            self._refresher.start()
        self._stores.start_all()
        faults = Faults(self)
        for method in ("GET", "POST"):
            self._pd.paths.add(method, PREFIX, faults.answer)
        self.pd_address = self._pd.start(self._pd_port)
        self._ticker.start()
        self._sweeper.start()
        if self._replay is not None:
            self._replay.start()
        log.info("upstream serving", pd=self.pd_address, stores=len(self.cluster.stores))

    def _serve_sql(self, port: int, count: int, lease_seconds: float) -> None:
        self._sql = SqlNodes(self.cluster, count, lease_seconds=lease_seconds)
        self._sql.serve(port)
        self._sql.start()

    def _make_store(self, store_id: int) -> Server:
        server = Server(f"store-{store_id}", self._credentials)
        server.add_handler(HEALTH)
        kv, cdc = KvService(self.cluster, store_id), CdcService(self.cluster, store_id)
        raw, txn = RawService(self.cluster, store_id), TxnService(self.cluster, store_id)
        batch = BatchService(self.cluster, server.threads, kv, txn, raw)
        in_bytes = {"KvScan", "BatchCommands"}
        server.add(tikvpb_pb2.DESCRIPTOR.services_by_name["Tikv"], kv, txn, raw, batch, answered_in_bytes=in_bytes)
        feeds = {"EventFeed", "EventFeedV2"}
        server.add(cdcpb_pb2.DESCRIPTOR.services_by_name["ChangeData"], cdc, answered_in_bytes=feeds)
        return server

    def _tick(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self.cluster.publish_resolved()

    def _refresh_clocks(self) -> None:
        while not self._stopping.wait(self._refresh_seconds):
            with self.cluster.mutex:
                self.cluster.raw.refresh()
