"""Both halves of the TiKV sink. Nothing is kept at the target but keys: no marks, no names, no fence.

What takes the place of a fence is time. Every target that a writer gives out has a deadline, so many seconds later by
the target's own clock. When the owner fences writers, it waits until no target can be alive that was given out before.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tidemill.errors import InvariantError, UsageError
from tidemill.flow.rawkv import is_raw
from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.port import NoSyncPoints
from tidemill.sinks.tikv.cluster import TargetCluster, later
from tidemill.sinks.tikv.target import TikvTarget
from tidemill.sinks.tikv.uri import TikvOptions

log = get_logger("tikv-sink")


class TikvOwner(NoSyncPoints):
    def __init__(self, options: TikvOptions, state: Mapping[str, Any] | None, *, is_resumed: bool) -> None:
        self._options = options
        self._cluster = TargetCluster(options)
        self._state = dict(state or {})
        self._may_have_written = is_resumed or bool(state)
        self._earlier_seconds = float(self._state.get("deadline_seconds", 0.0))  # of units of earlier runs
        self._term = ""

    @property
    def term(self) -> str:
        return self._term

    def begin(self) -> None:
        """Another owner of this changefeed is kept out by its data-dir, not by the target."""
        cluster_id = self._cluster.cluster_id()
        if cluster_id == self._options.source_cluster_id:
            raise UsageError(
                f"{self._options.safe_uri} is the cluster {cluster_id} that is captured: what is written there would "
                "be captured again, for ever. Give the PD of another cluster."
            )
        known = self._state.get("cluster_id")
        if known not in (None, cluster_id):
            raise UsageError(
                f"this changefeed writes into cluster {known}, and {self._options.safe_uri} is cluster {cluster_id}. "
                "Give the PD of that one, or another --data-dir for a new changefeed."
            )
        self._cluster.find_keyspace()
        self._state["cluster_id"] = cluster_id
        self._term = secrets.token_hex(8)

    def know(self, tables: Iterable[TableInfo]) -> dict[str, Any]:
        for table in tables:
            _check(table)
        self._state["deadline_seconds"] = self._options.deadline_seconds
        return dict(self._state)

    def fence(self, writers: Collection[str] | None = None) -> None:
        """Wait until every unit that was given out before has passed its deadline, which another sink URI may have
        said. Which writers they are of makes no difference."""
        if not self._may_have_written:
            self._may_have_written = True
            return
        seconds = max(self._options.deadline_seconds, self._earlier_seconds) + self._options.grace_seconds
        log.info("waiting for the deadlines of units that may still be written", seconds=seconds)
        self._cluster.wait_until(later(self._cluster.ts(), seconds))
        self._earlier_seconds = 0.0

    def ddl(self, event: DdlEvent) -> None:
        raise InvariantError(f"a DDL for keys without a schema: {event.type}. Report it.")

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._state)

    def publish(self, checkpoint_ts: Ts) -> None:
        """The target has no readers of ours: its keys are all that there is."""

    def close(self) -> None:
        self._cluster.close()


class TikvWriter:
    def __init__(self, options: TikvOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._cluster = TargetCluster(options)
        self._until_ts: Ts | None = None  # the last deadline of units that have not been committed

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Wait for the deadlines of what this writer has given out. Of others in its place: the owner has fenced them.
        What unfinished batches wrote stays: the same keys come again, with these versions or newer ones."""
        if self._until_ts is not None:
            self._cluster.wait_until(later(self._until_ts, self._options.grace_seconds))
            self._until_ts = None

    def target(self, table: TableInfo, physical_id: int, window: Window) -> TikvTarget:
        _check(table)
        keyspace = self._cluster.find_keyspace() if self._options.keyspace else None
        deadline_ts = later(self._cluster.ts(), self._options.deadline_seconds)
        self._until_ts = max(self._until_ts or deadline_ts, deadline_ts)
        return TikvTarget(self._options, deadline_ts, keyspace.id if keyspace is not None else 0)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """All units of the batch have ended: nothing of them is on its way any more."""
        self._until_ts = None
        return {"writer": self._name}

    def close(self) -> None:
        self._cluster.close()


def _check(table: TableInfo) -> None:
    if not is_raw(table):
        raise UsageError(
            f"a sink of scheme tikv takes keys and values of RawKV, and {table.full_name} is a table. Give --start-key "
            "and --end-key (both empty: the whole keyspace) for RawKV, or write tables to a sink of tables."
        )
