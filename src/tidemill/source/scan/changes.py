"""What was done to a table between two ts. Planned where a read is planned, read on executors.

    TableHistory ─► plan_changes ─► ChangePart ─► EventFeed ─► sort on disk ─► mount ─► rows in commit order

Each change is decoded with the schema in force at its commit-ts, so rows on both sides of a DDL come in batches of
different ``TableInfo``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.mounter import fitting, mount
from tidemill.flow.sorter import SpanSlices
from tidemill.model.row import RowBatch
from tidemill.model.security import PLAIN, Security
from tidemill.model.span import Span
from tidemill.model.ts import MAX_TS, Ts
from tidemill.source.scan.feed import in_order, take_changes
from tidemill.source.scan.handles import HandleBounds, bounded_column, key_ranges
from tidemill.source.scan.history import Form, Stretch
from tidemill.source.scan.hold import ReadHold, reading
from tidemill.source.scan.parts import EVERYTHING, cut_by_region, joined
from tidemill.source.scan.prefetch import Emit, read_ahead
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache

PARTS_PER_ID = 8


@dataclass(frozen=True, slots=True)
class ChangePart:
    """The changes of one physical table with keys in ``[start, end)`` and commit-ts in ``(from_ts, to_ts]``."""

    pd: str
    physical_id: int
    start: bytes  # plain keys
    end: bytes
    from_ts: Ts
    to_ts: Ts
    forms: tuple[Form, ...]
    zone: str = "UTC"
    hold: ReadHold | None = None
    security: Security = PLAIN


async def plan_changes(
    pd: PdClient,
    stretches: Iterable[Stretch],
    *,
    bounds: HandleBounds = EVERYTHING,
    bounded: str = "",
    zone: str = "UTC",
    hold: ReadHold | None = None,
    parts_per_id: int = PARTS_PER_ID,
) -> list[ChangePart]:
    """Parts that together are all changes of the stretches, each once. ``bounds`` are on the column ``bounded``."""
    regions = RegionCache(pd)
    parts = []
    for stretch in stretches:
        table = stretch.forms[0].table
        for wanted in key_ranges(table, stretch.physical_id, bounds if _is_bounded(stretch, bounded) else EVERYTHING):
            pieces = [piece async for piece in cut_by_region(regions, wanted)]
            for start, end in joined(pieces, parts_per_id):
                ends = (stretch.physical_id, start, end, stretch.from_ts, stretch.to_ts)
                parts.append(ChangePart(pd.addresses, *ends, stretch.forms, zone, hold, pd.security))
    return parts


def _is_bounded(stretch: Stretch, name: str) -> bool:
    """Whether bounds on the column of that name are bounds on the keys, all the time."""
    columns = [bounded_column(form.table) for form in stretch.forms]
    return all(column is not None and column.name.lower() == name.lower() for column in columns)


def read_changes(part: ChangePart) -> Iterator[RowBatch]:
    """The part's changes by ``(commit_ts, start_ts, key)``; updates of a key as a delete and an insert.

    Batches are cut between two commit-ts. Waits until the upstream's resolved-ts has passed ``to_ts``.
    """
    with TemporaryDirectory(prefix="tidemill-changes-") as folder:
        for slices in read_ahead(partial(_take, part, Path(folder))):
            for changes in in_order(slices):
                commit_ts = changes.column("commit_ts").to_numpy()
                above = [form.since_ts for form in part.forms] + [MAX_TS]
                cuts = np.searchsorted(commit_ts, np.array(above, np.uint64), side="right")
                for form, (first, end) in zip(part.forms, pairwise(cuts.tolist()), strict=True):
                    if first < end:
                        some = changes.slice(first, end - first)
                        for piece in fitting(form.table, some):
                            yield split_key_updates(mount(form.table, part.physical_id, piece, part.zone))


async def _take(part: ChangePart, folder: Path, emit: Emit[SpanSlices | None]) -> None:
    span = Span(encode_bytes(part.start), encode_bytes(part.end))
    async with reading(part.pd, part.hold, part.security) as pd:
        await emit(await take_changes(pd, span, part.from_ts, part.to_ts, folder))
