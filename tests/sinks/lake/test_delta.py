"""What Delta's own readers make of the bounds that our commits note for each file."""

from decimal import Decimal
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from tidemill.sinks.lake.backend import Stamps
from tidemill.sinks.lake.delta import _add_action
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.tables import LakeTable

TABLE = LakeTable("shop.n", "shop/n", 7, "shop", "n", (), (), (7,))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        pytest.param(2**53 + 3, pa.decimal128(20, 0), id="BIGINT UNSIGNED, just above what a float holds"),
        pytest.param(2**64 - 1, pa.decimal128(20, 0), id="the largest BIGINT UNSIGNED"),
        pytest.param("-99999999999999999.12345", pa.decimal128(38, 5), id="DECIMAL(38, 5)"),
        pytest.param("0.10", pa.decimal128(38, 2), id="DECIMAL(38, 2)"),
    ],
)
def test_a_reader_that_goes_by_bounds_finds_large_and_exact_numbers(
    tmp_path: Path, value: int | str, kind: pa.Decimal128Type
) -> None:
    number, place = Decimal(value), tmp_path / TABLE.location
    place.mkdir(parents=True)
    rows = pa.table({"n": pa.array([number], kind)})
    pq.write_table(rows, place / "a.parquet")
    footer = BytesIO()
    pq.read_metadata(place / "a.parquet").write_metadata_file(footer)
    file = DataFile(f"{TABLE.location}/a.parquet", 1, (place / "a.parquet").stat().st_size, footer.getvalue())
    DeltaTable.create(place, Schema.from_arrow(rows.schema))
    lake = DeltaTable(place)
    action = _add_action(TABLE, file, Stamps(resolved_ts=1 << 60))
    lake.create_write_transaction([action], "append", lake.schema())
    assert DeltaTable(place).to_pyarrow_table(filters=[("n", "=", number)]).num_rows == 1
