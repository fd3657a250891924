"""History files: what a real cluster committed, to be loaded or replayed.

A Parquet file with ``start_ts``, ``commit_ts`` (unsigned), ``op`` (put or delete), ``key`` (as a
client sends it) and ``value``, ordered by commit-ts, start-ts and key. A ``meta.json`` beside it
may say up to which ts (``bootstrap_ts``) a replay should count as already there.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidebox.kernels import Bytes, Ints, Stamps
from tidebox.transactions import Mutation
from tidemill.errors import HistoryCorruptError
from tidemill.model.change import Op

_COLUMNS = {
    "start_ts": pa.uint64(),
    "commit_ts": pa.uint64(),
    "op": pa.string(),
    "key": pa.large_binary(),
    "value": pa.large_binary(),
}


@dataclass(frozen=True)
class History:
    """Checked rows in commit order. A delete has an empty value."""

    path: Path
    fingerprint: str
    start_ts: Stamps
    commit_ts: Stamps
    is_put: npt.NDArray[np.bool_]
    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    bootstrap_ts: int  # 0: nothing said

    def __len__(self) -> int:
        return len(self.commit_ts)

    def rows_up_to(self, ts: int) -> int:
        """How many rows have commit-ts ≤ ``ts``."""
        return int(np.searchsorted(self.commit_ts, np.uint64(ts), side="right"))

    @cached_property
    def _ends(self) -> Ints:
        """The rows at which transactions end, ascending."""
        last = (np.diff(self.commit_ts) != 0) | (np.diff(self.start_ts) != 0)
        return np.append(np.flatnonzero(last) + 1, len(self))

    def transaction_at(self, row: int) -> tuple[int, list[Mutation]]:
        """The transaction that begins at ``row``: the row behind it, and what it writes."""
        end = int(self._ends[np.searchsorted(self._ends, row, side="right")])
        columns = (self.is_put[row:end].tolist(), self.keys[row:end].to_pylist(), self.values[row:end].to_pylist())
        return end, [
            Mutation(Op.PUT if is_put else Op.DELETE, key, value) for is_put, key, value in zip(*columns, strict=True)
        ]


def read_history(path: Path) -> History:
    """Read and check a history; ``HistoryCorruptError`` says what is wrong with it."""
    table = _read_table(path)
    start, commit = table["start_ts"].to_numpy(), table["commit_ts"].to_numpy()
    keys, values = table["key"], table["value"]
    op = table["op"]
    known = pc.is_in(op, pa.array(["put", "delete"]))
    _require(path, known, "op is neither put nor delete")
    is_put = pc.equal(op, "put").to_numpy(zero_copy_only=False)
    _require(path, start < commit, "start_ts is not below commit_ts")
    _require(path, ~is_put | values.is_valid().to_numpy(zero_copy_only=False), "a put has no value")
    _check_order(path, start, commit, keys)
    return History(
        path,
        hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(),
        start,
        commit,
        is_put,
        keys,
        values.fill_null(b""),
        _bootstrap_ts(path.parent / "meta.json"),
    )


def buffers(array: pa.LargeBinaryArray) -> tuple[Bytes, Ints]:
    """The bytes of all elements in one buffer, and the offsets of each."""
    _, offsets, data = array.buffers()
    ends: Ints = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), ends


def _read_table(path: Path) -> dict[str, pa.Array]:
    if path.is_dir():  # of which Arrow would read every file below
        raise HistoryCorruptError(f"cannot load history {path}: it is a folder. Give the history.parquet in it.")
    try:
        table = pq.read_table(path, memory_map=False)
    except FileNotFoundError as error:
        raise HistoryCorruptError(
            f"cannot load history {path}: there is no such file. Give the path of a history.parquet; "
            "the demo's is src/tidemill/demo/history.parquet in Tidemill's repository."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise HistoryCorruptError(
            f"cannot load history {path}: it is not a readable Parquet file ({error}). "
            "It may be truncated or of another kind; copy it again from where it was recorded."
        ) from error
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        found = ", ".join(table.column_names)
        raise HistoryCorruptError(
            f"cannot load history {path}: it has no column {', '.join(missing)} (found {found}). "
            f"A history has the columns {', '.join(_COLUMNS)}."
        )
    columns = {}
    for name, kind in _COLUMNS.items():
        try:
            column = table[name].cast(kind).combine_chunks()
        except pa.ArrowException as error:
            raise HistoryCorruptError(
                f"cannot load history {path}: column {name} is {table[name].type}, which is not {kind} ({error})"
            ) from error
        if name != "value" and column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise HistoryCorruptError(f"cannot load history {path}: column {name} is null in row {row}")
        columns[name] = column
    return columns


def _check_order(path: Path, start: Stamps, commit: Stamps, keys: pa.Array) -> None:
    if len(commit) < 2:
        return
    ascending = commit[1:] > commit[:-1]
    same_commit = commit[1:] == commit[:-1]
    same_start = same_commit & (start[1:] == start[:-1])
    key_ascends = pc.less(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    ordered = ascending | (same_commit & (start[1:] > start[:-1])) | (same_start & key_ascends)
    repeated = same_start & pc.equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    _require(path, ~repeated, "repeats the row before it", shift=1)
    _require(path, ordered, "is out of order: rows must ascend by commit_ts, start_ts and key", shift=1)
    # Two transactions may share a commit-ts, but not a key at it.
    for at in np.flatnonzero(same_commit & ~same_start):
        first = int(np.searchsorted(commit, commit[at], side="left"))
        end = int(np.searchsorted(commit, commit[at], side="right"))
        if len(pc.unique(keys[first:end])) != end - first:
            raise HistoryCorruptError(f"cannot load history {path}: two rows at commit_ts {commit[at]} have one key")


def _require(path: Path, holds: object, wrong: str, shift: int = 0) -> None:
    bad = np.flatnonzero(~np.asarray(holds))
    if len(bad):
        raise HistoryCorruptError(
            f"cannot load history {path}: row {int(bad[0]) + shift}: {wrong} ({len(bad)} such rows). Record it anew."
        )


def _bootstrap_ts(path: Path) -> int:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return 0
    try:
        return int(json.loads(text).get("bootstrap_ts", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise HistoryCorruptError(
            f"cannot read {path}, which lies beside the history: {error}. Correct it or take it away."
        ) from error
