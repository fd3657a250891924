"""Dropped tables, kept aside for a while, since the upstream can bring them back.

A RECOVER TABLE or FLASHBACK TABLE gives a table back with all its rows, none of which come through the change stream.
MySQL and MariaDB have no such statement, and a TiDB downstream collects its garbage by its own clock.
So a DROP TABLE moves the table to ``tidb_cdc.dropped_<whose>_<table id>_<ts of the drop>`` (a rename, which costs
nothing), and the table is dropped for good an hour of upstream time later: TiDB forgets after ten minutes unless told
otherwise. *Whose* it is says a digest of the cluster's and the changefeed's id: table ids of two clusters mean
different tables, so nobody touches what another has put there.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.mysql.generation import SCHEMA
from tidemill.sinks.mysql.session import ask
from tidemill.tidb.lexer import quoted

KEPT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Aside:
    """Where one changefeed puts tables aside: into the schema of the sink's notes, under names of its own."""

    mark: str

    @classmethod
    def of(cls, changefeed: str, cluster: str) -> "Aside":
        return cls(hashlib.sha256(f"{cluster}\0{changefeed}".encode()).hexdigest()[:12])

    def place(self, kind: str, table_id: int, ts: int) -> str:
        return f"{quoted(SCHEMA)}.{quoted(f'{kind}_{self.mark}_{table_id}_{ts}')}"

    def drop(self, session: Any, event: DdlEvent) -> str:
        """The statement that drops the event's table: a rename, or a DROP where others hold on to the table."""
        place = f"{quoted(event.schema)}.{quoted(event.table)}"
        is_referenced = ask(
            session,
            "SELECT 1 FROM information_schema.referential_constraints WHERE unique_constraint_schema=%s AND "
            "referenced_table_name=%s UNION SELECT 1 FROM information_schema.triggers WHERE event_object_schema=%s AND "
            "event_object_table=%s",
            (event.schema, event.table) * 2,
        )
        if is_referenced or event.table_info is None:
            return f"DROP TABLE {place}"
        return f"RENAME TABLE {place} TO {self.place('dropped', event.table_info.id, event.finished_ts)}"

    def restore(self, session: Any, event: DdlEvent) -> str | None:
        """The statement that brings a table back; None if it is not here."""
        if event.table_info is None:
            return None
        mine = [(ts, table) for table_id, ts, table in self._kept(session) if table_id == event.table_info.id]
        if not mine:
            return None
        return f"RENAME TABLE {quoted(SCHEMA)}.{quoted(max(mine)[1])} TO {quoted(event.schema)}.{quoted(event.table)}"

    def forget(self, session: Any, checkpoint_ts: Ts) -> None:
        """Drop for good what was dropped long before ``checkpoint_ts``."""
        for _, ts, table in self._kept(session):
            if physical_ms(checkpoint_ts) - physical_ms(ts) >= KEPT_MS:
                ask(session, f"DROP TABLE IF EXISTS {quoted(SCHEMA)}.{quoted(table)}")

    def _kept(self, session: Any) -> list[tuple[int, int, str]]:
        """(table id, ts of the drop, name) of all that this changefeed keeps."""
        rows = ask(session, "SELECT table_name FROM information_schema.tables WHERE table_schema=%s", (SCHEMA,))
        found = []
        for (full,) in rows:
            kind, mark, table_id, ts = (*str(full).split("_"), "", "", "", "")[:4]
            if (kind, mark) == ("dropped", self.mark) and table_id.isdigit() and ts.isdigit():
                found.append((int(table_id), int(ts), str(full)))
        return found
