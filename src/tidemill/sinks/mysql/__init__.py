"""Rows into MySQL, MariaDB or TiDB, kept equal to the upstream.

parse_mysql_uri(uri) ─► MysqlOptions ─► MysqlOwner: ddl, sync points; MysqlWriter: recover, commit
                                         │ target, one a unit of a batch
                                         ▼
                        write_rows(target, rows) ─► Receipt              (executor)
    rows ─► net effect a key (net) ─► conflicts over unique keys ─► plan ─► literals ─► statements ─► connections
    DDL  ─► carry ─► place, creation ─► rewrite: clauses, mariadb ─► one session of the owner

``generation`` says who may write.
"""

from tidemill.sinks.mysql.failures import DownstreamUnavailableError
from tidemill.sinks.mysql.sink import MysqlOwner, MysqlWriter
from tidemill.sinks.mysql.uri import MysqlOptions, is_mysql_uri, parse_mysql_uri
from tidemill.sinks.mysql.writer import MysqlTarget, write_rows

__all__ = [
    "DownstreamUnavailableError",
    "MysqlOptions",
    "MysqlOwner",
    "MysqlTarget",
    "MysqlWriter",
    "is_mysql_uri",
    "parse_mysql_uri",
    "write_rows",
]
