"""What a capture's server can do, as its faces see it: one port in three groups.

    HTTP, command line ──► Operations.server       the capture that was asked answers
                           Operations.changefeeds  \\ the owner answers; others forward what they are asked to it,
                           Operations.cluster      / or raise OwnerNotFoundError

Who asks has checked what can be checked without the cluster: names, sink URIs, configs. What takes the cluster is
checked here (``control.admission`` decides it), and refused by an error of ``errors.py``, each of which has TiCDC's
code. An answer may be as old as a tick of the owner.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from tidemill.model.cluster import (
    CaptureInfo,
    ChangefeedInfo,
    ChangefeedUpdate,
    MetadataEntry,
    NewChangefeed,
    ProcessorInfo,
    ServerStatus,
    TableEligibility,
    UpstreamAccess,
    VerifyTables,
)
from tidemill.model.schedule import CaptureId, ChangefeedKey, TableId
from tidemill.model.ts import Ts


class ServerOperations(Protocol):
    """What a capture answers for itself."""

    async def status(self) -> ServerStatus: ...

    async def owner(self) -> CaptureInfo | None:
        """Who was elected, as far as this capture knows; None while nobody is."""

    async def check_ready(self) -> None:
        """Raises NotReadyError until the capture can be asked for more than its status."""

    async def set_log_level(self, level: str) -> None:
        """``debug``, ``info``, ``warning`` or ``error``."""

    async def config(self) -> Mapping[str, Any]:
        """What the server was started with, without secrets."""

    async def debug_state(self) -> Mapping[str, Any]:
        """What its parts are doing, without secrets and rows; for people, in no promised form."""

    async def tso(self, upstream: UpstreamAccess) -> Ts:
        """A fresh timestamp of the upstream."""

    async def verify_tables(self, request: VerifyTables) -> TableEligibility: ...


class ChangefeedOperations(Protocol):
    """Every method that names a changefeed raises ChangefeedNotFoundError where there is none of that name."""

    async def all(self, namespace: str | None = None) -> tuple[ChangefeedInfo, ...]:
        """Those of a namespace, or all; ordered by namespace and id. Those that are finished or removed too."""

    async def get(self, key: ChangefeedKey) -> ChangefeedInfo: ...

    async def create(self, new: NewChangefeed) -> ChangefeedInfo:
        """It is stored when this returns. Raises ChangefeedExistsError, UsageError for a ts of the future,
        StartTsCollectedError, TargetTsError, TableIneligibleError, SameClusterError."""

    async def update(self, key: ChangefeedKey, update: ChangefeedUpdate) -> ChangefeedInfo:
        """Raises UpdateRefusedError unless it is stopped or failed and something changes; TargetTsError."""

    async def pause(self, key: ChangefeedKey) -> None:
        """Asked for when this returns, and done soon. Where it does not run, nothing happens."""

    async def resume(self, key: ChangefeedKey, overwrite_ts: Ts | None = None) -> None:
        """Asked for when this returns. ``overwrite_ts``: continue from there instead of from its checkpoint. Raises
        StartTsCollectedError, and UsageError for a ts of the future."""

    async def remove(self, key: ChangefeedKey) -> None:
        """Gone when this returns. Raises DeletionUnfinishedError where that takes too long."""

    async def tables(self, key: ChangefeedKey, capture_id: CaptureId) -> tuple[TableId, ...]:
        """That the capture has of it. Raises CaptureNotFoundError."""

    async def move_table(self, key: ChangefeedKey, table: TableId, capture_id: CaptureId) -> None:
        """Asked for when this returns. Raises CaptureNotFoundError; SchedulerRefusedError where the table is not one of
        the changefeed's or cannot be moved now."""

    async def rebalance(self, key: ChangefeedKey) -> None:
        """Asked for when this returns."""


class ClusterOperations(Protocol):
    async def check_health(self) -> None:
        """Raises UnhealthyError, which says what is wrong."""

    async def captures(self) -> tuple[CaptureInfo, ...]:
        """Ordered by id."""

    async def drain(self, capture_id: CaptureId) -> int:
        """Move its tables elsewhere; how many are still there. Asked again until that is 0. Raises
        CaptureNotFoundError; SchedulerRefusedError where it is the owner, the only one, or another one is drained."""

    async def resign(self) -> None:
        """Let another capture be owner."""

    async def processors(self, namespace: str | None = None) -> tuple[ProcessorInfo, ...]: ...

    async def metadata(self) -> tuple[MetadataEntry, ...]:
        """All that is stored, ordered by key, secrets included: only for callers who may see them."""

    async def resolve_lock(self, region_id: int, ts: Ts, upstream: UpstreamAccess) -> None:
        """Resolve the locks of a region whose transactions began below ``ts``."""

    async def delete_gc_safepoint(self, upstream: UpstreamAccess) -> None:
        """The upstream keeps nothing for this cluster's changefeeds any more, until it is claimed again."""


class Operations(Protocol):
    @property
    def server(self) -> ServerOperations: ...

    @property
    def changefeeds(self) -> ChangefeedOperations: ...

    @property
    def cluster(self) -> ClusterOperations: ...
