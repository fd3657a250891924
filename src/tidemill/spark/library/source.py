"""The data source ``tidemill``: a table as of a ts, or its changes between two ts.

    load()    driver    options checked, "now" fixed, the table's form found: the schema
    plan      driver    parts by region, what is to be read held against garbage collection
    read      executor  one part each: upstream ─► rows ─► typed Arrow batches

Spark's process that looks for sources imports this module, so what reads comes only when it is asked for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from tidemill.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.ts import Ts
    from tidemill.source.scan import ChangePart, HandleBounds, Presenter, ReadHold, ScanPart
    from tidemill.spark.library.keys import KeyReads
    from tidemill.spark.library.options import ReadOptions

FORMAT = "tidemill"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a ``load()`` means, once the upstream was asked. Travels with the data source."""

    options: "ReadOptions"
    presenter: "Presenter"
    to_ts: "Ts"  # the table is read as of it, or its changes up to it
    from_ts: "Ts | None"  # above this, of changes; None: the stream's or no start
    hold: "ReadHold | None"


class TidemillSource(DataSource):
    """Without filters pushed down: Spark refuses sources that can where its setting does not allow it."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._resolved: Resolved | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @property
    def _keys(self) -> "KeyReads | None":
        """Where keys are asked for, in place of a table."""
        from tidemill.spark.library.options import asks_for_keys

        given = dict(self.options)
        if not asks_for_keys(given):
            return None
        from tidemill.spark.library.keys import KeyReads

        return KeyReads.of(given)

    def schema(self) -> StructType:
        keys = self._keys
        return keys.schema() if keys is not None else _spark_schema(self._resolve())

    def reader(self, schema: StructType) -> DataSourceReader:
        keys = self._keys
        return keys.reader() if keys is not None else TableReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tidemill.spark.library.stream import ChangeStreamReader

        keys = self._keys
        if keys is not None:
            return keys.stream_reader()
        resolved = self._checked(schema)
        if not resolved.options.reads_changes:
            raise UsageError(
                "a stream needs to know where it begins: give the option startingTs, which is a time, a TSO, 'now', "
                "or how long ago, such as '-15m'."
            )
        if resolved.options.ending_ts is not None:
            raise UsageError(
                "a stream has no endingTs. Use spark.read for changes between two ts, or "
                "trigger(availableNow=True) for a stream that ends at what there is now."
            )
        return ChangeStreamReader(resolved.options, resolved.presenter)

    def _checked(self, schema: StructType) -> Resolved:
        resolved = self._resolve()
        if schema != _spark_schema(resolved):
            raise UsageError(
                f"table {resolved.options.table} has a schema of its own, which is not the one given with .schema(). "
                "Leave that out; take columns with the option columns, and cast them afterwards."
            )
        return resolved

    def _resolve(self) -> Resolved:
        if self._resolved is None:
            self._resolved = _resolved(dict(self.options))
        return self._resolved


class PushingSource(TidemillSource):
    """The same for sessions that allow filters to be pushed down (``register`` sees to it)."""

    def reader(self, schema: StructType) -> DataSourceReader:
        keys = self._keys
        return keys.reader() if keys is not None else PushingTableReader(self._checked(schema))


class Part(InputPartition):
    """One part of a table or of its changes; None stands for a read without any."""

    def __init__(self, part: "ScanPart | ChangePart | None") -> None:
        self.part = part


class TableReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._bounds: HandleBounds | None = None
        self._bounded = ""

    def partitions(self) -> list[InputPartition]:
        from tidemill.source.scan import ScanClient

        with ScanClient(self._resolved.options.pd, self._resolved.options.security) as client:
            plan = self._plan_changes if self._resolved.options.reads_changes else self._plan_scan
            # Spark wants at least one.
            return [Part(part) for part in plan(client)] or [Part(None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, Part)
        yield from read_parts(partition.part, self._resolved.presenter)

    def _plan_scan(self, client: Any) -> "list[ScanPart]":
        found, presenter = self._resolved, self._resolved.presenter
        assert found.hold is not None
        client.hold(found.hold)
        table = presenter.narrowed(presenter.table)
        zone = found.options.mount_zone
        parts: list[ScanPart] = client.plan_scan(
            table, found.to_ts, zone=zone, hold=found.hold, **self._pushed_bounds()
        )
        return parts

    def _plan_changes(self, client: Any) -> "list[ChangePart]":
        from tidemill.source.scan import ReadHold, TableHistory

        found = self._resolved
        from_ts = found.from_ts
        assert from_ts is not None
        hold = ReadHold.new(from_ts)
        client.hold(hold)
        stretches = client.stretches(TableHistory(found.options.table), from_ts, found.to_ts)
        parts: list[ChangePart] = client.plan_changes(
            [narrowed(stretch, found.presenter) for stretch in stretches],
            bounded=self._bounded,
            zone=found.options.mount_zone,
            hold=hold,
            **self._pushed_bounds(),
        )
        return parts

    def _pushed_bounds(self) -> dict[str, Any]:
        return {} if self._bounds is None else {"bounds": self._bounds}


class PushingTableReader(TableReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Bounds on the handle become ranges of keys. Spark evaluates all filters again: ranges may hold more."""
        from tidemill.source.scan import HandleBounds, bounded_column

        column = bounded_column(self._resolved.presenter.table)
        if column is not None:
            bounds = HandleBounds()
            for each in filters:
                bounds = narrowed_by(bounds, each, column.name)
            self._bounds, self._bounded = bounds, column.name
        return filters


def narrowed_by(bounds: "HandleBounds", one: Filter, column: str) -> "HandleBounds":
    """The bounds that a filter on the column leaves; any other filter leaves them as they are."""
    if getattr(one, "attribute", None) != (column,):
        return bounds
    match one:
        case In(value=values) if all(map(_is_number, values)):
            return bounds.among(int(v) for v in values if v == int(v))
        case EqualTo(value=value) if _is_number(value):
            return bounds.within(ceil(value), floor(value))
        case GreaterThan(value=value) if _is_number(value):
            return bounds.within(floor(value) + 1, None)
        case GreaterThanOrEqual(value=value) if _is_number(value):
            return bounds.within(ceil(value), None)
        case LessThan(value=value) if _is_number(value):
            return bounds.within(None, ceil(value) - 1)
        case LessThanOrEqual(value=value) if _is_number(value):
            return bounds.within(None, floor(value))
    return bounds


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def read_parts(part: "ScanPart | ChangePart | None", presenter: "Presenter") -> "Iterator[pa.RecordBatch]":
    """Executor."""
    from tidemill.source.scan import ScanPart, read_changes, read_part

    if part is not None:
        rows = read_part(part) if isinstance(part, ScanPart) else read_changes(part)
        for some in rows:
            yield presenter.present(some)


def narrowed(stretch: Any, presenter: "Presenter") -> Any:
    """A stretch whose tables have no more columns than are presented."""
    from dataclasses import replace

    forms = tuple(replace(form, table=presenter.narrowed(form.table)) for form in stretch.forms)
    return replace(stretch, forms=forms)


def _spark_schema(resolved: Resolved) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(resolved.presenter.schema, prefer_timestamp_ntz=True)


def _resolved(given: dict[str, str]) -> Resolved:
    from tidemill.source.scan import Presenter, ReadHold, ScanClient
    from tidemill.spark.library.options import Now, parse_options

    options = parse_options(given)
    with ScanClient(options.pd, options.security) as client:
        now_ts = client.now()

        def ts_of(name: str, moment: "Ts | Now | None") -> "Ts":
            if moment is None or isinstance(moment, Now):
                return now_ts
            if moment > now_ts:
                from tidemill.model.ts import show

                raise UsageError(
                    f"the option {name} lies in the future: {show(moment)}, while the upstream is at {show(now_ts)}. "
                    "Give one that has passed, or 'now'."
                )
            return moment

        hold = from_ts = None
        if options.reads_changes:
            from_ts, to_ts = ts_of("startingTs", options.starting_ts), ts_of("endingTs", options.ending_ts)
        else:
            to_ts = ts_of("asOf", options.as_of)
            hold = ReadHold.new(to_ts)
            client.hold(hold)
        presenter = Presenter(
            client.find_table(options.table, to_ts),
            options.columns,
            dates=options.dates,
            has_changes=options.reads_changes,
            zone=options.mount_zone,
        )
    return Resolved(options, presenter, to_ts, from_ts, hold)
