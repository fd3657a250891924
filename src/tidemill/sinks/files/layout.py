"""Where everything lies below the root: TiCDC's layout for storage.

metadata                                                             the checkpoint
.generation                                                          whose folder it is: ours alone (``generation``)
.tidemill/{owner or writer}/{generation}/                            what is being written: ours alone (``durable``)
{schema}/meta/schema_{version}_{checksum}.json                       DDL of a database
{schema}/{table}/meta/schema_{version}_{checksum}.json               a table's schema and its DDL
{schema}/{table}/{version}/[{partition}/][{date}/]CDC{index}.json    rows
{schema}/{table}/{version}/[{partition}/][{date}/]meta/CDC.index     name of the newest of them
"""

import re
from datetime import datetime, tzinfo

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.files.durable import MARK as MARK
from tidemill.sinks.files.durable import STAGING
from tidemill.sinks.files.uri import DateSeparator

METADATA = "metadata"
_DATA_FILE = re.compile(r"CDC(\d{6,20})\.(?:json|csv)")
_DATE_FORMATS = {DateSeparator.YEAR: "%Y", DateSeparator.MONTH: "%Y-%m", DateSeparator.DAY: "%Y-%m-%d"}


def table_folder(schema: str, table: str) -> str:
    """Of a database where ``table`` is empty."""
    return folder_name(schema) + (f"/{folder_name(table)}" if table else "")


def schema_folder(schema: str, table: str) -> str:
    return table_folder(schema, table) + "/meta"


def data_folder(table: TableInfo, physical_id: int, version: Ts, date: str) -> str:
    parts = [table_folder(table.schema, table.name), str(version)]
    parts += [str(physical_id)] if table.is_partitioned else []
    return "/".join(parts + ([date] if date else []))


def date_of(ts: Ts, separator: DateSeparator, zone: tzinfo) -> str:
    if separator is DateSeparator.NONE:
        return ""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, zone).strftime(_DATE_FORMATS[separator])


def data_file(index: int, digits: int, extension: str) -> str:
    return f"CDC{index:0{digits}d}{extension}"


def data_file_index(name: str) -> int | None:
    """The index in a data file's name; None for any other name."""
    found = _DATA_FILE.fullmatch(name)
    return int(found.group(1)) if found else None


def index_file(folder: str) -> str:
    return folder + "/meta/CDC.index"


def folder_name(name: str) -> str:
    """A schema's or table's name as a folder's.

    MySQL allows names that would leave the tree (``..``, ``a/b``), or are those of our own files there. Those are
    escaped, and with them names that hold a percent sign, so that no two names meet. All others stand as they are.
    """
    if name in (".", "..", MARK, STAGING):
        return name.replace(".", "%2E")
    if "/" in name or "%" in name or "\0" in name:
        return name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return name
