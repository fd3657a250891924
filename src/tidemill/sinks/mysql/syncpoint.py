"""Sync points: pairs of an upstream and a downstream ts at which both sides hold the same rows.

Every so often in commit time a batch ends exactly at a round ts, and nothing of the next has been written: the pair is
noted in ``tidb_cdc.syncpoint_v1``, in TiCDC's form. TiDB tells its own ts, and readers may then ask for the rows
as of it; MySQL and MariaDB have none, so there the second is ``0`` and says only that the moment has passed.
"""

from typing import Any

from tidemill.model.ts import Ts, compose, physical_ms
from tidemill.sinks.mysql.generation import SCHEMA, Generation
from tidemill.sinks.mysql.session import Downstream, Flavor, ask
from tidemill.sinks.mysql.uri import MysqlOptions

_TABLE = f"`{SCHEMA}`.`syncpoint_v1`"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (ticdc_cluster_id VARCHAR(255), changefeed VARCHAR(255), "
    "primary_ts VARCHAR(18), secondary_ts VARCHAR(18), created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, "
    "INDEX (created_at), PRIMARY KEY (changefeed, primary_ts))"
)


class SyncPoints:
    """When they are due, and how they are recorded."""

    def __init__(self, options: MysqlOptions, last_ts: int | None) -> None:
        self._options = options
        self._has_table = False
        self._cleaned_ms = 0
        self.last_ts = last_ts or 0  # recorded, or where the changefeed began

    def next_ts(self, checkpoint_ts: Ts) -> Ts | None:
        """The first round ts above ``checkpoint_ts``; None: sync points are off."""
        if not self._options.sync_point:
            return None
        interval = self._interval_ms
        return compose((physical_ms(checkpoint_ts) // interval + 1) * interval)

    def is_due(self, to_ts: Ts) -> bool:
        """Whether a batch that ends at ``to_ts`` ends at a round ts not yet recorded."""
        return self._options.sync_point and to_ts > self.last_ts and to_ts == compose(self._round_ms(to_ts))

    def record(self, session: Any, generation: Generation, downstream: Downstream | None, to_ts: Ts) -> None:
        """May be called again with the same ts."""
        is_tidb = downstream is not None and downstream.flavor is Flavor.TIDB
        if not self._has_table:
            ask(session, f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}`")
            ask(session, _CREATE)
            self._has_table = True
        options = self._options
        with generation.writing(session):
            secondary = int(ask(session, "SELECT @@tidb_current_ts")[0][0]) if is_tidb else 0
            ask(
                session,
                f"INSERT IGNORE INTO {_TABLE} (ticdc_cluster_id, changefeed, primary_ts, secondary_ts) "
                "VALUES (%s, %s, %s, %s)",
                (options.cluster_id, options.changefeed, str(to_ts), str(secondary)),
            )
            if physical_ms(to_ts) - self._cleaned_ms >= options.sync_point_retention_seconds * 1000:
                self._clean(session)
                self._cleaned_ms = physical_ms(to_ts)
        if is_tidb:
            ask(session, f"SET GLOBAL tidb_external_ts = {secondary}")
        self.last_ts = to_ts

    def _clean(self, session: Any) -> None:
        ask(
            session,
            f"DELETE FROM {_TABLE} WHERE ticdc_cluster_id = %s AND changefeed = %s "
            "AND created_at < NOW() - INTERVAL %s SECOND",
            (self._options.cluster_id, self._options.changefeed, int(self._options.sync_point_retention_seconds)),
        )

    @property
    def _interval_ms(self) -> int:
        return max(int(self._options.sync_point_interval_seconds * 1000), 1)

    def _round_ms(self, ts: Ts) -> int:
        return physical_ms(ts) // self._interval_ms * self._interval_ms
