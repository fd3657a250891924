"""Dropped tables, kept aside for a while, since the upstream can bring them back.

A RECOVER TABLE or FLASHBACK TABLE gives a table back with all its rows, none of which come through the change stream.
MySQL and MariaDB have no such statement, and a TiDB downstream collects its garbage by its own clock.
So a DROP TABLE moves the table to ``tidb_cdc.dropped_<table id>_<ts of the drop>`` (a rename, which costs nothing), and
the table is dropped for good an hour of upstream time later: TiDB forgets after ten minutes unless told otherwise.
"""

from typing import Any

from tidemill.flow.sink.mysql.owner import SCHEMA
from tidemill.flow.sink.mysql.session import ask
from tidemill.flow.sink.mysql.statement import name
from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts, physical_ms

KEPT_MS = 3_600_000
_LIKE = "dropped\\_%%\\_%%"


def drop(session: Any, event: DdlEvent) -> str:
    """The statement that drops the event's table: a rename, or a DROP where others hold on to the table."""
    place = f"{name(event.schema)}.{name(event.table)}"
    is_referenced = ask(
        session,
        "SELECT 1 FROM information_schema.referential_constraints WHERE unique_constraint_schema=%s AND "
        "referenced_table_name=%s UNION SELECT 1 FROM information_schema.triggers WHERE event_object_schema=%s AND "
        "event_object_table=%s",
        (event.schema, event.table) * 2,
    )
    if is_referenced or event.table_info is None:
        return f"DROP TABLE {place}"
    return f"RENAME TABLE {place} TO {name(SCHEMA)}.{name(f'dropped_{event.table_info.id}_{event.finished_ts}')}"


def restore(session: Any, event: DdlEvent) -> str | None:
    """The statement that brings a table back; None if it is not here."""
    if event.table_info is None:
        return None
    known = _kept(session)
    mine = [(ts, table) for table_id, ts, table in known if table_id == event.table_info.id]
    if not mine:
        return None
    return f"RENAME TABLE {name(SCHEMA)}.{name(max(mine)[1])} TO {name(event.schema)}.{name(event.table)}"


def forget(session: Any, checkpoint_ts: Ts) -> None:
    """Drop for good what was dropped long before ``checkpoint_ts``."""
    for _, ts, table in _kept(session):
        if physical_ms(checkpoint_ts) - physical_ms(ts) >= KEPT_MS:
            ask(session, f"DROP TABLE IF EXISTS {name(SCHEMA)}.{name(table)}")


def _kept(session: Any) -> list[tuple[int, int, str]]:
    """(table id, ts of the drop, name) of all that are kept."""
    rows = ask(
        session,
        f"SELECT table_name FROM information_schema.tables WHERE table_schema=%s AND table_name LIKE '{_LIKE}'",
        (SCHEMA,),
    )
    parts = [(str(row[0]).split("_"), str(row[0])) for row in rows]
    return [(int(p[1]), int(p[2]), full) for p, full in parts if len(p) == 3 and p[1].isdigit() and p[2].isdigit()]
