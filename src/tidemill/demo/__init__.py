"""The demonstration: SQL runs live on the embedded TiDB, Spark captures it into files, and the result is checked.

The cluster begins with a history: ``history.parquet`` is what a real TiDB committed while six sessions wrote
to one table and its columns, indexes and partitioning changed under them; ``marks.jsonl`` is what that TiDB
answered to ``SELECT *`` at three moments. Then come the statements of ``live``. The check reads our files
back, applies them up to a moment, and compares with what was selected there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any

Row = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """One table as TiDB showed it at ``ts``, keyed by its first column."""

    name: str
    ts: int
    table: str
    rows: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Comparison:
    mark: Mark
    missing: int  # rows of TiDB that our files do not have
    extra: int  # rows of our files that TiDB does not have
    different: int  # rows in which a column differs

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.different)


def history_path() -> Path:
    return Path(str(files("tidemill.demo") / "history.parquet"))


def meta() -> dict[str, int]:
    document: dict[str, int] = json.loads((files("tidemill.demo") / "meta.json").read_text())
    return document


def marks() -> list[Mark]:
    found = []
    for line in (files("tidemill.demo") / "marks.jsonl").read_text().splitlines():
        document = json.loads(line)
        if "columns" in document:
            named = [dict(zip(document["columns"], map(_text, row), strict=True)) for row in document["rows"]]
            key = document["columns"][0]
            table = f"{document['schema']}.{document['table']}"
            found.append(Mark(document["mark"], document["ts"], table, {str(row[key]): row for row in named}))
    return found


def compare(folder: Path, mark: Mark) -> Comparison:
    """Apply the canal-json files below ``folder`` up to the mark and hold the result against TiDB's answer.

    A column that was added later is in no message of a row that nobody changed since, so a row is compared
    by the columns that its newest message has and the table still has. And where a column's type was changed since,
    such a message still has the number in its former type: 1000.00 for 1000.
    """
    applied = _apply(folder, mark)
    missing = len(mark.rows.keys() - applied.keys())
    extra = len(applied.keys() - mark.rows.keys())
    different = 0
    for key in mark.rows.keys() & applied.keys():
        theirs, ours = mark.rows[key], applied[key]
        shared = theirs.keys() & ours.keys()
        different += any(not _is_same(theirs[column], ours[column]) for column in shared)
    return Comparison(mark, missing, extra, different)


def _apply(folder: Path, mark: Mark) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    truncations = sorted(_truncations(folder, mark.table), reverse=True)
    # A transaction that swaps keys deletes before it inserts, in the order of the lines: a stable sort keeps it.
    for message in sorted(_messages(folder, mark.table), key=_commit_ts):
        if _commit_ts(message) > mark.ts:
            break
        while truncations and truncations[-1] < _commit_ts(message):
            rows.clear()
            truncations.pop()
        (image,) = message["data"]
        key = image[message["pkNames"][0]]
        if message["type"] == "DELETE":
            del rows[key]
        else:
            rows[key] = image
    if truncations and truncations[-1] <= mark.ts:
        rows.clear()
    return rows


def _is_same(one: str | None, other: str | None) -> bool:
    if one == other or one is None or other is None:
        return one == other
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False


def _commit_ts(message: dict[str, Any]) -> int:
    ts: int = message["_tidb"]["commitTs"]
    return ts


def _messages(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    schema, name = table.split(".")
    for path in sorted((folder / schema / name).glob("[0-9]*/**/CDC*.json")):
        for line in path.read_bytes().splitlines():
            yield json.loads(line)


def _truncations(folder: Path, table: str) -> Iterator[int]:
    """When TRUNCATE TABLE emptied the table: the DDLs are in the schema files."""
    schema, name = table.split(".")
    for path in (folder / schema / name / "meta").glob("schema_*.json"):
        document = json.loads(path.read_text())
        if document["Type"] == 11:
            yield document["TableVersion"]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
