"""What is noted of DDLs, in ``tidb_cdc.tidemill_ddl_v2``: which have begun, and which are done.

One that has begun and is not noted to be done may have run or not; whoever comes next has to look.
"""

from collections.abc import Sequence
from typing import Any

from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.generation import SCHEMA
from tidemill.sinks.mysql.session import ask
from tidemill.sinks.mysql.uri import MysqlOptions

_TABLE = f"`{SCHEMA}`.`tidemill_ddl_v2`"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (changefeed VARCHAR(255) NOT NULL, cluster VARCHAR(64) NOT NULL, "
    "finished_ts BIGINT UNSIGNED NOT NULL, seq INT NOT NULL, is_done TINYINT NOT NULL, was VARCHAR(64) NOT NULL, "
    "PRIMARY KEY (changefeed, cluster, finished_ts, seq))"
)
_OURS = "changefeed=%s AND cluster=%s"
_THESE = f"{_OURS} AND (finished_ts, seq) IN %s"


class Notes:
    """Of one changefeed, in one session."""

    def __init__(self, session: Any, options: MysqlOptions) -> None:
        self._session, self._whose = session, (options.changefeed, options.cluster_id)

    def prepare(self) -> None:
        """Before all else: make sure that there is a place for them."""
        ask(self._session, _CREATE)

    def of(self, events: Sequence[DdlEvent]) -> dict[tuple[Ts, int], tuple[bool, str]]:
        """Of those that have begun, by ts and seq: whether it is done, and what was noted beside."""
        query = f"SELECT finished_ts, seq, is_done, was FROM {_TABLE} WHERE {_THESE}"
        rows = ask(self._session, query, (*self._whose, _places(events)))
        return {(Ts(int(ts)), int(seq)): (bool(is_done), str(was)) for ts, seq, is_done, was in rows}

    def begin(self, events: Sequence[DdlEvent], was: str = "", *, saved_ts: Ts) -> None:
        """They are about to run, for the first time. Below ``saved_ts`` none comes again, and is forgotten; the others
        may, after a crash: the owner saves its progress behind several."""
        ask(self._session, f"DELETE FROM {_TABLE} WHERE {_OURS} AND finished_ts<%s", (*self._whose, saved_ts))
        rows = tuple((*self._whose, *place, 0, was) for place in _places(events))
        ask(self._session, f"INSERT INTO {_TABLE} VALUES {', '.join(['%s'] * len(rows))}", rows)

    def change(self, event: DdlEvent, was: str) -> None:
        ask(self._session, f"UPDATE {_TABLE} SET was=%s WHERE {_THESE}", (was, *self._whose, _places([event])))

    def end(self, event: DdlEvent) -> None:
        """It is done."""
        ask(self._session, f"UPDATE {_TABLE} SET is_done=1 WHERE {_THESE}", (*self._whose, _places([event])))


def _places(events: Sequence[DdlEvent]) -> tuple[tuple[Ts, int], ...]:
    return tuple((event.finished_ts, event.seq) for event in events)
