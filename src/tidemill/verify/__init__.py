"""Whether the downstream is what the upstream is: chunk by chunk, and row by row where a chunk differs.

in      tables of the upstream at a ts; a sink URI's downstream
out     a Report: which rows differ, both sides of each, and the SQL that would mend them

    catalog   which tables                      sides      the kinds of downstream, seen by the driver
    check     what is read, and in which order  sources    their rows, read on executors: mysql, lake, files
    tasks     what executors do                 forms      the one form in which values are compared
    report    what was found                    hashing    numbers of rows, and sums of them
"""

from tidemill.verify.catalog import chosen_tables, read_name
from tidemill.verify.check import Check, CheckOptions, Progress
from tidemill.verify.mysql import MysqlDownstream
from tidemill.verify.report import Report
from tidemill.verify.sides import MysqlSide, Side

__all__ = [
    "Check",
    "CheckOptions",
    "MysqlDownstream",
    "MysqlSide",
    "Progress",
    "Report",
    "Side",
    "chosen_tables",
    "read_name",
]
