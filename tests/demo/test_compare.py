"""The demonstration finds every difference between the files and what TiDB answered."""

import json
from pathlib import Path

import pytest

from tidemill.demo import Mark, compare

MARK = Mark("end", 100, "shop.t", {"1": {"id": "1", "v": "1000"}, "2": {"id": "2", "v": None}})


def message(ts: int, kind: str, **row: str | None) -> str:
    return json.dumps({"type": kind, "pkNames": ["id"], "data": [row], "_tidb": {"commitTs": ts}})


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        pytest.param(
            [message(10, "INSERT", id="1", v="1000"), message(11, "INSERT", id="2", v=None)], (0, 0, 0), id="equal"
        ),
        pytest.param([message(10, "INSERT", id="1", v="1000")], (1, 0, 0), id="a row missing"),
        pytest.param(
            [message(ts, "INSERT", id=str(ts), v="1000") for ts in (1, 2, 3)], (0, 1, 1), id="one extra, one changed"
        ),
        pytest.param(
            [message(10, "INSERT", id="1", v="1000.00"), message(11, "INSERT", id="2", v=None)],
            (0, 0, 0),
            id="a number in the type that it had",
        ),
        pytest.param(
            [message(10, "INSERT", id="1", v="1000.01"), message(11, "INSERT", id="2", v="")], (0, 0, 2), id="others"
        ),
        pytest.param(
            [
                message(10, "INSERT", id="1", v="1000"),
                message(11, "INSERT", id="2", v="9"),
                message(12, "DELETE", id="2", v="9"),
                message(12, "INSERT", id="2", v=None),
                message(101, "DELETE", id="1", v="1000"),
            ],
            (0, 0, 0),
            id="deletes before inserts, nothing above the mark",
        ),
    ],
)
def test_files_against_a_mark(tmp_path: Path, messages: list[str], found: tuple[int, int, int]) -> None:
    folder = tmp_path / "shop" / "t" / "5" / "2026-11-15"
    folder.mkdir(parents=True)
    (folder / "CDC000001.json").write_text("\r\n".join(messages) + "\r\n")
    result = compare(tmp_path, MARK)
    assert (result.missing, result.extra, result.different) == found
    assert result.is_equal == (found == (0, 0, 0))
