"""What Delta's own readers make of the bounds that our commits note for each file."""

from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from tidemill.sinks.lake.backend import Stamps
from tidemill.sinks.lake.delta import _add_action
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.tables import LakeTable

TABLE = LakeTable("shop.n", "shop/n", 7, "shop", "n", (), (), (7,))


NOON = datetime(2026, 3, 1, 12, 0, 0, 123_457)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(pa.decimal128(20, 0), Decimal(2**53 + 3), id="BIGINT UNSIGNED, just above what a float holds"),
        pytest.param(pa.decimal128(20, 0), Decimal(2**64 - 1), id="the largest BIGINT UNSIGNED"),
        pytest.param(pa.decimal128(38, 5), Decimal("-99999999999999999.12345"), id="DECIMAL(38, 5)"),
        pytest.param(pa.decimal128(38, 2), Decimal("0.10"), id="DECIMAL(38, 2)"),
        pytest.param(pa.int64(), -7, id="BIGINT"),
        pytest.param(pa.string(), "D", id="a text"),
        pytest.param(pa.string(), "ü" * 33, id="a text that is cut"),
        pytest.param(pa.string(), "x" * 5000, id="a text that Parquet notes nothing of"),
        pytest.param(pa.float32(), -0.0, id="FLOAT"),
        pytest.param(pa.float64(), 0.1, id="DOUBLE"),
        pytest.param(pa.timestamp("us"), NOON, id="DATETIME"),
        pytest.param(pa.timestamp("us"), datetime(9999, 12, 31, 23, 59, 59, 999_999), id="the last DATETIME"),
        pytest.param(pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC), id="TIMESTAMP"),
        pytest.param(pa.date32(), date(1, 1, 1), id="DATE"),
        pytest.param(pa.binary(), b"\xff\0", id="BLOB"),
    ],
)
def test_a_reader_that_goes_by_bounds_finds_every_row(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    place = tmp_path / TABLE.location
    place.mkdir(parents=True)
    rows = pa.table({"id": pa.array([1, 2]), "n": pa.array([value, None], kind)})
    pq.write_table(rows, place / "a.parquet")
    footer = BytesIO()
    pq.read_metadata(place / "a.parquet").write_metadata_file(footer)
    file = DataFile(f"{TABLE.location}/a.parquet", 2, (place / "a.parquet").stat().st_size, footer.getvalue())
    DeltaTable.create(place, Schema.from_arrow(rows.schema))
    lake = DeltaTable(place)
    action = _add_action(TABLE, file, Stamps(resolved_ts=1 << 60))
    lake.create_write_transaction([action], "append", lake.schema())
    found = DeltaTable(place).to_pyarrow_table(filters=[("n", "=", pa.scalar(value, kind))])
    assert found["id"].to_pylist() == [1]
