"""Lakes as the side that is checked: Iceberg and Delta tables and Parquet trees, as of any ts up to their checkpoint.

A lake holds every change, so its rows at a ts are exact whatever is written meanwhile. A table is folded in one task,
whose memory its changes have to fit into.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.errors import UsageError
from tidemill.model.ts import Ts
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.query import rows_at
from tidemill.sinks.lake.reader import Lake
from tidemill.sinks.lake.tables import LakeTable
from tidemill.verify.forms import UNFIT, Comparison, Form
from tidemill.verify.sides import Survey, Surveyed
from tidemill.verify.sources import Source

_BATCH_ROWS = 65536


@dataclass(frozen=True, slots=True)
class LakeSource:
    """The rows of one table at ``ts``."""

    options: LakeOptions
    comparison: Comparison
    ts: Ts

    def read(self) -> Iterator[pa.RecordBatch]:
        lake, table = Lake(self.options), self.comparison.table
        held = lake.table(table.schema, table.name, self.ts)
        rows = rows_at(held, self.ts, _renamed_unfit(held, self.ts, lake.changes(held)))
        wanted = [c.name for c in table.stored_columns]
        columns = [
            rows[name].cast(field.type) for name, field in zip([*wanted, UNFIT], self.comparison.schema, strict=True)
        ]
        whole = pa.Table.from_arrays(columns, schema=self.comparison.schema)
        for batch in whole.to_batches(max_chunksize=_BATCH_ROWS):
            yield self.comparison.settled(batch.columns)


class LakeSide:
    has_sql = False
    is_live = False

    def __init__(self, options: LakeOptions) -> None:
        self._options = options
        self._lake = Lake(options)

    @property
    def checkpoint_ts(self) -> Ts:
        return Ts(self._lake.checkpoint_ts)

    def survey(self, wanted: Sequence[Survey], ts: Ts) -> Mapping[int, Surveyed]:
        return {one.table.id: self._survey(one, ts) for one in wanted}

    def sources(self, comparison: Comparison, ts: Ts) -> list[Source]:
        return [LakeSource(self._options, comparison, ts)]

    def _survey(self, wanted: Survey, ts: Ts) -> Surveyed:
        table = wanted.table
        try:
            held = self._lake.table(table.schema, table.name, ts)
        except UsageError:
            return Surveyed(None, ["the lake has no such table at this ts"])
        version = held.version_at(ts)
        names = {column.name for column in version.columns}
        problems = [f"column {c.name!r} is missing in the lake" for c in table.stored_columns if c.name not in names]
        ours = {column.name for column in table.stored_columns}
        others = sorted(name for name in names - ours if name.lower() not in wanted.left_out)
        problems += [f"column {name!r} is there in the lake only" for name in others]
        kept = [column for column in table.columns if column.is_virtual or column.name in names]
        reduced = table if len(kept) == len(table.columns) else table.with_columns(kept)
        if not reduced.handle_key:
            return Surveyed(None, [*problems, "its rows were not compared: their key is not the same in the lake"])
        return Surveyed(Comparison(reduced, Form.LAKE), problems)


def _renamed_unfit(held: LakeTable, ts: int, changes: pa.Table) -> pa.Table:
    """Texts that did not fit, by the names their columns have at ``ts``, in one spelling."""
    texts = changes[UNFIT].combine_chunks()
    places = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    if not len(places):
        return changes
    now = {column.id: column.name for column in held.version_at(ts).columns}
    names = {v.ts: {column.name: now.get(column.id, "") for column in v.columns} for v in held.versions}
    versions = changes["_version"].take(pa.array(places)).to_pylist()
    said = texts.to_pylist()
    for place, version in zip(places.tolist(), versions, strict=True):
        named = {names.get(version, {}).get(name, name): text for name, text in json.loads(said[place]).items()}
        said[place] = json.dumps({name: text for name, text in named.items() if name}, sort_keys=True)
    at = changes.schema.get_field_index(UNFIT)
    return changes.set_column(at, UNFIT, pa.array(said, pa.string()))
