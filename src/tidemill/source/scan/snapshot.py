"""One part of a table as it was at a ts. Runs on executors.

    KvScan, region by region ─► pairs of keys and values ─► mount ─► rows

Reading runs ahead in a thread of its own while rows are decoded. Splits, merges, moves of leaders, stores that
restart and locks in the way are dealt with by the snapshot reader.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.deadletter import mount_or_set_aside
from tidemill.flow.mounter import mount_values, rows_at_once
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op, cut_by_bytes
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.source.scan.hold import reading
from tidemill.source.scan.parts import ScanPart
from tidemill.source.scan.prefetch import Emit, read_ahead
from tidemill.upstream.pairs import PAIR_SCHEMA
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

BATCH_ROWS = 32768
BATCH_BYTES = 8 << 20


def read_part(part: ScanPart, aside: list[Undecodable] | None = None) -> Iterator[RowBatch]:
    """The part's rows in key order, as inserts with commit-ts and start-ts equal to the ts of the scan.

    Rows that cannot be decoded go to ``aside``; without it they are a RowUndecodableError.
    """
    nothing = pa.RecordBatch.from_pylist([], schema=arrow_schema(part.table))
    most = rows_at_once(part.table)
    read = read_ahead(partial(_read, part))
    for pairs in (some.slice(low, most) for some in read for low in range(0, len(some), most)):
        stamps = np.full(len(pairs), part.ts, np.uint64)
        if aside is not None:
            rows, bad = mount_or_set_aside(part.table, part.physical_id, changes_of(pairs, stamps), part.zone)
            aside.extend(bad)
            yield rows
            continue
        yield RowBatch(
            table=part.table,
            physical_id=part.physical_id,
            op=np.full(len(pairs), RowOp.INSERT, np.uint8),
            start_ts=stamps,
            commit_ts=stamps,
            new=mount_values(part.table, part.physical_id, pairs.column("key"), pairs.column("value"), part.zone),
            old=nothing,
        )


def changes_of(pairs: pa.RecordBatch, stamps: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    """As the change stream would have brought them."""
    times = pa.array(stamps)
    columns = {
        "start_ts": times,
        "commit_ts": times,
        "op": pa.array(np.full(len(pairs), Op.PUT, np.uint8)),
        "key": pairs.column("key"),
        "value": pairs.column("value"),
        "old_value": pa.array([b""] * len(pairs), pa.binary()),
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in RAW_CHANGE_SCHEMA], schema=RAW_CHANGE_SCHEMA
    )


async def _read(part: ScanPart, emit: Emit[pa.RecordBatch]) -> None:
    """Emit the pairs, answers put together until they are worth decoding at once."""
    async with reading(part.pd, part.hold, part.security) as pd:
        reader = SnapshotReader(pd, RegionCache(pd))
        try:
            waiting: list[pa.RecordBatch] = []
            async for answer in reader.scan(part.start, part.end, part.ts):
                for pairs in pieces(answer, BATCH_BYTES):
                    waiting.append(pairs)
                    if sum(map(len, waiting)) >= BATCH_ROWS or sum(some.nbytes for some in waiting) >= BATCH_BYTES:
                        await emit(_as_one(waiting))
                        waiting = []
            if waiting:
                await emit(_as_one(waiting))
        finally:
            await reader.close()


def pieces(answer: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """An answer has so many rows at most, of whatever size; its pieces have ``most_bytes``, or one row."""
    if answer.nbytes <= most_bytes:
        yield answer
        return
    lengths = [pc.binary_length(column).to_numpy() for column in answer.columns]
    sizes: npt.NDArray[np.int64] = np.sum(lengths, axis=0, dtype=np.int64)
    for low, high in pairwise(cut_by_bytes(sizes, most_bytes)):
        yield answer.slice(low, high - low)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(PAIR_SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=PAIR_SCHEMA)
