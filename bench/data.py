"""Big histories, made of the recorded ``bench-narrow`` and ``bench-wide``.

The bootstrap, the metadata and the DDL jobs stay as they were recorded. What was done to the one table's
rows (inserts, updates, deletes, in their transactions) is repeated with other handles and later ts, as
often as asked for. Rows keep their bytes: an integer handle is in the key alone. Entries of the
table's index are left out.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.errors import HistoryCorruptError
from tidemill.tidb.keys import record_prefix, table_prefix

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "histories"
TABLE_ID = 112  # of the benchmark's table, in both
_KEY_BYTES = 19  # of a record key with an integer handle
_ROWS_A_WRITE = 1 << 17


def grow(name: Literal["bench-narrow", "bench-wide"], rows: int, path: Path) -> Path:
    """Write a history with at least ``rows`` row changes into the folder ``path``; return its ``history.parquet``.

    At most one repetition more than needed is written (5,400 narrow, 1,250 wide row changes). ``meta.json``
    beside it tells ``bootstrap_ts`` and ``end_ts``, as the recorded one does.
    """
    recorded = RECORDED / name
    meta = json.loads((recorded / "meta.json").read_text())
    frame, story = _take_apart(pq.read_table(recorded / "history.parquet"), recorded)
    copies = max(1, -(-rows // len(story)))
    path.mkdir(parents=True, exist_ok=True)
    history = path / "history.parquet"
    per_write = max(1, _ROWS_A_WRITE // len(story))
    with pq.ParquetWriter(history, frame.schema, compression="zstd", compression_level=1, use_dictionary=["op"]) as to:
        first = pa.concat_tables([frame, story.repeat(0, 1)])
        to.write_table(first.sort_by([(column, "ascending") for column in ("commit_ts", "start_ts", "key")]))
        for begin in range(1, copies, per_write):
            to.write_table(story.repeat(begin, min(copies, begin + per_write)))
    end_ts = max(meta["end_ts"], story.last_ts + (copies - 1) * story.period + 1)
    grown = {"bootstrap_ts": meta["bootstrap_ts"], "end_ts": end_ts, "changes": len(frame) + copies * len(story)}
    (path / "meta.json").write_text(json.dumps(grown) + "\n")
    return history


@dataclass(frozen=True, slots=True)
class _Story:
    """What was done to the table's rows, in commit order."""

    changes: pa.Table
    start_ts: npt.NDArray[np.uint64]
    commit_ts: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint8]  # a row of bytes each
    period: int  # more than the whole story took
    handles: int  # more than the highest handle

    def __len__(self) -> int:
        return len(self.start_ts)

    @property
    def last_ts(self) -> int:
        return int(self.commit_ts.max())

    def repeat(self, begin: int, end: int) -> pa.Table:
        """Repetitions ``[begin, end)``, one after the other. Number 0 is the story as it was recorded."""
        turns = np.arange(begin, end, dtype=np.uint64)[:, None]
        count = len(turns) * len(self)
        keys = np.tile(self.keys, (len(turns), 1))
        handles = keys[:, -8:].copy().view(">u8").reshape(len(turns), -1) + turns * np.uint64(self.handles)
        keys[:, -8:] = handles.astype(">u8").reshape(-1, 1).view(np.uint8)
        offsets = np.arange(0, count * _KEY_BYTES + 1, _KEY_BYTES, dtype=np.int32)
        key = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
        later = turns * np.uint64(self.period)
        repeated = pa.concat_tables([self.changes] * len(turns))
        columns = {
            "start_ts": pa.array((self.start_ts + later).reshape(-1)),
            "commit_ts": pa.array((self.commit_ts + later).reshape(-1)),
            "op": repeated["op"],
            "key": key,
            "value": repeated["value"],
        }
        return pa.table(columns, schema=self.changes.schema)


def _take_apart(recorded: pa.Table, folder: Path) -> tuple[pa.Table, _Story]:
    """The recorded history without the table's rows and index entries, and its rows."""
    is_tables = pc.starts_with(recorded["key"], table_prefix(TABLE_ID))
    is_row = pc.starts_with(recorded["key"], record_prefix(TABLE_ID))
    changes = recorded.filter(is_row).combine_chunks()
    if len(changes) == 0 or not pc.all(pc.equal(pc.binary_length(changes["key"]), _KEY_BYTES)).as_py():
        raise HistoryCorruptError(
            f"cannot grow {folder}: it has no rows of table {TABLE_ID} keyed by an integer. "
            "Restore it from the repository."
        )
    start, commit = changes["start_ts"].to_numpy(), changes["commit_ts"].to_numpy()
    keys = np.frombuffer(b"".join(changes["key"].to_pylist()), dtype=np.uint8).reshape(-1, _KEY_BYTES)
    handles = keys[:, -8:].copy().view(">u8") ^ np.uint64(1 << 63)
    story = _Story(
        changes, start, commit, keys, period=int(commit.max() - start.min()) + 1, handles=int(handles.max()) + 1
    )
    return recorded.filter(pc.invert(is_tables)), story
