"""What the downstream's errors mean: what passes by itself, what is done already, and what somebody must mend.

Every number is MySQL's, MariaDB's or TiDB's; messages of ours name the table and say what to do.
"""

import re
import ssl
from collections.abc import Callable
from typing import Final

import pymysql

from tidemill.errors import SinkError

DUPLICATE: Final = 1062
TRUNCATED: Final = 1265
_DEPRECATED: Final = 1287  # MySQL 8.0.20 and newer says so of VALUES() in each ON DUPLICATE KEY UPDATE

# Nothing of the statement stands, and the next try may succeed.
_PASSING: Final = frozenset(
    {
        1040, 1203, 1226,  # too many connections
        1205, 1206, 1213,  # lock wait, lock table full, deadlock
        1020, 1053, 1077, 1078, 1079, 1129,  # row changed, shutdown in progress
        1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927,  # connection or query ended from outside
        1180, 1290, 1792, 1836, 3100,  # commit failed, read-only for now (failover)
        1815, 3024, 1969,  # internal, statement time-out
        1105, 8002, 8004, 8005, 8018, 8022, 8024, 8027, 8028, 8125, 8229,  # TiDB: schema changed, write conflict …
        9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008, 9010, 9011, 9012,  # TiDB: PD or TiKV is busy or away
    }
)  # fmt: skip
_LOST: Final = frozenset({0, 2000, 2002, 2003, 2005, 2006, 2012, 2013, 2014, 2027, 2055, 4031})
_NO_TLS: Final = 2026  # the server has none, and we were told to use it
_NO_RIGHTS: Final = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1410, 1698})
_WHO: Final = frozenset({1045, 1698, 1862, 1820, 3118, 4151})  # unknown, wrong or expired password, locked
_NO_TABLE: Final = frozenset({1146, 1049, 1051})
_OTHER_COLUMNS: Final = frozenset({1054, 1136, 1109, 1110, 3105, 1906})

# A value that does not fit: out of range, truncated, incorrect, divided by zero, too long; or worked out (1690).
_VALUES: Final = frozenset({1264, TRUNCATED, 1292, 1365, 1366, 1406, 1411, 1441, 1690})
_OF_COLUMN: Final = re.compile(r"for column (?:(?:`(?:[^`]|``)*`\.){2}`(.+)`|'(.+)') at row \d+$")

# A DDL that finds its work done: it ran before, and the answer was lost.
DDL_DONE: Final = frozenset({1007, 1008, 1050, 1051, 1054, 1060, 1061, 1068, 1091, 1176, 1507, 1517, 1831, 4092})
# A foreign key is in the way, or cannot be made.
_FOREIGN_KEY: Final = frozenset(
    {1005, 1022, 1025, 1215, 1217, 1239, 1451, 1506, 1553, 1767, 1822, 1826, 1828, 1829, 1832, 1833, 1834, 3104, 3730,
     3780}
)  # fmt: skip


class DownstreamUnavailableError(SinkError):
    """Nobody answers, or nobody gets through, for as long as we were ready to wait."""

    code = "sink-unavailable"
    retryable = True


def number_of(error: BaseException) -> int:
    """MySQL's number of an error; 0 where there is none, as when a socket breaks."""
    if isinstance(error, pymysql.err.MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return 0


def text_of(error: BaseException) -> str:
    if isinstance(error, pymysql.err.MySQLError) and len(error.args) > 1:
        return str(error.args[1])
    return str(error) or type(error).__name__


def is_distrusted(error: BaseException) -> bool:
    """Whether TLS cannot come about: the server has none, or its certificate is not one that we were told to trust."""
    original = getattr(error, "original_exception", error)
    return number_of(error) == _NO_TLS or isinstance(original, ssl.SSLCertVerificationError)


def is_forbidden(error: BaseException) -> bool:
    """Whether the user of the sink URI lacks a right, or is not let in at all."""
    return number_of(error) in _NO_RIGHTS or is_distrusted(error)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that nobody knows what became of the last statement."""
    if is_distrusted(error):
        return False
    return number_of(error) in _LOST or isinstance(error, pymysql.err.InterfaceError | OSError)


def is_harmless(level: str, number: int) -> bool:
    """Whether a warning is one that a strict session would not refuse the statement for."""
    return level == "Note" or number == _DEPRECATED


def is_passing(error: BaseException) -> bool:
    return is_lost(error) or number_of(error) in _PASSING


def is_about_foreign_key(error: BaseException) -> bool:
    return number_of(error) in _FOREIGN_KEY


def is_about_a_value(error: BaseException) -> bool:
    """Whether a value does not fit where it was to go; a session that is not strict would have cut it."""
    return is_number_of_a_value(number_of(error))


def is_number_of_a_value(number: int) -> bool:
    """The same of a warning's number. Others name their column in other words, or none."""
    return number in _VALUES


def column_of(said: str) -> str:
    """The column that a warning about a value names; empty: none, so it was worked out in an expression."""
    found = _OF_COLUMN.search(said)
    return found.group(1) or found.group(2) if found else ""


def is_about_one_row(error: BaseException) -> bool:
    """Whether the statement failed for a value in it: another statement with other rows may pass."""
    number = number_of(error)
    known = _NO_RIGHTS | _NO_TABLE | _OTHER_COLUMNS | {1064, 1149}
    return not (is_passing(error) or is_distrusted(error) or number in known)


def remedy(error: BaseException, rights: str) -> str:
    """What to do about an error that kept us from connecting, or from a step for which we need ``rights``."""
    if number_of(error) == _NO_TLS:
        return (
            "The sink URI asks for TLS, which that server does not offer. Turn it on there (its own ssl-cert and "
            "ssl-key), or take '+ssl' and 'ssl-ca' out of the sink URI."
        )
    if is_distrusted(error):
        return (
            "Its certificate is not signed by the authority in 'ssl-ca' of the sink URI, has expired or is for another "
            "host. Give the file of the authority that signed it, and the host name that it names."
        )
    if number_of(error) in _WHO:
        return "Check the user and the password of the sink URI, then start again."
    if number_of(error) in _NO_RIGHTS:
        return f"Grant the user of the sink URI {rights}, then start again."
    return "Check that the server of the sink URI answers and is not altered meanwhile, then start again."


def refused(place: str, table: str, error: BaseException, key: Callable[[], str] | None = None) -> SinkError:
    """The error for a statement on ``table`` that failed for good. ``key`` finds the row, where one is to blame."""
    number, said = number_of(error), text_of(error)
    if is_distrusted(error):
        return SinkError(f"cannot write table {table} to {place}: {said} (error {number}). {remedy(error, '')}")
    if number in _NO_RIGHTS:
        return SinkError(
            f"{place} does not let us write table {table}: {said} (error {number}). Grant the user of the sink URI "
            "SELECT, INSERT, UPDATE and DELETE there, then start again; nothing was skipped."
        )
    if number in _NO_TABLE:
        return SinkError(
            f"{place} has no table {table}: {said} (error {number}). Create it as it is upstream, with the rows it had "
            "at the start-ts, or take it out of the changefeed; nothing was skipped."
        )
    if number in _OTHER_COLUMNS:
        return SinkError(
            f"table {table} of {place} has other columns than upstream: {said} (error {number}). Alter it to what it "
            "is upstream, then start again; nothing was skipped."
        )
    row = f", the row with {key()}" if key is not None else ""
    return SinkError(
        f"{place} refused a row of table {table}{row}: {said} (error {number}). Nothing was skipped; the changefeed "
        "stops before this row. Make the downstream's column hold it, or mend the row upstream, then start again."
    )
