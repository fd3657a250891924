"""Schemas: which table a row belongs to, in which form, and which physical ids a changefeed reads.

in      a snapshot of the upstream's metadata at a ts, then the changes of mysql.tidb_ddl_job above it
out     tables by (physical id, commit-ts), followed intervals of physical ids, DDL events with their barriers

meta ─► documents ─► snapshot ─┐
        jobs ──► effects ──────┴─► store ── versions     follow, switches, visible: when ids and forms come into use

Runs in the capture; the tables it gives travel to executors.
"""

from tidemill.flow.schema.follow import Followed
from tidemill.flow.schema.snapshot import PastRead, past_reads
from tidemill.flow.schema.store import SchemaChange, SchemaStore, store_of_tables
from tidemill.flow.schema.versions import Absent
from tidemill.tidb.meta import JOB_TABLE_ID, scan_ranges

__all__ = [
    "JOB_TABLE_ID",
    "Absent",
    "Followed",
    "PastRead",
    "SchemaChange",
    "SchemaStore",
    "past_reads",
    "scan_ranges",
    "store_of_tables",
]
