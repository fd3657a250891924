"""Where rows come from: the upstream at a ts, and the kinds of downstream. Small, picklable, read on executors.

    source.read() ─► batches of rows in the form of the comparison (``forms.Comparison``)

The same source gives the same rows however often it is read, except those of a live MySQL, which change as it is
written to: ``check`` knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.source.scan import ScanPart, read_part
from tidemill.verify.forms import Comparison


class Source(Protocol):
    """Some of a table's rows; together the sources of a side give each of its rows once."""

    @property
    def comparison(self) -> Comparison: ...

    def read(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class UpstreamSource:
    part: ScanPart
    comparison: Comparison

    def read(self) -> Iterator[pa.RecordBatch]:
        for rows in self.mounted():
            yield self.comparison.of_upstream(rows)

    def mounted(self) -> Iterator[pa.RecordBatch]:
        """With the columns of the part's table, which may be more than are compared."""
        for rows in read_part(self.part):
            yield rows.new
