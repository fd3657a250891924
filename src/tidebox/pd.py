"""PD, put together: everything that clients find at its one address.

Front ─┬─ HTTP/1.1 ──► HttpPaths
       └─ gRPC ──────► Server ─┬─ PdService, GcService     pdpb.PD
                               ├─ KeyspaceService          keyspacepb.Keyspace
                               ├─ EtcdRelay ──► etcd       etcdserverpb.*
                               └─ HEALTH                   grpc.health.v1.Health
"""

from pathlib import Path

from tidebox.cluster import Cluster
from tidebox.etcd import Etcd
from tidebox.etcd_relay import EtcdRelay
from tidebox.front import Front
from tidebox.gc_service import GcService
from tidebox.health import HEALTH
from tidebox.http_paths import HttpPaths
from tidebox.keyspace_service import KeyspaceService
from tidebox.pd_service import PdService
from tidebox.rpc import Server
from tidebox.tls import server_context
from tidemill._pb import keyspacepb_pb2, pdpb_pb2
from tidemill.model.security import PLAIN, Security


class Pd:
    """Serving from ``start`` to ``stop``."""

    def __init__(self, cluster: Cluster, folder: Path, *, is_temporary: bool, security: Security = PLAIN) -> None:
        """Its etcd keeps its data below ``folder``, without waiting for the disk if that is temporary."""
        self._security = security
        self.paths = HttpPaths(cluster)
        self.etcd = Etcd(folder, cluster.clock, is_temporary=is_temporary)
        self._service = PdService(cluster)
        self._relay = EtcdRelay(self.etcd)
        self._server = Server("pd")
        self._server.add(pdpb_pb2.DESCRIPTOR.services_by_name["PD"], self._service, GcService(cluster))
        self._server.add(keyspacepb_pb2.DESCRIPTOR.services_by_name["Keyspace"], KeyspaceService(cluster))
        self._server.add_handler(self._relay)
        self._server.add_handler(HEALTH)
        self._front: Front | None = None

    def start(self, port: int) -> str:
        """Listen on ``port``, or with 0 on a free one; return the address."""
        tls = server_context(self._security) if self._security.is_tls else None
        self._front = front = Front(port, tls)  # kept first: it is to be stopped even if the port is taken
        address = front.listen()
        for part in (self.paths, self._service, self._relay):
            part.url = f"{'https' if tls else 'http'}://{address}"
        front.serve(self._server.start(0), self.paths)
        return address

    def set_away(self, is_away: bool) -> None:
        """See ``Front.set_away``: nothing but the paths below ``/tidemill/`` answers while it is away."""
        if self._front is not None:
            self._front.set_away(is_away)

    def stop(self) -> None:
        """Close every connection, wait for all threads, end etcd. A second call does nothing."""
        if self._front is not None:
            self._front.stop()
        self._server.stop()
        self._relay.stop()
        self.etcd.stop()
