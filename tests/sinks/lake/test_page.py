"""The page on lakes is true: what it shows of Python runs, on the history that it captures."""

import re
from pathlib import Path

import duckdb
import pytest

from tests.sinks.lake.replay import calm_lake

PAGE = Path(__file__).parents[3] / "docs/how-to/write-to-a-lake.md"


def test_the_python_that_the_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lake = calm_lake("online", "iceberg")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks).replace("iceberg:///tmp/lake", f"iceberg://{lake.options.storage.root}")
    exec(compile(code, str(PAGE), "exec"), {"duckdb": duckdb})
    checkpoint, rows, *_ = capsys.readouterr().out.splitlines()
    assert (int(checkpoint), int(rows)) == (lake.checkpoint_ts, 20)
