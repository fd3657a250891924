"""``spark.read.format("tidemill")`` as of every mark of the recorded histories is what TiDB selected there."""

from typing import Any

import pytest

from tests.flow.mounter.test_histories import tables_at
from tests.histories import load
from tests.source.scan.marks import shown_cell, told_cell
from tidebox.upstream import EmbeddedUpstream

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_as_of_every_mark_is_what_tidb_selected(spark: Any, name: str) -> None:
    history = load(name)
    with EmbeddedUpstream.start(stores=3, load=history.folder / "history.parquet") as upstream:
        reader = spark.read.format("tidemill").option("pd", upstream.pd_address).option("invalidDates", "text")
        for mark in history.marks():
            frame = (
                reader.option("table", ".".join("`" + mark[n].replace("`", "``") + "`" for n in ("schema", "table")))
                .option("asOf", mark["ts"])
                .load()
            )
            columns = {c.name: c for c in tables_at(history, mark["ts"])[mark["schema"], mark["table"]].columns}
            assert frame.columns == [n for n in mark["columns"] if not columns[n].is_virtual]
            ours = [[shown_cell(row[n]) for n in frame.columns] for row in frame.toArrow().to_pylist()]
            theirs = [
                [told_cell(columns[n], dict(zip(mark["columns"], row, strict=True))[n]) for n in frame.columns]
                for row in mark["rows"]
            ]
            assert sorted(ours, key=repr) == sorted(theirs, key=repr), (mark["mark"], mark["table"])
