"""Real histories into lakes: every table at every mark, read by DuckDB, is what TiDB selected there."""

import pytest

from tests.flow.sink.lake.marks import check_marks
from tests.flow.sink.lake.replay import KINDS, calm_lake
from tests.histories import load


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_at_every_mark_is_what_tidb_selected(name: str, kind: str) -> None:
    check_marks(load(name), calm_lake(name, kind))
