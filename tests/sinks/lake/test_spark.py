"""The SQL for Spark gives what the SQL for DuckDB gives."""

from typing import Any

import pytest

from tests.sinks.lake.marks import checked_marks, expected_rows, shown_rows
from tests.sinks.lake.replay import calm_lake
from tidemill.sinks.lake.query import rows_at_sql

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("name", "wanted"), [("ddl", ["a", "old", "pt"]), ("types", ["times", "sets"])])
def test_spark_reads_the_rows_at_a_mark(name: str, wanted: list[str], spark: Any) -> None:
    lake = calm_lake(name, "parquet")
    last = max(mark["ts"] for mark, _ in checked_marks(name))
    marks = [(m, t) for m, t in checked_marks(name) if m["table"] in wanted]
    marks = [(m, t) for m, t in marks if m["ts"] == last or m["mark"] == "lossy"]
    assert marks
    for mark, info in marks:
        table = lake.table(mark["schema"], mark["table"], mark["ts"])
        frame = spark.read.option("mergeSchema", "true").parquet(*lake.parquet_files(table))
        frame.createOrReplaceTempView("changes")
        rows = spark.sql(rows_at_sql(table, mark["ts"], "changes", "spark", with_unfit=True)).toArrow()
        found = sorted(shown_rows(mark, info, table, rows), key=repr)
        assert found == sorted(expected_rows(mark, info), key=repr), (mark["mark"], info.full_name)
