"""The page about ``tidemill verify``: what it shows can be run, and finds both sides equal."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run_refusals import Tidemill, tidemill  # noqa: F401  # a fixture
from tests.histories import load
from tidebox.upstream import EmbeddedUpstream

PAGE = Path(__file__).parents[2] / "docs/how-to/verify.md"


@pytest.mark.spark
@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tmp_path: Path,
    tidemill: Tidemill,  # noqa: F811
    spark: Any,
) -> None:
    history = load("types")
    lines = re.findall(r"^```shell\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0].splitlines()
    with EmbeddedUpstream.start(load=history.folder / "history.parquet", resolved_interval_seconds=0.05) as upstream:
        for line in lines:
            line = line.replace("127.0.0.1:2379", upstream.pd_address).replace("/tmp/", f"{tmp_path}/")
            line = line.replace("START_TS", str(history.bootstrap_ts)).replace("TARGET_TS", str(history.end_ts))
            _, *words = shlex.split(line)
            if words[0] == "run":
                words += ["--data-dir", str(tmp_path / "data")]
            done = tidemill(*words)
            assert done.code == 0, done.output + done.errors
    left_out, said = done.output.splitlines()
    assert left_out.startswith("Not checked, since they have no key: kinds.k_none, ")
    assert said.startswith("Equal at ")
