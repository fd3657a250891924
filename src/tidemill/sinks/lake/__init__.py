"""Lakes: Iceberg and Delta tables, and plain Parquet, that hold every change and so every moment.

parse_lake_uri ─► LakeOptions ─► LakeWriter, LakeOwner over Iceberg | Delta | ParquetLayout
                                    │ target, one a unit of a batch
                                    ▼
                     write_rows(target, rows) ─► Receipt                          (executor)
                                    │ receipts
                                    ▼
                     commit: a transaction a table ─► delta                       (writer)
                                    ▼
                     take ─► state (caller) ─► publish                            (owner)

``journal`` keeps what is known of the tables. ``query`` reads them back: a table's rows as of a ts, as SQL for DuckDB
and Spark, or as an Arrow table. The backends import their libraries; take them from their own modules, so that
executors need not.
"""

from tidemill.sinks.lake.files import LakeTarget, write_rows
from tidemill.sinks.lake.options import LakeKind, LakeOptions, is_lake_uri, parse_lake_uri
from tidemill.sinks.lake.query import rows_at, rows_at_sql

__all__ = [
    "LakeKind",
    "LakeOptions",
    "LakeTarget",
    "is_lake_uri",
    "parse_lake_uri",
    "rows_at",
    "rows_at_sql",
    "write_rows",
]
