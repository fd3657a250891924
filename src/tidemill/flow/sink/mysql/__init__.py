"""Rows into MySQL, MariaDB or TiDB, kept equal to the upstream.

parse_mysql_uri(uri) ─► MysqlOptions ─► MysqlSink                        (driver: recover, ddl, commit, sync points)
                                         │ target, one a unit of a batch
                                         ▼
                        write_rows(target, rows) ─► Receipt              (executor)
    rows ─► net effect a key (net) ─► conflicts over unique keys ─► plan ─► literals ─► statements ─► connections
"""

from tidemill.flow.sink.mysql.failures import DownstreamUnavailableError
from tidemill.flow.sink.mysql.session import answers
from tidemill.flow.sink.mysql.sink import MysqlSink
from tidemill.flow.sink.mysql.uri import MysqlOptions, parse_mysql_uri
from tidemill.flow.sink.mysql.writer import MysqlTarget, write_rows

__all__ = [
    "DownstreamUnavailableError",
    "MysqlOptions",
    "MysqlSink",
    "MysqlTarget",
    "answers",
    "parse_mysql_uri",
    "write_rows",
]
