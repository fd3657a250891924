"""A capture into files in one call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.capture.options import RunOptions, Status
from tidemill.capture.running import run_changefeed
from tidemill.model.ts import Ts

Capture = Callable[..., Status]


@pytest.fixture
def capture(spark: Any, tmp_path: Path) -> Capture:
    """Run a changefeed in this process up to ``target_ts`` into ``folder``; extra parameters go into the URI."""

    def run(
        pd: str, folder: Path, start_ts: int, target_ts: int, *, master: str = "local[2]", **parameters: str
    ) -> Status:
        query = {"protocol": "canal-json", "enable-tidb-extension": "true"}
        query |= {name.replace("_", "-"): value for name, value in parameters.items()}
        options = RunOptions(
            pd=pd,
            sink_uri=f"file://{folder}?" + "&".join(f"{name}={value}" for name, value in query.items()),
            data_dir=tmp_path / f"data-{folder.name}",
            start_ts=Ts(start_ts),
            target_ts=Ts(target_ts),
            spark_master=master,
        )
        finished, last = run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
        assert finished
        return last

    return run
