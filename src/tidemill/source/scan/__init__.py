"""Tables read on executors: as they were at a ts, and what was done to them between two ts.

in      a table of the upstream, a ts or two of them
out     parts, small and picklable, cut by region; each is read by itself into ``RowBatch``es

    catalog   which table a name means at a ts             parts     plan_scan: a table's rows, cut by region
    handles   key ranges from bounds on the handle         snapshot  read_part: KvScan → mount
    history   a table's schemas between two ts             changes   plan_changes, read_changes: EventFeed → mount
    present   rows as other systems' Arrow types           hold      keeps the upstream from collecting what is read
    keys      a part of a range of keys, by the scan of the change stream
    client    the planning side for callers without an     evolution what a DDL changes for a reader of fixed form
              event loop

The same part gives the same rows however often it is read: the store keeps versions. Regions that split, merge
or move while a part is read do not matter to it, since a part is a range of keys and not a region.
"""

from tidemill.source.scan.catalog import TableName, find_table, table_document
from tidemill.source.scan.changes import ChangePart, plan_changes, read_changes
from tidemill.source.scan.client import ScanClient
from tidemill.source.scan.evolution import cut, first_change
from tidemill.source.scan.handles import HandleBounds, bounded_column
from tidemill.source.scan.history import Stretch, TableHistory
from tidemill.source.scan.hold import ReadHold
from tidemill.source.scan.parts import ScanPart, plan_scan
from tidemill.source.scan.present import Dates, Presenter
from tidemill.source.scan.snapshot import read_part
from tidemill.upstream.pd import parse_addresses

__all__ = [
    "ChangePart",
    "Dates",
    "HandleBounds",
    "Presenter",
    "ReadHold",
    "ScanClient",
    "ScanPart",
    "Stretch",
    "TableHistory",
    "TableName",
    "bounded_column",
    "cut",
    "find_table",
    "first_change",
    "parse_addresses",
    "plan_changes",
    "plan_scan",
    "read_changes",
    "read_part",
    "table_document",
]
