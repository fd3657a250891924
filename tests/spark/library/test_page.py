"""The page on reading from Spark is true: what it shows runs, and its table of options is that of the program."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.histories import load
from tidebox.upstream import EmbeddedUpstream
from tidemill.spark.library.options import OPTIONS

PAGE = Path(__file__).parents[3] / "docs/how-to/read-from-spark.md"
START = load("bench-narrow").bootstrap_ts


def test_the_page_tells_every_option() -> None:
    told = [f"| `{option.name}` | {option.default} | {option.help} |" for option in OPTIONS]
    table = PAGE.read_text().partition("## Options")[2].partition("Unknown options")[0]
    assert [line for line in table.splitlines() if line.startswith("| `")] == told


@pytest.mark.spark
def test_what_the_page_shows_runs(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    world: dict[str, Any] = {"spark": spark}
    with EmbeddedUpstream.start(
        stores=3, load=load("bench-narrow").folder / "history.parquet", resolved_interval_seconds=0.02
    ) as upstream:
        for block in blocks:
            text = block.replace("127.0.0.1:2379", upstream.pd_address).replace("/tmp/", f"{tmp_path}/")
            # The reader's own table, and a moment that this upstream still knows.
            text = text.replace("shop.orders", "bench.sbtest").replace("2026-03-01 10:15:00", str(START))
            exec(text, world)
        assert world["orders"].count() > 0
    assert "_commit_ts" in capsys.readouterr().out
    assert world["query"].exception() is None
