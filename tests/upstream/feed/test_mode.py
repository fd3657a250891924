"""What is believed of a resolved-ts."""

import numpy as np
import pytest

from tidemill.model.ts import compose
from tidemill.upstream.feed.registration import TRANSACTIONS, raw_mode


@pytest.mark.parametrize(
    ("interval_ms", "came", "believed"),
    [
        pytest.param(0, compose(5_000, 7), compose(5_000, 7), id="no interval: as it came"),
        pytest.param(3_000, compose(5_000, 7), compose(2_000, 7), id="taken back, and the counter stays"),
        pytest.param(3_000, compose(3_000), 0, id="to nothing"),
        pytest.param(3_000, compose(2_999, 9), 0, id="not below nothing"),
        pytest.param(3_000, 0, 0, id="a store that had none to tell"),
    ],
)
def test_a_resolved_ts_is_taken_back_by_the_safe_interval(interval_ms: int, came: int, believed: int) -> None:
    assert raw_mode(interval_ms).taken_back(np.array([came, came])).tolist() == [believed, believed]


def test_transactions_are_believed_and_raw_changes_have_no_locks() -> None:
    assert TRANSACTIONS.safe_interval_ms == 0
    assert TRANSACTIONS.has_locks
    assert not raw_mode(3_000).has_locks
